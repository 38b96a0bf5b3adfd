"""What `prepare` is given may be anything: bad input ends with exit code 3, the file named, and nothing written."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from cloze_files import from_text, published_matrices, write_hdf5, write_jsonl
from flagbench_cases.shared.config import load_case
from running import ENTRYPOINTS
from warmup import warm

pytestmark = pytest.mark.image

PUBLISHED = os.path.join("ReCoRD", "glm_train_eval_hdf5_sparse")
LENGTH = load_case("glm")["presets"]["reference"]["data"]["sequence_length"]


def prepare(folder, case, *arguments):
    """Prepare into `out`, which must not be there afterwards unless it is whole."""
    env = dict(os.environ, NO_COLOR="1", **warm(ENTRYPOINTS))
    command = [sys.executable, "-m", "flagbench_cases", "prepare", case, *arguments, "--out", "out"]
    return subprocess.run(command, cwd=str(folder), env=env, capture_output=True, text=True, check=False)


def refused(folder, ended, *words):
    assert ended.returncode == 3, ended.stderr
    assert all(word in ended.stderr for word in ("error: ", "fix: ", *words)), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not os.path.exists(str(folder / "out")), "what was made for it goes again"


def test_a_truncated_hdf5(tmp_path):
    paths = {}
    for name, split in (("train", "train"), ("eval", "val")):
        examples = from_text(write_jsonl(tmp_path) / (split + ".jsonl"), name == "train", LENGTH)
        path = tmp_path / PUBLISHED / (name + "_hdf5") / (name + "_sparse.hdf5")
        paths[name] = write_hdf5(path, published_matrices(examples, LENGTH))
    whole = prepare(tmp_path, "glm", "--data", "ReCoRD")
    assert whole.returncode == 0, whole.stderr
    assert (tmp_path / "out" / "data" / "prepared.json").exists()
    shutil.rmtree(str(tmp_path / "out"))
    for part in ("eval", "train"):
        os.truncate(paths[part], paths[part].stat().st_size // 2)
        refused(tmp_path, prepare(tmp_path, "glm", "--data", "ReCoRD"), part + "_sparse.hdf5")


def test_a_missing_shard(tmp_path):
    checkpoint = tmp_path / "Llama-2-7b-hf"
    checkpoint.mkdir()
    shards = ["model-0000%d-of-00002.safetensors" % number for number in (1, 2)]
    save_file({"model.embed_tokens.weight": torch.zeros(4, 2)}, str(checkpoint / shards[0]))
    index = {"model.embed_tokens.weight": shards[0], "lm_head.weight": shards[1]}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
    (checkpoint / "config.json").write_text(
        json.dumps(dict(sizes, vocab_size=32000, model_type="llama", rms_norm_eps=1e-5, num_key_value_heads=32))
    )
    refused(tmp_path, prepare(tmp_path, "llama2-7b-lora", "--weights", str(checkpoint)), shards[1])
