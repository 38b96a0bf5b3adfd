"""The faithful step against Hugging Face's Trainer: same weights' shapes, data, batch, padding and operators.

CPU time of both training loops in pairs, one after the other, in one process on one core. Bound: the upper end of the
95 % interval of the ratio (ours over theirs) at most 1.05.
"""

import math
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from flagbench_cases.cases.distilbert import data as sst2
from flagbench_cases.cases.distilbert.workload import DistilBertWorkload
from flagbench_cases.contract import Context
from flagbench_cases.rank.device import CpuDevice
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.shared import manifests
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import RankSpool
from flagbench_core import config as configuration

# At the least, then until the interval is as narrow as HALF_WIDTH, at the most: other processes make it wide.
PAIRS, MOST_PAIRS = 15, 60
HALF_WIDTH = 0.05  # of a ratio of about 0.95
STEPS = 40
BATCH = 16
BOUND = 1.05
T_975 = 2.145  # Student's t, 97.5 %, 14 degrees of freedom


def resolved():
    """The tiny preset on synthetic data with the published dropout: the same work on both sides."""
    settings = ("batch_size=%d" % BATCH, "dropout=0.1", "attention_dropout=0.1", "classifier_dropout=0.2")
    options = configuration.Options(preset="tiny", seed=0, source="synthetic", steps=STEPS, settings=settings)
    return configuration.resolve(manifests.load_case("distilbert"), manifests.load_stack("cpu"), options)


def ours(config):
    """CPU seconds of our loop."""
    device = CpuDevice()
    with tempfile.TemporaryDirectory() as folder:
        spool, probe = RankSpool(folder, 0), CollectiveProbe(device.clock)
        workload = DistilBertWorkload(Context(config, device, 0, Layout(), 0, probe, spool, None, None))
        workload.setup()
        spool.reserve(STEPS)
        loop = TrainLoop(workload, TrainPlan(1, 0, STEPS, None, False), spool, device, probe)
        start = time.process_time()
        loop.run()
        return time.process_time() - start


class Timer(transformers.TrainerCallback):
    """Trainer's loop, between the begin and the end of training."""

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
    timer = Timer()
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
            callbacks=[timer],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return timer.seconds


def main():
    """Pairs, the order alternating; exit 1 over the bound."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # `make bench` runs adapter.py beside it, on the last one
    transformers.logging.set_verbosity_error()
    config = resolved()
    logs, error = [], math.inf
    for number in range(-1, MOST_PAIRS):  # the first one warms up
        seconds = {loop: loop(config) for loop in (ours, theirs)[:: 1 if number % 2 else -1]}
        logs += [math.log(seconds[ours] / seconds[theirs])] * (number >= 0)
        if len(logs) >= PAIRS:
            error = statistics.stdev(logs) / math.sqrt(len(logs))
            if T_975 * error <= HALF_WIDTH:  # where the interval lies does not decide that
                break
    mean = statistics.mean(logs)
    low, ratio, high = (math.exp(mean + k * T_975 * error) for k in (-1, 0, 1))
    print(
        "trainer: faithful / Hugging Face Trainer %.3f [%.3f, %.3f] CPU time over %d pairs of %d steps "
        "(upper bound at most %.2f)" % (ratio, low, high, len(logs), STEPS, BOUND)
    )
    return int(high > BOUND)


if __name__ == "__main__":
    sys.exit(main())
