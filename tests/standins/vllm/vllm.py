"""A stand-in for vLLM 0.31: the calls that flagbench_cases/engines/vllm.py makes, without a model.

Ids are a hash of the prompt at temperature 0, else random. A test plants a fault by replacing an attribute.
"""

import fcntl
import mmap
import os
import random
import sys
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace

import torch

__version__ = "0.31.0"


class SamplingParams:
    """How tokens are drawn."""

    def __init__(self, temperature, top_p, ignore_eos, max_tokens, detokenize):
        assert (top_p, ignore_eos, detokenize) == (1.0, True, False)
        self.temperature = temperature
        self.max_tokens = max_tokens


class LLM:
    """One engine."""

    def __init__(self, **arguments):
        assert (arguments["load_format"], arguments["skip_tokenizer_init"]) == ("dummy", True)
        self.llm_engine = LLMEngine(arguments)
        if arguments["tensor_parallel_size"] > 1 and torch.distributed.get_rank() == 0:
            self.messages = SharedMemory(create=True, size=4096)  # as the worker of rank 0 does
            self.collectives = share_collectives()

    def enqueue(self, prompts, sampling, use_tqdm):
        for prompt in prompts:
            self.llm_engine.add(prompt["prompt_token_ids"], sampling)

    def apply_model(self, function):
        return [function(torch.nn.Linear(2, 2))]


def share_collectives():
    """Memory whose name is the same in each run, so that no other run may start now."""
    folder = os.open("/dev/shm", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file = os.open("/dev/shm/-tp:0-[0-1]-cpushm_0", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.ftruncate(file, 4096)
        return mmap.mmap(file, 4096)
    raise AssertionError("another run could start an engine")


class LLMEngine:
    """Gives each request one token in every iteration."""

    AHEAD = 0
    """How many iterations it starts before it waits for the tokens of one."""
    CACHED_TOKENS = 0
    LOST_TOKENS = 0
    PREEMPTIONS = 0

    def __init__(self, arguments):
        self.vllm_config = describe(arguments)
        self.vllm_config.max_concurrent_batches = 1 + self.AHEAD
        self.model_executor = SimpleNamespace(shutdown=lambda: print("vLLM's memory is free", file=sys.stderr))
        self.requests = []
        self.count = 0
        self.weights = torch.randn(256, 256)

    def add(self, prompt, sampling):
        seed = sum(prompt) if sampling.temperature == 0 else None
        tokens = random.Random(seed).choices(range(1000), k=sampling.max_tokens)
        self.requests.append((str(self.count), tokens))
        self.count += 1
        self.left = sampling.max_tokens + self.AHEAD

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        torch.mm(self.weights, self.weights)  # so that an iteration takes time
        self.left -= 1
        if self.left > 0:
            return []
        finished, self.requests = self.requests, []
        return [self.finish(name, tokens) for name, tokens in finished]

    def finish(self, name, tokens):
        return SimpleNamespace(
            request_id=name,
            finished=True,
            num_cached_tokens=self.CACHED_TOKENS,
            metrics=SimpleNamespace(num_preemptions=self.PREEMPTIONS),
            outputs=[SimpleNamespace(token_ids=tokens[self.LOST_TOKENS :])],
        )


def describe(arguments):
    """The settings that are in use, where vLLM has them."""
    compilation = arguments["compilation_config"]
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=arguments["max_model_len"]),
        scheduler_config=SimpleNamespace(
            max_num_seqs=arguments["max_num_seqs"],
            max_num_batched_tokens=arguments["max_num_batched_tokens"],
            async_scheduling=False,
        ),
        cache_config=SimpleNamespace(
            gpu_memory_utilization=arguments["gpu_memory_utilization"],
            kv_cache_memory_bytes=arguments["kv_cache_memory_bytes"],
            enable_prefix_caching=arguments["enable_prefix_caching"],
        ),
        compilation_config=SimpleNamespace(
            mode=compilation["mode"], cudagraph_mode=SimpleNamespace(name=compilation["cudagraph_mode"])
        ),
    )
