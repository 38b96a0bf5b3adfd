"""FlagPerf's Llama2-7B LoRA loop again: Hugging Face's model and peft, the clock of a whole iteration.

An iteration is loading, hand-over, forward, backward, update and what the progress bar reads; the device is waited
for after the forward pass, in fp16 after the backward pass, and at the end. All the while a thread reads the memory
of the process, without a pause, where the configuration has it. fp16 turns the whole model half, adapters and rotary
tables with it, under autocast and a loss scaler.

Source: FlagPerf 1b5a0303, training/benchmarks/llama2_7b_finetune/pytorch (run_pretraining.py and its configurations).
"""

import contextlib
import gc
import itertools
import os
import threading
from typing import Any, Dict, Iterator, List, Optional

import peft
import psutil
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM

from flagbench_cases.cases.llama2_7b_lora import data as samsum


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


def halved(model: Any) -> Any:
    """The model in fp16. In the publisher's version the tables of the rotary embedding are made before, and rounded.

    A newer one computes them in every step from frequencies, which would be rounded first: those stay as they were.
    """
    kept = {name: module.inv_freq for name, module in model.named_modules() if hasattr(module, "inv_freq")}
    model.half()
    for name, frequencies in kept.items():
        model.get_submodule(name).inv_freq = frequencies
    return model


def load(model: Any, weights: Dict[str, Any]) -> None:
    """Fill the model from the state_dict of ours, in any version of peft and transformers; rotary tables stay."""

    def plain(name: str) -> str:
        """A name without what peft, or only some version of it, adds to names."""
        return name.replace("base_model.model.", "", 1).replace(".base_layer.", ".").replace(".default.", ".")

    named = {plain(name): tensor for name, tensor in weights.items()}
    wanted = [name for name in model.state_dict() if not name.endswith("rotary_emb.inv_freq")]
    model.load_state_dict({name: named[plain(name)] for name in wanted}, strict=False)


@contextlib.contextmanager
def memory_read(wanted: bool) -> Iterator[None]:
    """A thread that reads the resident memory over and over, and takes the interpreter from the loop to do so.

    Around it garbage is collected and the device's cache given back.
    """
    process, ended = psutil.Process(), threading.Event()

    def read() -> None:
        while not ended.is_set():
            process.memory_info()

    def give_back() -> None:
        gc.collect()
        torch.cuda.empty_cache()

    thread = threading.Thread(target=read, daemon=True)
    if wanted:
        give_back()
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            thread.join()
            give_back()


def collate(blocks: List[torch.Tensor]) -> Dict[str, torch.Tensor]:
    """Tokens, a mask of ones, and the tokens once more as labels."""
    tokens = torch.stack(blocks)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def steps(
    config: Dict[str, Any], device: torch.device, weights: Optional[Dict[str, Any]] = None
) -> Iterator[Optional[float]]:
    """The loss of each step of a resolved configuration, from random weights unless `weights` has others."""
    settings, half, value = config["train"], config["precision"] == "fp16", None
    blocks = samsum.load(config["data"], config["model"], None, config["seed"]).train
    torch.manual_seed(config["seed"])
    model = build(config["model"], device)
    if weights is not None:
        load(model, weights)
    (halved(model) if half else model).to(device).train()
    loader = DataLoader(
        blocks,
        settings["batch_size"],
        drop_last=True,  # and not shuffled
        num_workers=config["data"]["workers"],
        collate_fn=collate,
        pin_memory=device.type == "cuda",
    )
    fused = {"fused": half} if hasattr(torch, "compile") else {}  # False turns the multi-tensor path off, too
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"], **fused
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=settings["gamma"])
    scaler = torch.amp.GradScaler(device.type) if half else None
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for epoch in itertools.count(1):
        with memory_read(settings["memory_monitor"]), open(os.devnull, "w", encoding="utf-8") as sink:
            model.train()
            total: Any = 0.0
            bar = tqdm(colour="blue", desc="epoch %d" % epoch, total=len(loader), dynamic_ncols=True, file=sink)
            synchronize()
            for step, batch in enumerate(loader):
                yield value
                batch = {name: tensor.to(device) for name, tensor in batch.items()}
                # A new context in every step.
                with torch.autocast(device.type, dtype=torch.float16) if half else contextlib.nullcontext():
                    loss = model(**batch).loss
                loss = loss / 1  # batches that are accumulated
                total += loss.detach().float()
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
                bar.update(1)
                value = loss.detach().float().item()
                bar.set_description("epoch %d/%d, step %d/%d (loss: %s)" % (epoch, 3, step, len(loader), value))
                synchronize()
            bar.close()
        schedule.step()  # once an epoch
