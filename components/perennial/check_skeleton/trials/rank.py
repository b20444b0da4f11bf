"""Rank: one process of a trial. It uses the engine's own parts, in the engine's order."""

import hashlib
import os
import pickle
import shutil
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn.parameter import is_lazy

from perennial.check_skeleton.models import DROPOUTS, run_model, simplify
from perennial.check_skeleton.subject import Subject, generator_states, select_rows
from perennial.check_skeleton.trials.plan import (
    PROBLEM,
    ROWS,
    SAVED_AFTER,
    STEPS,
    Plan,
    Probe,
    RandomnessOff,
    RankRecord,
    StepRecord,
    Trial,
    compute_digest,
    compute_digests,
    find_record_file,
    make_job,
    write_record,
)
from perennial.contracts.user_code import user_code
from perennial.data.executor import end_with_parent
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.data.loader import Loader, RankBatch
from perennial.engine.loop.train import Training, save, update
from perennial.engine.parallelism.parallelize import unwrapped
from perennial.engine.precision import computation
from perennial.engine.reproducibility import derived_seed, seeded_model
from perennial.engine.resilience.rank_output import record_failure
from perennial.engine.task import Task, inputs_of
from perennial.engine.worker import assemble
from perennial.engine.world.distributed import StopSignal, World
from perennial.steps.processes import enter_process

PROBED_ROWS = 16
SWITCHED_ROWS = 8
RENDEZVOUS_SECONDS = 20.0
OUTPUT = "output.txt"
KEPT = (int, float, str, list, tuple, dict, Tensor, np.ndarray)
FRAMEWORK = frozenset(vars(nn.Module()))
SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
ONE_ROUNDING = 1e-7  # of float32 numbers
# An update number that no trial reaches: its random numbers are not used elsewhere.
PROBED_STEP = 1_000_003


def run_rank(plan: Plan, trial: Trial, rank: int) -> None:
    """Run one rank of a trial, write its record, and end this process."""
    # The variables of torchrun, for code that reads them.
    places = {"RANK": rank, "LOCAL_RANK": rank} | dict.fromkeys(SIZES, trial.processes)
    _enter(plan, {name: str(value) for name, value in places.items()})
    code = 1
    try:
        make_task, state = pickle.loads(plan.task)
    except Exception as error:  # importing user code may raise anything
        problem = f"the task cannot be created in another process: {type(error).__name__}: {error}"
        (plan.folder / PROBLEM).write_text(problem)
        os._exit(code)
    try:
        with user_code(f"rank {rank} of a trial"):
            task = make_task()
            task.load_state(state)
            record = _train_and_record(plan, trial, rank, task)
        write_record(find_record_file(plan.folder, trial, rank), record)
        code = 0
    except BaseException as error:  # any error must be reported
        step = find_record_file(plan.folder, trial, rank, "step")
        steps = int(step.read_text() or 0) if step.exists() else 0
        record_failure(make_job(plan.folder, trial), rank, steps, error)
    # Tearing down process groups and their threads may abort a process that has finished.
    os._exit(code)


def join_rendezvous(plan: Plan, rank: int, processes: int) -> None:
    """Add up a number with the other ranks, without any task; write down why that fails."""
    _enter(plan, {})
    code = 1
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{plan.folder / 'rendezvous'}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=RENDEZVOUS_SECONDS),
        )
        total = torch.ones(())
        dist.all_reduce(total)
        code = int(total != processes)
    except Exception as error:  # any error is the reported reason
        problem = f"processes on this machine cannot communicate: {error}"
        (plan.folder / PROBLEM).write_text(" ".join(problem.split())[:250])
    os._exit(code)


def _enter(plan: Plan, variables: Mapping[str, str]) -> None:
    """Set up this process: its own session, the plan's environment, output to a file."""
    enter_process({**plan.environment, **variables}, plan.folder / OUTPUT)
    torch.set_num_threads(1)
    end_with_parent(partial(shutil.rmtree, plan.folder, ignore_errors=True))


def _train_and_record(plan: Plan, trial: Trial, rank: int, task: Task) -> RankRecord:
    folder = plan.folder
    job, data = make_job(folder, trial), EncodedSplit(folder / ROWS)
    job.logs.mkdir(parents=True, exist_ok=True)
    if trial.is_exact and type(task).augment is not Task.augment:
        task.__class__ = type(type(task).__name__, (type(task),), {"augment": Task.augment})
    dist.init_process_group(
        "gloo",
        init_method=f"file://{find_record_file(folder, trial, 0).with_name('rendezvous')}",
        rank=rank,
        world_size=trial.processes,
        timeout=timedelta(seconds=2 * plan.most_seconds),
    )
    world = World(rank, rank, trial.processes, torch.device("cpu")).arrange(trial.training)
    record = RankRecord()
    start = seeded_model(task, trial.training.seed)
    record.initial = compute_digest(start.state_dict())
    record.parameters = frozenset(name for name, _ in start.named_parameters())
    if rank == 0 and trial.is_exact and trial.is_needed:
        whole = start.state_dict().items()
        record.start = {name: each.clone() for name, each in whole if not is_lazy(each)}
    del start
    training = assemble(job, world, StopSignal(), task, data=data, validation=data)
    training.loader = recorded = RecordingLoader(training.loader)
    training.model.train()
    if trial.is_exact:
        switch_dropout_off(training.model)
        if plan.randomness_off == "evaluation":
            simplify(training.model)
    if trial.is_rounded:
        with torch.no_grad():
            for weight in training.model.parameters():
                weight.mul_(1 + ONE_ROUNDING * torch.randn(weight.shape))
    before = digest_attributes(training)
    _train(folder, trial, training, recorded, record)
    after = digest_attributes(training)
    record.drifting = tuple(name for name in after if before.get(name) != after[name])
    # The weights of the unsharded model; all ranks collect them together.
    options = StateDictOptions(full_state_dict=True)
    collected = get_model_state_dict(training.model, options=options)
    weights = {name: value for name, value in collected.items() if isinstance(value, Tensor)}
    record.final = {name: compute_digest({name: value}) for name, value in weights.items()}
    if rank == 0 and trial.is_exact:
        record.weights = weights
    if not trial.is_exact:
        record.probe = _probe(training, data)
        stored = compute_digests(data.gather(np.arange(data.rows)))
        record.twins = len(stored) - len(set(stored))
    return record


def _train(
    folder: Path, trial: Trial, training: Training, loader: "RecordingLoader", record: RankRecord
) -> None:
    rank = training.world.rank
    while training.step < STEPS:
        seed = derived_seed(
            training.section.seed, training.world.layout.random_rank, training.step, 0
        )
        update(training)
        is_kept = torch.initial_seed() == seed
        training.telemetry.log(training.step, training.ratio.measure())
        loss = training.telemetry.progress(training.step).history[-1].loss
        rows, examples = loader.latest
        record.steps.append(StepRecord(training.step, loss, rows, examples, is_kept))
        find_record_file(folder, trial, rank, "step").write_text(str(training.step))
        if training.step == SAVED_AFTER and not trial.is_exact:
            save(training, is_evaluated=False)
            training.checkpointer.wait()


class RecordingLoader(Loader):
    """The engine's loader, which records its latest batch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.latest: tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[str, ...]]

    def batch(self, position: int) -> RankBatch:
        """Return the loader's batch and record it."""
        found = self._loader.batch(position)
        examples = [each for part in found.micro_batches for each in compute_digests(part)]
        self.latest = (found.rows, tuple(examples))
        return found


def _probe(training: Training, data: EncodedSplit) -> Probe:
    """Run one pass over the same rows on every rank, each with its own random numbers."""
    task, world = training.task, training.world
    batch = data.gather(np.arange(min(PROBED_ROWS, data.rows)))
    generator = torch.Generator()
    generator.manual_seed(derived_seed(training.section.seed, world.data_rank, PROBED_STEP, 1))
    augmented = compute_digest(task.augment({n: t.clone() for n, t in batch.items()}, generator))
    training.randomness.begin(PROBED_STEP)
    before = generator_states()
    with torch.no_grad(), computation(training.section, world.device):
        output = training.model(**inputs_of(batch)).float()
        losses = task.training_losses(output, batch)
        is_random = generator_states() != before
        output = simplify(training.model)(**inputs_of(batch)).float()
        without = task.training_losses(output, batch)
    return Probe(
        losses,
        is_random=is_random and not torch.equal(losses, without),
        augmented="" if augmented == compute_digest(batch) else augmented,
    )


def digest_attributes(training: Training) -> dict[str, str]:
    """Return digests of attributes of model and task that no checkpoint contains, by name."""
    owners: dict[str, object] = {"task": training.task}
    model = unwrapped(training.model)
    for path, module in model.named_modules():
        owners[f"model.{path}" if path else "model"] = module
    found: dict[str, str] = {}
    for place, owner in owners.items():
        for name, value in vars(owner).items():
            # With a graph it is of the last pass alone, as an auxiliary loss is.
            is_passing = isinstance(value, Tensor) and value.grad_fn is not None
            if name not in FRAMEWORK and isinstance(value, KEPT) and not is_passing:
                found[f"{place}.{name}"] = _digest_value(value)
        if isinstance(owner, nn.Module):
            for name in owner._non_persistent_buffers_set:
                if (buffer := owner._buffers.get(name)) is not None:
                    found[f"{place}.{name} (persistent=False)"] = _digest_value(buffer)
    return found


def _digest_value(value: object) -> str:
    if isinstance(value, Tensor):
        return compute_digest({"": value.detach().float()})
    content = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    return hashlib.sha256(content).hexdigest()


def find_randomness_switch(subject: Subject) -> RandomnessOff:
    """Find the smallest change that keeps a pass from drawing random numbers."""
    model, batch = subject.build_model(), select_rows(subject.train, slice(SWITCHED_ROWS))
    model.train()
    switch_dropout_off(model)
    for way in ("dropout", "evaluation"):
        before = generator_states()
        subject.task.training_losses(run_model(model, batch), batch)
        if generator_states() == before:
            return way
        simplify(model)
    return "noise"


def switch_dropout_off(model: nn.Module) -> None:
    """Switch the dropout layers of a model off; all else stays as in training."""
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.p = 0.0
