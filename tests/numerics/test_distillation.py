"""A training that learns from teachers is the same on any processes, and after a signal."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.config.distillation import Distillation
from perennial.engine.data.batching import GlobalOrder
from perennial.engine.data.block_cache import load_block
from perennial.engine.initial_weights import read_weights
from perennial.engine.reproducibility import seeded_model
from perennial.engine.task import ANSWERS, LABEL, load_task
from taught import pinned, teachers_of
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    tiny_job,
    weights,
    with_options,
    write_partitions,
)

REGRESSION, CLASSES = "tiny_training:TinyTask", "taught:TinyClasses"
STUDENT = TinyOptions(width=5)


def of_task(job, task):
    return job.model_copy(update={"model": job.model.model_copy(update={"task": task})})


@pytest.fixture(scope="module")
def teachers(root):
    """Task → two teachers, wider than the student and with dropout; each kind is trained once."""

    @cache
    def make(task):
        wide = TinyOptions(dropout=0.2)
        result = finished(of_task(tiny_job(root, strategy="single", options=wide), task))
        steps = [record.step for record in result.checkpoints][-2:]
        models = [
            load_checkpoint_model(each.uri, result)
            for each in result.checkpoints
            if each.step in steps
        ]
        members = [
            pinned(root / "store", own, model.state_dict(), number)
            for number, (own, model) in enumerate(models, start=1)
        ]
        return teachers_of(*members)

    return make


@pytest.fixture
def taught(root, teachers):
    """A job that learns from them."""

    def make(task, *, options=STUDENT, weight=0.7, **changes):
        known = teachers(task)
        temperature = 3.0 if task == CLASSES else None
        distillation = Distillation(teachers=known.asked, weight=weight, temperature=temperature)
        job = tiny_job(root, options=options, distillation=distillation, **changes)
        return of_task(job, task).model_copy(update={"teachers": known})

    return make


@pytest.mark.parametrize("task_path", [REGRESSION, CLASSES])
def test_an_update_is_that_of_plain_pytorch(taught, task_path):
    """Teachers in evaluation mode and apart from the graph; softened means; the squared factor."""
    sgd = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "nesterov": False}
    job = taught(
        task_path, strategy="single", micro_batch_size=32, steps=1, evaluate_every_steps=1,
        log_every_steps=1, optimizer=sgd, clipping={"method": "none"},
        schedule={"shape": "constant", "warmup_fraction": 0.0},
    )  # fmt: skip
    result = finished(job)
    snapshot = Snapshot.read(Path(job.snapshot))
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    rows = Dataset(snapshot).scan(Split.TRAIN)
    task.fit(rows)
    data, model = task.encode(rows.collect()), seeded_model(task, job.training.seed)
    first = torch.from_numpy(GlobalOrder(len(data[LABEL]), job.training.seed).indices(0, 32))
    x, label = data["x"][first], data[LABEL][first]
    outputs = [load_version(each)(x).detach() for each in job.teachers.members]
    output = model(x)
    if task_path == REGRESSION:
        hard = (output.squeeze(-1) - label).square()
        soft = (output.squeeze(-1) - torch.stack(outputs).mean(0).squeeze(-1)).square()
    else:
        hard = functional.cross_entropy(output, label, reduction="none")
        mean = torch.stack([(each / 3).softmax(-1) for each in outputs]).mean(0)
        soft = 9 * (mean * (mean.log() - (output / 3).log_softmax(-1))).sum(-1)
    (0.3 * hard + 0.7 * soft).mean().backward()
    expected = {name: value.detach() - 0.1 * value.grad for name, value in model.named_parameters()}
    assert largest_difference(weights(result), expected) < 1e-6
    # Curves mean the same with and without teachers.
    assert result.history[0].loss == pytest.approx(hard.mean().item(), rel=1e-6)
    assert result.teachers == job.teachers


def load_version(member):
    """A teacher's model, by plain PyTorch."""
    former = member.former
    task = load_task(former.task, former.options, former.columns)
    model = task.build_model().eval()
    model.load_state_dict(read_weights(member))
    return model


@pytest.mark.parametrize(
    ("task", "strategy"),
    [
        (CLASSES, "fsdp"),
        pytest.param(REGRESSION, "ddp", marks=pytest.mark.full),
        pytest.param(CLASSES, "single", marks=pytest.mark.full),
    ],
)
def test_trainings_resume_bit_for_bit(taught, task, strategy):
    processes = 1 if strategy == "single" else 2
    changes = {"strategy": strategy, "processes": processes}
    noisy = TinyOptions(width=5, dropout=0.2)
    straight = finished(taught(task, options=noisy, **changes))
    job = taught(task, options=noisy, **changes)
    stopping = noisy.model_copy(update={"fault": "terminate", "fault_call": 16})
    assert run_ranks(with_options(job, stopping)) == [75] * processes
    resumed = finished(with_options(job, noisy))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    require_same_evaluations(straight, resumed)


def test_all_strategies_train_the_same(taught):
    """Losses to 1e-6; `ddp` and `fsdp` bit for bit."""

    def run(strategy):
        return finished(taught(CLASSES, strategy=strategy, log_every_steps=1))

    single, ddp, fsdp = map(run, ("single", "ddp", "fsdp"))
    assert largest_difference(weights(ddp), weights(fsdp)) == 0.0
    for one, other in zip(single.history, fsdp.history, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)


def test_answers_are_computed_once_and_again_if_they_are_damaged(taught):
    job = taught(CLASSES, strategy="single")
    first = finished(job)
    (stored,) = (job.root / "common" / "answers").iterdir()
    before = stored.read_bytes()
    stored.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    again = job.model_copy(
        update={"folder": f"{job.folder}-again", "common": str(job.root / "common")}
    )
    Path(again.folder).mkdir()
    assert largest_difference(weights(first), weights(finished(again))) == 0.0
    assert "computed again" in (again.root / "logs" / "rank-0.log").read_text()
    assert stored.read_bytes() == before


def test_streamed_rows_have_the_answers_of_the_same_rows(taught):
    """Resident and streamed rows have one order, by which answers are found."""
    answers = []
    for mode in ("resident", "streaming"):
        job = taught(CLASSES, strategy="single", steps=1, loading={"mode": mode})
        finished(job)
        (stored,) = (job.root / "common" / "answers").iterdir()
        answers.append(np.frombuffer(stored.read_bytes()[-1000:], np.uint8))
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("first", [1, 150], ids=["one row first", "many rows first"])
def test_the_unit_of_a_teacher_does_not_depend_on_the_first_row_group(tmp_path, first):
    """One label would fit any unit."""
    snapshot = Snapshot.read(write_partitions(tmp_path, [first, 150]))
    rows = Dataset(snapshot).scan(Split.TRAIN).collect()
    assert first > 1 or rows["id"][0] == 0, "the row is not of the training split"
    teacher = load_task("taught:TinyStandardised", {}, snapshot.task_columns)
    teacher.load_state({"mean": 3.0, "spread": 4.0})
    model = teacher.build_model()
    member = pinned(tmp_path / "store", teacher, model.state_dict())
    known = teachers_of(member)
    distillation = Distillation(teachers=known.asked)
    settings = {"steps": 1, "strategy": "single", "loading": {"mode": "streaming"}}
    job = of_task(
        tiny_job(tmp_path, distillation=distillation, **settings), "taught:TinyStandardised"
    )
    job = job.model_copy(update={"teachers": known})
    result = finished(job)
    (stored,) = (job.root / "common" / "answers").iterdir()
    answers = load_block(stored)[ANSWERS]
    with torch.no_grad():
        own = model.eval()(teacher.encode(rows)["x"]).squeeze(-1)
    spread, mean = result.task_state["spread"], result.task_state["mean"]
    expected = (own * 4.0 + 3.0 - mean) / spread
    torch.testing.assert_close(answers, expected, rtol=1e-4, atol=1e-4)


def test_a_training_whose_teachers_were_lost_does_not_start(taught):
    job = taught(REGRESSION, strategy="single").model_copy(update={"teachers": None})
    assert run_ranks(job) == [1]
    assert "no teacher has answered" in (job.logs / "rank-0.log").read_text()


def test_a_first_training_without_champion_learns_from_labels_alone(root, taught):
    job = taught(REGRESSION, strategy="single")
    none = job.teachers.model_copy(update={"members": ()})
    plain = finished(tiny_job(root, options=STUDENT, strategy="single"))
    alone = finished(job.model_copy(update={"teachers": none}))
    assert largest_difference(weights(plain), weights(alone)) == 0.0
