"""A model with everything that sharding has to keep: ties, buffers, scalars, statistics, odd sizes."""

import os
import signal
import time
import warnings
from typing import Literal

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn import functional

from perennial.contracts.data import Split
from perennial.contracts.section import Section
from perennial.contracts.training import Challenger, CheckpointRecord, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.adapters import base_names, build_adapted_model, is_own
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    Progress,
    commit,
    partial_path,
)
from perennial.engine.export import write_weights
from perennial.engine.task import LABEL, Task, load_task

TASK = "sharded_models:BlocksTask"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.scale = nn.Parameter(torch.tensor(0.5))
        # Held by no checkpoint: it must keep the value that building gave it.
        self.register_buffer("shift", torch.arange(width) / width, persistent=False)

    def forward(self, x):
        return x + self.scale * torch.tanh(self.norm(self.linear(x))) + self.shift


class Blocks(nn.Module):
    def __init__(self, width, reads_weights=False, is_tied=False):
        super().__init__()
        self.input, self.again = nn.Linear(2, width), nn.Linear(2, width)
        self.again.weight = self.input.weight
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        if is_tied:
            self.blocks[1].linear.weight = self.blocks[0].linear.weight
        self.output = nn.Linear(width, 1)
        if reads_weights:
            self.size = float(self.input.weight.detach().norm())

    def forward(self, x):
        x = self.input(x) + self.again(x)
        for block in self.blocks:
            x = block(x)
        return self.output(x).squeeze(1)


class BlocksOptions(Section):
    width: int = 7  # two processes get unequal parts
    reads_weights: bool = False
    is_tied: bool = False
    fails: Literal["", "dies", "raises"] = ""


class BlocksTask(Task):
    Options = BlocksOptions
    kind = "binary"
    scoring_rows = 100

    def encode(self, rows):
        x = torch.from_numpy(rows.select("signal", "noise").to_numpy()).float()
        batch = {"x": x}
        if "label" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["label"].to_numpy().copy()).float()
        return batch

    def build_model(self):
        return Blocks(**self.options.model_dump(exclude={"fails"}))

    def blocks(self, model):
        return list(model.blocks)

    def losses(self, output, batch):
        fails(self.options.fails)
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


def fails(how):
    """In one of several processes: this one goes on, and so do the others, in vain."""
    if how and torch.distributed.is_initialized():
        if torch.distributed.get_rank() == 1 and how == "raises":
            raise ValueError("no such column")
        if torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


def made_model(snapshot, seed=0, **options):
    """A task on the snapshot, and a model with random weights and statistics."""
    task = load_task(TASK, options, snapshot.task_columns)
    task.fit(Dataset(snapshot).scan(Split.TRAIN))
    torch.manual_seed(seed)
    model = task.build_model()
    with torch.no_grad():
        model.input.weight.copy_(torch.tensor([[1.0, 0.1 * seed]]))
        model.output.weight.fill_(0.5 / task.options.width)
        for block in model.blocks:
            block.norm.running_mean.normal_()
            block.norm.running_var.uniform_(0.5, 2.0)
    return task, model.eval()


def made_adapter(snapshot, base, adapter, seed=0, **options):
    """The same beside the weights of `base`, with random matrices."""
    task, plain = made_model(snapshot, seed, **options)
    model = build_adapted_model(task, base, adapter).eval()
    with torch.no_grad():
        for name, own in plain.state_dict().items():
            if name.startswith("output.") or "running" in name:
                model.state_dict()[name].copy_(own)
        for name, each in model.named_parameters():
            if is_own(name):
                each.normal_(std=0.3)
    return task, model


def write_made(folder, snapshot, seed=1, **options):
    """An export of such a model."""
    task, model = made_model(snapshot, seed, **options)
    Challenger(
        task=TASK, options=options, task_state=task.state(), columns=snapshot.task_columns,
        training_fingerprint="f", metric="roc_auc", direction="maximize", chosen_step=1,
        candidates=(), reason="r", diagnosis=(), weights_sha256=write_weights(model, folder),
    ).write(folder)  # fmt: skip


def left_training(folder, snapshot, base=None, adapter=None, **options):
    """Two checkpoints, of which one has a moving average, as a training leaves them."""

    def made(seed):
        if adapter is None:
            return made_model(snapshot, seed, **options)
        return made_adapter(snapshot, base, adapter, seed, **options)

    records = []
    for step in (1, 2):
        task, model = made(step)
        kept = base_names(model, adapter)
        state = {"model": {k: v for k, v in model.state_dict().items() if k not in kept}}
        if step == 2:
            trained = made(3)[1].named_parameters()
            state["averaged"] = {name: each for name, each in trained if name not in kept}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            place = partial_path(folder / "checkpoints", step)
            dcp.save(state, checkpoint_id=place, no_dist=True)
        manifest = CheckpointManifest(
            fingerprint="f", step=step, metrics={}, files={}, progress=Progress(step=step)
        )
        uri = str(commit(folder / "checkpoints", manifest))
        records.append(CheckpointRecord(step=step, uri=uri, metrics={}, kept_as=("best",)))
    TrainingResult(
        fingerprint="f", task=TASK, options=options, columns=task.columns,
        task_state=task.state(), initial=base, adapter=adapter,
        steps=2, world_size=1, strategy="single", num_parameters=3, history=(), evaluations=(),
        checkpoints=tuple(records), seconds=1.0, num_resumes=0,
    ).write(folder / "training")  # fmt: skip
    return folder / "training"
