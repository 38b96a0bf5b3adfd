"""`flagbench prepare` for real: downloaded files become folders that are checked, and bad ones are refused."""

import json
import os

import pytest
import torch

pytestmark = pytest.mark.image

PASSAGE = "Anna met Ben in the park.\n@highlight\nBen likes Carl"
# Where each name is in the passage, its last letter included.
ENTITIES = [{"start": 0, "end": 3}, {"start": 9, "end": 11}, {"start": 37, "end": 39}, {"start": 47, "end": 50}]
QUESTION = {
    "query": "In the park @placeholder was met.",
    "answers": [{"start": 9, "end": 11, "text": "Ben"}],
    "idx": 0,
}


@pytest.fixture
def prepare(flagbench, tmp_path):
    return lambda *arguments: flagbench("prepare", *arguments, cwd=str(tmp_path))


@pytest.fixture
def record(tmp_path):
    """ReCoRD as SuperGLUE has it, one question of it, and a vocabulary of the published size."""
    line = {"source": "text", "passage": {"text": PASSAGE, "entities": ENTITIES}, "qas": [QUESTION], "idx": 0}
    (tmp_path / "ReCoRD").mkdir()
    for name in ("train.jsonl", "val.jsonl"):
        (tmp_path / "ReCoRD" / name).write_text(json.dumps(line) + "\n")
    words = ["[unused%d]" % number for number in range(30522)]
    for number, word in {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}.items():
        words[number] = word
    words[1000:1012] = ["anna", "met", "ben", "in", "the", "park", ".", "-", "likes", "carl", "was", "@"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    return ["--data", "ReCoRD", "--vocabulary", "vocab.txt"]


def test_data_are_prepared_once_and_checked(tmp_path, prepare, record):
    done = prepare("glm", *record, "-o", "out", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["run"] == "flagbench run glm:cpu --data out"
    made = result["folders"]["data"]
    assert made["facts"]["train"]["examples"] == made["facts"]["eval"]["examples"] == 1
    assert [source["name"] for source in made["sources"]] == ["train.jsonl", "val.jsonl", "vocab.txt"]
    assert "CNN" in made["licence"]
    assert "vocabulary: Apache-2.0" in made["licence"]
    assert sorted(os.listdir(str(tmp_path / "out"))) == ["data"]
    checked = prepare("glm", "-o", "out", "--check")
    assert checked.returncode == 0, checked.stderr
    assert ", all checksums verified" in checked.stdout
    again = prepare("glm", *record, "-o", "out")
    assert again.returncode == 2
    assert "is already prepared" in again.stderr
    largest = max(made["files"], key=lambda name: made["files"][name]["bytes"])
    with open(str(tmp_path / "out" / "data" / largest), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xfe")
    broken = prepare("glm", "-o", "out", "--check")
    assert broken.returncode == 3
    assert largest in broken.stderr


class Hostile:
    """Unpickled, it makes a file."""

    def __reduce__(self):
        return os.system, ("touch canary",)


def test_a_hostile_checkpoint_is_refused_and_runs_nothing(tmp_path, prepare):
    torch.save({"module": {}, "args": Hostile()}, str(tmp_path / "mp_rank_00_model_states.pt"))
    done = prepare("glm", "--weights", "mp_rank_00_model_states.pt", "-o", "out")
    assert done.returncode == 3
    assert "posix.system" in done.stderr
    assert sorted(os.listdir(str(tmp_path))) == ["mp_rank_00_model_states.pt", "spool"]


def test_a_case_that_reads_what_was_published_says_so(tmp_path, prepare):
    (tmp_path / "dataset").mkdir()
    done = prepare("distilbert:cpu", "--data", "dataset", "-o", "out")
    assert done.returncode == 2
    assert "--data FOLDER" in done.stderr
