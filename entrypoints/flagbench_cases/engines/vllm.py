"""vLLM as the engine of a rank. No other module imports it, and it is written for the calls of one release.

The engine lives in the process of the rank: in a process of its own, as is vLLM's default, it would outlive a killed
rank and keep the memory of the device. If a model is split over ranks, each rank is one of vLLM's workers.
"""

from __future__ import annotations

import fcntl
import gc
import glob
import hashlib
import importlib
import json
import os
import re
import tempfile
import warnings
from multiprocessing import resource_tracker
from typing import Any, Callable, NamedTuple, Sequence

import torch
import torch.distributed as dist

from flagbench_cases.contract import Context
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_core.exit_codes import ExitCode

RELEASE = "0.31"
"""The release whose calls are used here. vLLM changes them between releases."""
REMEDY = f"install vLLM {RELEASE}, as docs/serving.md describes"
DTYPES = {"bf16": "bfloat16"}
"""The names of vLLM's types, by precision."""
NOT_COMPILED = 0
COMPILED = 3
"""vLLM's modes of compilation, NONE and VLLM_COMPILE. A processor has another one than the latter."""
TOO_LARGE = re.compile(r"No available memory|cache is needed|^(Free|Available) memory on")
"""What vLLM says if weights, activations and cache do not fit into the device's memory."""
MEMORY_REMEDY = (
    "change --set max_model_len, gpu_memory_utilization or kv_cache_bytes as vLLM says; max_model_len is at least "
    "prompt_length + output_length"
)
SHARED_MEMORY = "/dev/shm/"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in the process of the rank
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent to vLLM's server
    "HF_HUB_OFFLINE": "1",
    "VLLM_RPC_BASE_PATH": "@flagbench",  # sockets without a file, which a killed rank would leave behind
}
"""Variables that every run needs, whatever the user has set."""
DEFAULTS = {
    "VLLM_HOST_IP": "127.0.0.1",  # all ranks are on this node
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # OMP_NUM_THREADS divides the processors among the ranks
}
"""Variables that are set unless the user has set them."""


def check(config: dict[str, Any], device_kind: str) -> None:
    """Check the settings of a resolved configuration and the release of vLLM, before the engine uses a device.

    `device_kind`: the type of the device, `cpu` or `cuda`. Raises UsageError.
    """
    check_settings(config, device_kind)
    _set_environment()
    try:
        version = str(importlib.import_module("vllm").__version__)
    except (ImportError, AttributeError) as error:  # the latter: of a folder of that name without vLLM in it
        raise UsageError(f"vLLM cannot be imported ({error})", REMEDY) from None
    if version.split(".")[:2] != RELEASE.split("."):
        words = f"this version of flagbench runs vLLM {RELEASE}, and vLLM {version} is installed"
        raise UsageError(words, REMEDY)


def check_settings(config: dict[str, Any], device_kind: str) -> None:
    """Raise UsageError for settings that vLLM would replace by others when it starts."""
    graphs = config["vllm"]["cuda_graphs"]
    if device_kind == "cpu" and graphs != "none":
        raise UsageError(f"cuda_graphs is {graphs}, but this is a processor", "use --set cuda_graphs=none")
    if "piecewise" in graphs and not config["vllm"]["compile"]:
        remedy = "use --set compile=true, or --set cuda_graphs=full_decode_only"
        raise UsageError(f"cuda_graphs is {graphs}, which needs compiled layers", remedy)


def _set_environment() -> None:
    """Set the variables that vLLM reads when it is imported."""
    os.environ.update(ENVIRONMENT)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


class Completion(NamedTuple):
    """What the engine returned for one prompt."""

    ids: list[int]
    """The ids of the generated tokens."""
    cached_tokens: int
    """The tokens of the prompt that were taken from the cache of an earlier request."""
    preemptions: int
    """How often the request was interrupted for others, which repeats work."""


class VllmEngine:
    """One engine with random weights, whose model is described by the section `model` of a configuration."""

    def __init__(self, context: Context) -> None:
        """Start the engine, which takes its memory of the device, and may compile layers and capture graphs.

        Raises CaseError (OUT_OF_MEMORY) if the device has too little memory, and UsageError if vLLM refuses a setting
        or cannot load its operators.
        """
        _set_environment()
        vllm = importlib.import_module("vllm")
        folder = os.path.join(context.spool.folder, f"vllm-{context.rank}")
        os.environ.update(VLLM_CACHE_ROOT=folder, VLLM_CONFIG_ROOT=folder)
        self.version = str(vllm.__version__)
        self._sampling = vllm.SamplingParams
        warnings.filterwarnings("ignore", category=FutureWarning)  # of torch, about vLLM's code
        engine = vllm.LLM  # imports what it needs, which takes seconds
        tempfile.tempdir = folder  # for a file of vLLM, which a killed rank would leave behind
        is_split = context.layout.tp > 1
        lock = None
        if is_split:
            if context.rank == 0 and context.device.kind == "cpu":
                lock = _lock_shared_memory()
            dist.barrier()
        try:
            self._llm = engine(**_engine_arguments(context, folder))
        except ValueError as error:
            raise _explain(error) from None
        except AttributeError as error:
            # vLLM only logs that its compiled operators cannot be loaded, and fails at the first one that it calls.
            if "'_C' object has no attribute" not in str(error):
                raise
            words = f"vLLM cannot load its compiled operators: a library is missing, such as libnuma ({error})"
            raise UsageError(words, REMEDY) from None
        if is_split:
            dist.barrier()  # every worker has opened the memory that it shares with the others
            if context.rank == 0:
                _unlink_shared_memory()
        if lock is not None:
            os.close(lock)

    def generate(
        self, prompts: Sequence[Sequence[int]], length: int, temperature: float, mark_iteration: Callable[[], None]
    ) -> list[Completion]:
        """Generate `length` tokens for each prompt, in one batch.

        `mark_iteration` is called when the batch begins, and after each iteration, when its tokens have arrived.
        """
        sampling = self._sampling(
            temperature=temperature, top_p=1.0, ignore_eos=True, max_tokens=length, detokenize=False
        )
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        engine = self._llm.llm_engine
        self._llm.enqueue(requests, sampling, use_tqdm=False)
        # With asynchronous scheduling, the first call only starts an iteration, and each later one starts the next
        # iteration before it waits for the tokens of the last.
        calls_without_tokens = engine.vllm_config.max_concurrent_batches - 1
        finished = []
        mark_iteration()
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    finished.append(output)
            if calls_without_tokens:
                calls_without_tokens -= 1
            else:
                mark_iteration()
        finished.sort(key=lambda output: int(output.request_id))  # the order of the prompts
        return [_completion(output) for output in finished]

    def settings(self) -> dict[str, Any]:
        """The settings that the engine uses, by their names in the section `vllm` of a configuration."""
        config = self._llm.llm_engine.vllm_config
        return {
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
            "kv_cache_bytes": config.cache_config.kv_cache_memory_bytes or 0,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "compile": int(config.compilation_config.mode) != NOT_COMPILED,
            "cuda_graphs": config.compilation_config.cudagraph_mode.name.lower(),
        }

    def async_scheduling(self) -> bool:
        """Whether the engine prepares an iteration while the last one is running. vLLM decides it."""
        return bool(self._llm.llm_engine.vllm_config.scheduler_config.async_scheduling)

    def parameter_sum(self) -> float:
        """The sum of all parameters of this rank's part of the model."""
        return float(self._llm.apply_model(_sum_parameters)[0])

    def close(self) -> None:
        """Release the memory of weights and cache.

        The engine itself ends with its rank: it would end the process groups of the job, too.
        """
        self._llm.llm_engine.model_executor.shutdown()
        gc.collect()


def _explain(error: ValueError) -> Exception:
    """The error to raise for one with which vLLM does not start; `error` itself if its cause is not known."""
    if TOO_LARGE.search(str(error)):
        return CaseError(f"vLLM does not start: {error}", MEMORY_REMEDY, ExitCode.OUT_OF_MEMORY)
    pydantic = importlib.import_module("pydantic")  # vLLM checks its settings with it
    if isinstance(error, pydantic.ValidationError):
        problems = "; ".join(problem["msg"] for problem in error.errors())
        return UsageError(f"vLLM refuses a setting: {problems}", "change it by --set NAME=VALUE")
    return error


def _engine_arguments(context: Context, folder: str) -> dict[str, Any]:
    """The arguments of vLLM's engine. Its description of the model is written into `folder`."""
    config = context.config
    settings = config["vllm"]
    arguments = {
        "model": _write_model(config["model"], folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": DTYPES[config["precision"]],
        "seed": config["seed"],
        "tensor_parallel_size": context.layout.tp,
        "max_model_len": settings["max_model_len"],
        "max_num_seqs": settings["max_num_seqs"],
        "max_num_batched_tokens": settings["max_num_batched_tokens"],
        "gpu_memory_utilization": settings["gpu_memory_utilization"],
        "kv_cache_memory_bytes": settings["kv_cache_bytes"] or None,
        "enable_prefix_caching": settings["prefix_caching"],
        "compilation_config": _compilation(settings),
        "disable_log_stats": False,  # preemptions are part of the statistics, which `vllm bench latency` has too
    }
    if context.layout.tp > 1:
        arguments["distributed_executor_backend"] = "external_launcher"
    return arguments


def _compilation(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of compilation and graphs in vLLM's words."""
    mode = NOT_COMPILED
    if settings["compile"]:
        mode = COMPILED
    return {"mode": mode, "cudagraph_mode": settings["cuda_graphs"].upper()}


def _write_model(model: dict[str, Any], folder: str) -> str:
    """Write `config.json` of a model of the Llama family, as vLLM reads it, into a new folder. Returns the folder."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model["dim"],
        "intermediate_size": model["ffn"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "num_key_value_heads": model["kv_heads"],
        "head_dim": model["dim"] // model["heads"],
        "vocab_size": model["vocab_size"],
        "max_position_embeddings": model["positions"],
        "rms_norm_eps": model["norm_eps"],
        "rope_theta": model["rope_theta"],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": model["rope_factor"],
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder


def _completion(output: Any) -> Completion:
    """What the engine returned for one prompt, from vLLM's RequestOutput."""
    return Completion(
        list(output.outputs[0].token_ids), output.num_cached_tokens or 0, output.metrics.num_preemptions
    )


def _sum_parameters(module: torch.nn.Module) -> float:
    """The sum of all parameters of a module. Nothing is copied: the engine has left no memory for that."""
    return float(sum(parameter.detach().sum(dtype=torch.float64) for parameter in module.parameters()))


def digest(completions: Sequence[Completion]) -> str:
    """A digest of all generated ids, 16 hexadecimal digits."""
    ids = json.dumps([completion.ids for completion in completions])
    return hashlib.sha256(ids.encode()).hexdigest()[:16]


def _lock_shared_memory() -> int:
    """Wait for other runs that start a split engine on this machine. Others wait until the returned file is closed.

    In each run, vLLM gives the shared memory for the collectives of processors the same name, which must not exist.
    Names that are left of killed runs are removed.
    """
    folder = os.open(SHARED_MEMORY, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    for path in glob.glob(f"{SHARED_MEMORY}-*-cpushm_*"):
        try:
            os.unlink(path)
        except PermissionError:
            words = f"{path} is left of a killed run of another user"
            raise UsageError(words, "let that user remove it") from None
    return folder


def _unlink_shared_memory() -> None:
    """Remove the names of the memory that vLLM's workers share, so that it ends with them, even if they are killed.

    Rank 0, which has created that for messages (`psm_...`), calls it when all workers have opened it. `...-cpushm_N`
    is that for the collectives of processors.
    """
    with open("/proc/self/maps", encoding="utf-8") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if SHARED_MEMORY in line}
    for path in sorted(paths):
        name = path[len(SHARED_MEMORY) :]
        if "-cpushm_" in name:
            os.unlink(path)
        elif name.startswith("psm_"):
            os.unlink(path)
            resource_tracker.unregister(f"/{name}", "shared_memory")  # otherwise Python warns that it is missing
