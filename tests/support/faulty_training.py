"""The tiny training with faults that its ranks commit against themselves, while they train."""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from perennial.engine.job import TrainingJob
from perennial.engine.task import LABEL
from tiny_training import TinyOptions, TinyTask, tiny_job

FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


class FaultyOptions(TinyOptions):
    trouble: Literal[
        "", "kill", "kill in files", "slow files", "hang", "slow data", "slow forward", "slow backward",
        "bad gradient", "bad loss", "bad input",
    ] = ""  # fmt: skip
    trouble_rank: int = 0
    """-1 means every rank."""
    trouble_from: int = 0
    """The training forward pass, or the event in the files, from which on it strikes."""
    trouble_until: int = 10**9
    seconds: float = 0.0
    poison: tuple[float, ...] = ()
    """Labels of rows whose loss is a hundred times too large."""
    trace: str = ""
    """A file per rank to which a digest of every batch is written."""


class FaultyTask(TinyTask):
    Options = FaultyOptions

    def __init__(self, options, columns):
        super().__init__(options, columns)
        self.file_events = 0
        self.batches = 0
        if options.trouble == "kill in files" and self.strikes(now=0, at=0):
            sys.addaudithook(self.die_in_files)
        if options.trouble == "slow files":
            sys.addaudithook(self.wait_in_files)

    def die_in_files(self, event, arguments):
        """Kill this process right before it touches the checkpoints for the n-th time."""
        if event in FILE_EVENTS and "/checkpoints/" in str(arguments[0]):
            if self.file_events == self.options.trouble_from:
                os.kill(os.getpid(), signal.SIGKILL)
            self.file_events += 1

    def wait_in_files(self, event, arguments):
        """Make the commit of every checkpoint slow, which is a rename."""
        if event == "os.rename" and str(arguments[0]).endswith(".partial"):
            time.sleep(self.options.seconds)

    def strikes(self, now=None, at=None):
        options = self.options
        if options.trouble_rank not in (-1, int(os.environ["RANK"])):
            return False
        if options.once and Path(options.once).exists():
            return False
        now, at = self.calls if now is None else now, options.trouble_from if at is None else at
        return at <= now < options.trouble_until

    def augment(self, batch, generator):
        if self.options.trouble == "slow data" and self.strikes():
            time.sleep(self.options.seconds)
        if self.options.trouble == "bad input" and self.strikes(now=self.batches):
            batch["x"] = torch.full_like(batch["x"], float("nan"))
        self.batches += 1
        return batch

    def losses(self, output, batch):
        if not torch.is_grad_enabled() or output.is_meta:
            return super().losses(output, batch)
        options = self.options
        if options.trace:
            self.trace(batch)
        if options.trouble in ("kill", "hang", "slow forward") and self.strikes():
            if options.once:
                Path(options.once).touch()
            if options.trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(options.seconds)
        backward = options.trouble in ("slow backward", "bad gradient") and self.strikes()
        if backward:
            output = Backward.apply(output, options.trouble, options.seconds)
        is_bad = options.trouble == "bad loss" and self.strikes()
        losses = super().losses(output, batch)
        if options.poison:
            is_poison = torch.isin(batch[LABEL], torch.tensor(options.poison))
            losses = torch.where(is_poison, losses * 100 + 100, losses)
        return losses * float("nan") if is_bad else losses

    def trace(self, batch):
        digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in batch.values()))
        with Path(f"{self.options.trace}-{dist.get_rank()}").open("a") as file:
            file.write(f"{digest.hexdigest()}\n")


class Backward(torch.autograd.Function):
    """The identity; its backward pass is slow or gives infinity."""

    @staticmethod
    def forward(context, value, trouble, seconds):
        context.trouble, context.seconds = trouble, seconds
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        if context.trouble == "bad gradient":
            return gradient * float("inf"), None, None
        time.sleep(context.seconds)
        return gradient, None, None


def faulty_job(root: Path, options: FaultyOptions | None = None, **changes) -> TrainingJob:
    """A tiny job whose task has these faults."""
    job = tiny_job(root, options=options or FaultyOptions(), **changes)
    model = job.model.model_copy(update={"task": "faulty_training:FaultyTask"})
    return job.model_copy(update={"model": model})


def traced(prefix: Path, rank: int) -> list[str]:
    """Digests of the batches that a rank has computed, over all attempts."""
    return Path(f"{prefix}-{rank}").read_text().split()
