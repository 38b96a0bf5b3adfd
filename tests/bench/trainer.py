"""The faithful step against Hugging Face's Trainer: same weights' shapes, data, batch, padding and operators.

CPU time of both training loops in interleaved pairs, a step of one and a step of the other, in one process on one
core: a core that changes its speed changes both. Bound: the upper end of the 95 % interval of the ratio (ours over
theirs) at most 1.05.
"""

import math
import os
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from flagbench_cases.cases.distilbert import data as sst2
from flagbench_cases.cases.distilbert.workload import DistilBertWorkload
from flagbench_cases.contract import Context
from flagbench_cases.rank.device import CpuDevice
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.train_loop import Plan, TrainLoop
from flagbench_cases.shared import config as configuration
from flagbench_cases.shared.layout import Layout
from flagbench_cases.shared.spool import RankSpool

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


class Side:
    """One of two loops, in threads, that take turns of a step: the process's CPU time is that of whose turn it is.

    Call `begin` before the first step, `step` at the start of each and `end` after the last. Setting up comes before
    `begin` and taking down after `end`, and neither runs beside a turn.
    """

    def __init__(self, both):
        self.both = both  # a threading.Barrier of two
        self.turn = threading.Semaphore(0)
        self.other = self
        self.ended = False
        self.steps = 0
        self.seconds = 0.0

    def begin(self):
        self.both.wait()
        self._take()

    def step(self):
        if self.steps and not self.other.ended:
            self._give()
            self._take()
        self.steps += 1

    def end(self):
        self.ended = True
        self._give()
        self.both.wait()

    def _take(self):
        self.turn.acquire()
        self.start = time.process_time()

    def _give(self):
        self.seconds += time.process_time() - self.start
        self.other.turn.release()


def ours(config, side):
    """Our loop."""
    device = CpuDevice(0)
    with tempfile.TemporaryDirectory() as folder:
        spool = RankSpool(folder, 0)
        probe = CollectiveProbe(device.clock)
        context = Context(config, device, 0, Layout(), 0, probe, spool, None, None)
        workload = DistilBertWorkload(context)
        workload.setup()
        spool.reserve(STEPS)
        step = workload.step

        def in_turn(batch):
            side.step()
            return step(batch)

        workload.step = in_turn
        loop = TrainLoop(workload, Plan(1, 0, STEPS, None, False), spool, device, probe)
        side.begin()
        loop.run()
        side.end()


class Turns(transformers.TrainerCallback):
    """Trainer's side, between the begin and the end of training."""

    def __init__(self, side):
        self.side = side

    def on_train_begin(self, args, state, control, **kwargs):
        self.side.begin()

    def on_step_begin(self, args, state, control, **kwargs):
        self.side.step()

    def on_train_end(self, args, state, control, **kwargs):
        self.side.end()


class Rows(torch.utils.data.Dataset):
    """The same rows under the names that Trainer expects."""

    def __init__(self, sentences):
        self.sentences = sentences

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        ids, mask, label = self.sentences[index]
        return {"input_ids": ids, "attention_mask": mask, "labels": label}


def theirs(config, side):
    """Trainer's loop."""
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
            callbacks=[Turns(side)],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def take_part(loop, config, side):
    """Run one side; the other does not wait for one that failed."""
    try:
        loop(config, side)
    except threading.BrokenBarrierError:
        pass  # the other one failed, and says why
    except BaseException:
        side.ended = True
        side.both.abort()
        side.other.turn.release()
        raise


def pair(config, first):
    """CPU seconds of our loop and of Trainer's, side by side; `first` (0 or 1) has the first turn."""
    both = threading.Barrier(2)
    sides = Side(both), Side(both)
    sides[0].other, sides[1].other = sides[1], sides[0]
    sides[first].turn.release()
    with ThreadPoolExecutor(2) as threads:
        for loop in [threads.submit(take_part, run, config, side) for run, side in zip((ours, theirs), sides)]:
            loop.result()
    assert [side.steps for side in sides] == [STEPS, STEPS]
    return [side.seconds for side in sides]


def main():
    """Interleaved pairs, the order alternating; exit 1 over the bound."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # `make bench` runs adapter.py beside it, on the last one
    transformers.logging.set_verbosity_error()
    config = resolved()
    pair(config, 0)
    costs = [pair(config, number % 2) for number in range(PAIRS)]
    logs = [math.log(mine / its) for mine, its in costs]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(PAIRS)
    low, ratio, high = (math.exp(mean + k * T_975 * error) for k in (-1, 0, 1))
    print(
        "trainer: faithful / Hugging Face Trainer %.3f [%.3f, %.3f] CPU time over %d interleaved pairs of %d steps "
        "(upper bound at most %.2f)" % (ratio, low, high, PAIRS, STEPS, BOUND)
    )
    return int(high > BOUND)


if __name__ == "__main__":
    sys.exit(main())
