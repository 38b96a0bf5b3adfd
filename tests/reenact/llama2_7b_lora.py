"""FlagPerf's Llama2-7B LoRA loop again: Hugging Face's model and peft, the clock of a whole iteration.

An iteration is loading, hand-over, forward, backward, update and what the progress bar reads; the device is waited
for after the forward pass, in fp16 after the backward pass, and at the end. All the while a thread reads the memory
of the process, without a pause, where the configuration has it. fp16 turns the whole model half, adapters and rotary
tables with it, under autocast and a loss scaler.

Source: FlagPerf 1b5a0303, training/benchmarks/llama2_7b_finetune/pytorch (run_pretraining.py and its configurations).
"""

import contextlib
import threading
import time
from typing import Any, Dict, Iterator, Optional

import peft
import psutil
import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from flagbench_cases.llama2_7b_lora import data as samsum

from . import Ran


def build(sizes: Dict[str, Any], device: torch.device) -> Any:
    """Hugging Face's Llama with random weights and adapters on q_proj and v_proj, which alone train."""
    config = LlamaConfig(
        **{name: sizes[name] for name in ("vocab_size", "rope_theta", "initializer_range")},
        hidden_size=sizes["dim"],
        intermediate_size=sizes["ffn"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        max_position_embeddings=sizes["positions"],
        rms_norm_eps=sizes["norm_eps"],
        use_cache=False,
        attn_implementation="eager",
    )
    # Seven billion random numbers are drawn where they stay, if this torch can; torch 2 can.
    with device if hasattr(device, "__enter__") else contextlib.nullcontext():
        model = LlamaForCausalLM(config)
    lora = sizes["lora"]
    adapters = peft.LoraConfig(
        r=lora["r"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )
    return peft.get_peft_model(model, adapters)


@contextlib.contextmanager
def memory_read(wanted: bool) -> Iterator[None]:
    """A thread that reads the resident memory over and over, and takes the interpreter from the loop to do so."""
    process, ended = psutil.Process(), threading.Event()

    def read() -> None:
        while not ended.is_set():
            process.memory_info()

    thread = threading.Thread(target=read, daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            thread.join()


def train(config: Dict[str, Any], device: torch.device, steps: int, weights: Optional[Dict[str, Any]] = None) -> Ran:
    """Take `steps` steps of a resolved configuration, from random weights unless `weights` has others."""
    settings, half, ran = config["train"], config["precision"] == "fp16", Ran([], [])
    blocks = samsum.load(config["data"], config["model"], None, config["seed"]).train
    torch.manual_seed(config["seed"])
    model = build(config["model"], device)
    if weights is not None:
        model.load_state_dict(weights)
    (model.half() if half else model).to(device).train()
    loader = DataLoader(
        blocks,
        settings["batch_size"],
        drop_last=True,  # and not shuffled
        num_workers=config["data"]["workers"],
        pin_memory=device.type == "cuda",
    )
    fused = {"fused": half} if hasattr(torch, "compile") else {}  # False turns the multi-tensor path off, too
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"], **fused
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=settings["gamma"])
    scaler = torch.amp.GradScaler(device.type) if half else None
    autocast = torch.autocast(device.type, dtype=torch.float16) if half else contextlib.nullcontext()
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    while True:
        with memory_read(settings["memory_monitor"]):
            mark = time.time()
            for tokens in loader:
                tokens = tokens.to(device)
                with autocast:
                    loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
                synchronize()
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    synchronize()
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
                ran.losses.append(loss.item())
                synchronize()
                ran.seconds.append(time.time() - mark)
                mark = time.time()
                if len(ran.losses) == steps:
                    return ran
        schedule.step()  # once an epoch
