"""The faithful step against Hugging Face's Trainer: same weights' shapes, data, batch, padding and operators.

CPU time of both training loops in interleaved pairs, in one process and one thread. Bound: the upper end of the
95 % interval of the ratio (ours over theirs) at most 1.05.
"""

import math
import os
import statistics
import sys
import tempfile
import time
import types

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from flagbench_cases import config as configuration
from flagbench_cases.collectives import CollectiveProbe
from flagbench_cases.device import CpuDevice
from flagbench_cases.distilbert import data as sst2
from flagbench_cases.distilbert.workload import DistilBertWorkload
from flagbench_cases.loop import Loop, Plan
from flagbench_cases.spool import RankSpool

PAIRS = 15
STEPS = 40
BATCH = 16
BOUND = 1.05
T_975 = 2.145  # Student's t, 97.5 %, 14 degrees of freedom


def resolved():
    """The tiny preset on synthetic data with the published dropout: the same work on both sides."""
    options = {"nodes": 1, "gpus": 1, "preset": "tiny", "division": "faithful", "precision": None, "seed": 0}
    settings = ["batch_size=%d" % BATCH, "dropout=0.1", "attention_dropout=0.1", "classifier_dropout=0.2"]
    return configuration.resolve(
        configuration.load_case("distilbert"),
        configuration.load_stack("cpu"),
        source="synthetic",
        weights=False,
        steps=STEPS,
        max_samples=None,
        full=False,
        settings=settings,
        **options,
    )


def ours(config):
    """CPU seconds of our loop."""
    device = CpuDevice(0)
    with tempfile.TemporaryDirectory() as folder:
        spool = RankSpool(folder, 0)
        probe = CollectiveProbe(device.clock)
        place = {"rank": 0, "world": 1, "local_rank": 0, "data": None, "weights": None}
        context = types.SimpleNamespace(config=config, device=device, probe=probe, spool=spool, **place)
        workload = DistilBertWorkload(context)
        workload.setup()
        spool.reserve(STEPS)
        loop = Loop(workload, Plan(1, 0, STEPS, None, False), spool, device, probe)
        start = time.process_time()
        loop.run()
        return time.process_time() - start


class Span(transformers.TrainerCallback):
    """CPU seconds between the begin and the end of training, set-up left out."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.process_time()

    def on_train_end(self, args, state, control, **kwargs):
        self.seconds = time.process_time() - self.start


class Rows(torch.utils.data.Dataset):
    """The same rows under the names that Trainer expects."""

    def __init__(self, sentences):
        self.sentences = sentences

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        ids, mask, label = self.sentences[index]
        return {"input_ids": ids, "attention_mask": mask, "labels": label}


def theirs(config):
    """CPU seconds of Trainer's loop."""
    model = config["model"]
    shape = transformers.DistilBertConfig(
        vocab_size=model["vocab_size"],
        max_position_embeddings=model["positions"],
        n_layers=model["layers"],
        n_heads=model["heads"],
        dim=model["dim"],
        hidden_dim=model["hidden_dim"],
        dropout=model["dropout"],
        attention_dropout=model["attention_dropout"],
        seq_classif_dropout=model["classifier_dropout"],
        num_labels=model["labels"],
        attn_implementation="eager",
    )
    span = Span()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=config["train"]["learning_rate"],
            lr_scheduler_type="linear",
            optim="adamw_torch",
            max_grad_norm=0.0,
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_num_workers=0,
            dataloader_pin_memory=False,
            seed=0,
        )
        rows = Rows(sst2.load(config["data"], model, None, None, 0).train)
        trainer = transformers.Trainer(
            model=transformers.DistilBertForSequenceClassification(shape),
            args=arguments,
            train_dataset=rows,
            data_collator=transformers.default_data_collator,
            callbacks=[span],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return span.seconds


def main():
    """Interleaved pairs, the order alternating; exit 1 over the bound."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    config = resolved()
    ours(config), theirs(config)
    logs = []
    for pair in range(PAIRS):
        first, second = (ours, theirs) if pair % 2 == 0 else (theirs, ours)
        costs = {side: side(config) for side in (first, second)}
        logs.append(math.log(costs[ours] / costs[theirs]))
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(PAIRS)
    low, ratio, high = (math.exp(mean + k * T_975 * error) for k in (-1, 0, 1))
    print(
        "trainer: faithful / Hugging Face Trainer %.3f [%.3f, %.3f] CPU time over %d interleaved pairs of %d steps "
        "(upper bound at most %.2f)" % (ratio, low, high, PAIRS, STEPS, BOUND)
    )
    return int(high > BOUND)


if __name__ == "__main__":
    sys.exit(main())
