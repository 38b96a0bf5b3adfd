"""A sentencepiece vocabulary of the size of Llama's, for tests that prepare data as the published ones."""

from pathlib import Path


def padded_vocabulary(model: str, path: Path, pieces: int) -> str:
    """The vocabulary `model` at `path`, with pieces that no text has, up to `pieces` of them."""
    from sentencepiece import sentencepiece_model_pb2

    content = sentencepiece_model_pb2.ModelProto()
    content.ParseFromString(Path(model).read_bytes())
    for number in range(len(content.pieces), pieces):
        content.pieces.add(piece="\ue000%d" % number, score=-1e6)
    path.write_bytes(content.SerializeToString())
    return str(path)
