"""The engine computes what forty plain lines of PyTorch compute, however it is sharded."""

from pathlib import Path

import pytest
import torch

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.data.batching import GlobalOrder
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.task import LABEL, load_task
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    tiny_job,
    weights,
)


def plain_training(job):
    """Raw PyTorch: no engine but the order of the rows."""
    section = job.training
    snapshot = Snapshot.read(Path(job.snapshot))
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    train = Dataset(snapshot).scan(Split.TRAIN)
    task.fit(train)
    data = task.encode(train.collect())
    order = GlobalOrder(len(data[LABEL]), section.seed)
    torch.manual_seed(section.seed)
    model = task.build_model()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    if section.optimizer.name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    else:
        optimizer = torch.optim.AdamW(groups, lr=3e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / section.steps)
    losses, norms = [], []
    for step in range(section.steps):
        rows = order.indices(step * section.global_batch_size, section.global_batch_size)
        batch = {name: tensor[torch.from_numpy(rows)] for name, tensor in data.items()}
        loss = (model(batch["x"]).squeeze(-1) - batch[LABEL]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item())
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return model, losses, norms


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_single_process_equals_plain_pytorch(root, optimizer):
    from perennial.engine.config.optimization import AdamW, Linear, Sgd

    job = tiny_job(
        root, strategy="single", micro_batch_size=32, clipping={"method": "none"}, log_every_steps=1,
        schedule=Linear(shape="linear", warmup_fraction=0.0),
        optimizer=AdamW() if optimizer == "adamw" else Sgd(name="sgd"),
    )  # fmt: skip
    result = finished(job)
    model, losses, norms = plain_training(job)
    assert largest_difference(weights(result), model.state_dict()) == 0.0
    assert [point.loss for point in result.history] == pytest.approx(losses, rel=1e-6)
    assert [point.gradient_norm for point in result.history] == pytest.approx(norms, rel=1e-6)


def test_the_learning_rate_enters_the_update(root):
    from perennial.engine.config.optimization import AdamW

    slow = finished(tiny_job(root, strategy="single"))
    fast = finished(tiny_job(root, strategy="single", optimizer=AdamW(learning_rate=1e-3)))
    assert largest_difference(weights(slow), weights(fast)) > 1e-3


@pytest.mark.parametrize(
    ("options", "micro_batch_size"),
    [
        (TinyOptions(), 16),
        (TinyOptions(), 4),
        (TinyOptions(dropout=0.3), 8),
        (TinyOptions(batch_norm=True), 16),
    ],
    ids=["plain", "accumulating", "dropout", "batch norm"],
)
def test_sharded_and_replicated_are_bit_identical(root, options, micro_batch_size):
    sharded, replicated = (
        finished(
            tiny_job(root, options=options, micro_batch_size=micro_batch_size, strategy=strategy)
        )
        for strategy in ("fsdp", "ddp")
    )
    assert largest_difference(weights(sharded), weights(replicated)) == 0.0
    require_same_evaluations(sharded, replicated)
    assert [point.loss for point in sharded.history] == [point.loss for point in replicated.history]
    assert max(point.gradient_norm for point in sharded.history) > 0.5, "clipping took part"


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        ({"strategy": "fsdp"}, 2),
        ({"strategy": "ddp"}, 2),
        ({"strategy": "fsdp", "micro_batch_size": 8}, 4),
    ],
    ids=["fsdp 2", "ddp 2", "fsdp 4"],
)
def test_more_processes_compute_the_same(root, changes, processes):
    alone = finished(tiny_job(root, strategy="single"))
    together = finished(tiny_job(root, processes=processes, **changes))
    assert largest_difference(weights(alone), weights(together)) <= 1e-6
    for one, many in zip(alone.evaluations, together.evaluations, strict=True):
        assert many.metrics == pytest.approx(one.metrics, abs=1e-6)
        assert many.train_loss == pytest.approx(one.train_loss, abs=1e-6)


@pytest.mark.parametrize("micro_batch_size", [1, 4, 16])
def test_accumulation_equals_one_large_batch(root, micro_batch_size):
    large = finished(tiny_job(root, strategy="single", micro_batch_size=32))
    small = finished(tiny_job(root, strategy="single", micro_batch_size=micro_batch_size))
    assert largest_difference(weights(large), weights(small)) <= 1e-6


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_bfloat16_stays_close_and_is_really_used(root, strategy):
    full = finished(tiny_job(root, strategy=strategy))
    half = finished(tiny_job(root, strategy=strategy, precision="bf16"))
    assert all(tensor.dtype == torch.float32 for tensor in weights(half).values())
    assert 0.0 < largest_difference(weights(full), weights(half)) < 0.01
    assert half.evaluations[-1].metrics["loss"] == pytest.approx(
        full.evaluations[-1].metrics["loss"], rel=0.02
    )


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_evaluation_during_training_equals_a_full_evaluation_afterwards(root, processes):
    result = finished(
        tiny_job(
            root,
            processes=processes,
            global_batch_size=48,
            micro_batch_size=8,
            evaluation_rows=None,
        )
    )
    for record in result.checkpoints:
        task, model = load_checkpoint_model(Path(record.uri), result)
        dataset = Dataset(Snapshot.read(root / "snapshot"))
        full = score_split(task, model, dataset, Split.VALIDATION).metrics(task)
        assert record.metrics == pytest.approx(full, rel=1e-6)


def test_two_runs_are_identical(root):
    first, second = (finished(tiny_job(root, options=TinyOptions(dropout=0.2))) for _ in range(2))
    assert largest_difference(weights(first), weights(second)) == 0.0


def test_another_seed_gives_another_model(root):
    first, second = (finished(tiny_job(root, strategy="single", seed=seed)) for seed in (1, 2))
    assert largest_difference(weights(first), weights(second)) > 1e-3


def test_bfloat16_under_fsdp_trains_batch_normalisation_too(root):
    half = finished(tiny_job(root, options=TinyOptions(batch_norm=True), precision="bf16"))
    assert half.steps == 20
