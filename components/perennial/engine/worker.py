"""Worker: one rank of a training, started by the local launcher, or by torchrun.

    torchrun --standalone --nproc-per-node 2 -m perennial.engine.worker JOB.json
    torchrun -m perennial.engine.worker s3://bucket/…/job.json   # PET_ variables contain the rest

Ends with 0 when the training is finished and its result written, with 75 when a signal stopped it
at a checkpoint, and with 1 after writing `errors/rank-N.json`.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from perennial.clients.outages import waiting_out_outages
from perennial.contracts.data import Split
from perennial.contracts.environment import leave_tracking_run
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.contracts.user_code import (
    no_silent_exit,
    user_code,
)
from perennial.engine.adapters import build_starting_model
from perennial.engine.checkpoints.checkpointer import Checkpointer, newest_step
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.answers import prepare_answers
from perennial.engine.data.batching import BatchPlan, GlobalOrder
from perennial.engine.data.encoded import EncodedRows, EncodedSplit, encoded, prepare_data
from perennial.engine.data.loader import Loader
from perennial.engine.data.preparation import choose_mode, stream_data
from perennial.engine.data.streamed import StreamedLoader, StreamedSplit
from perennial.engine.evaluation.resampling import direction_of
from perennial.engine.evaluation.sampled import SampledEvaluation
from perennial.engine.handover import (
    announce_end,
    announce_rendezvous,
    keep_result,
    load_decision,
    receive_job,
    sending_curves,
)
from perennial.engine.job import EXIT_INTERRUPTED, PassSize, TrainingJob
from perennial.engine.loop.telemetry import Instruments, SpeedUnits, Telemetry
from perennial.engine.loop.train import Training, train
from perennial.engine.memory.plan import plan_strategy, stored_plan
from perennial.engine.optimization.averaging import AveragedWeights
from perennial.engine.optimization.clipping import Clipper
from perennial.engine.optimization.optimizer import build_optimizer
from perennial.engine.optimization.parameters import freeze
from perennial.engine.parallelism.context import own_sequences
from perennial.engine.parallelism.normalization import normalized
from perennial.engine.parallelism.parallelize import (
    parallelize,
    share_optimizer_state,
    unwrapped,
    warm_up_buckets,
)
from perennial.engine.parallelism.pipeline import Pipeline, build_pipeline, num_parameters
from perennial.engine.precision import choose_kernels
from perennial.engine.profiling.dimensions import find_odd_dimensions
from perennial.engine.profiling.flops import flops_per_example
from perennial.engine.profiling.profiler import Profiler
from perennial.engine.reproducibility import make_deterministic
from perennial.engine.resilience.guard import Guard
from perennial.engine.resilience.rank_output import record_failure, start_logging
from perennial.engine.resilience.stragglers import StragglerProbe
from perennial.engine.resilience.unattended import ending_unattended
from perennial.engine.resilience.watchdog import Watchdog
from perennial.engine.simplified import list_turned_off, turn_off_dropout
from perennial.engine.task import Task, inputs_of, load_task
from perennial.engine.world.distributed import (
    StopSignal,
    World,
    rank_of_this_process,
)
from perennial.steps.lease import follow_lease
from perennial.steps.processes import name_process

logger = logging.getLogger(__name__)


def main() -> int:
    """Run the job named on the command line as one of its ranks; returns the exit code."""
    gc.freeze()  # what was imported stays; a rank that visits it lets all others wait
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        # A process of the fork server has imported PyTorch before it got this environment.
        torch.set_num_threads(int(threads))
    with waiting_out_outages():
        return run(receive_job(sys.argv[1]))


def run(job: TrainingJob) -> int:
    """Run a job as one of its ranks; returns the exit code."""
    follow_lease()
    rank = rank_of_this_process()
    name_process(f"rank-{rank}")
    if rank > 0:
        leave_tracking_run()
    start_logging(job, rank)
    stop = StopSignal()
    # This early, so that a signal during the preparation counts at the first update.
    stop.listen()
    training: Training | None = None
    try:
        with no_silent_exit(), user_code(f"rank {rank}"):
            world = World.join().arrange(job.training)
            if rank == 0:
                announce_rendezvous(job)
            assemble_stage = build(job, world, stop)
            training = assemble_stage()
            with sending_curves(job, rank), ending_unattended(job, rank):
                is_finished = train(training)
                while is_finished and training.step < training.section.steps:
                    # Each stage is built from its checkpoint, as after an interruption: which
                    # parameters are frozen is settled before the model is sharded.
                    end_stage(training)
                    training = assemble_stage()
                    is_finished = train(training)
            end(job, training, is_finished=is_finished)
    except BaseException as error:  # any exception must be reported
        logger.exception("rank=%d failed", rank)
        # Before the write in flight is waited for, which may take as long as an upload.
        record_failure(job, rank, training.step if training else 0, error)
        if training:
            training.checkpointer.settle()
        return 1
    logger.info("rank=%d step=%d finished=%s", rank, training.step, is_finished)
    return 0 if is_finished else EXIT_INTERRUPTED


def end_stage(training: Training) -> None:
    """Finish the checkpoint that the next stage starts from, as a resumed training does."""
    training.checkpointer.wait()
    training.instruments.watchdog.close()
    training.loader.close()


def end(job: TrainingJob, training: Training, *, is_finished: bool) -> None:
    """Write the last checkpoint and, where the training is finished, its result."""
    training.instruments.watchdog.begin("checkpoint", training.step)
    if is_finished:
        training.checkpointer.close()
    training.checkpointer.wait()
    training.instruments.watchdog.close()
    # Gathered, so that nothing is announced before every rank has come this far.
    ranks = training.world.to_first(training.world.rank)
    if ranks is not None:
        write_result(job, training) if is_finished else job.interrupted.touch()
        announce_end(job, ranks, is_finished=is_finished)
    training.world.barrier()


def build(job: TrainingJob, world: World, stop: StopSignal) -> Callable[[], Training]:
    """Prepare a job: fit the task and encode the data; return what builds the training loop."""
    snapshot = Snapshot.read(Path(job.snapshot))
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    is_streamed = choose_mode(job, world, snapshot)
    data: EncodedRows
    validation: EncodedSplit
    if is_streamed:
        data, validation = stream_data(job, world, task, snapshot)
    else:
        prepare_data(job, world, task, snapshot)
        data, validation = (
            EncodedSplit(encoded(job, split)) for split in (Split.TRAIN, Split.VALIDATION)
        )
    if job.teachers is not None and job.teachers.members:
        data.answers = prepare_answers(job, world, task, snapshot, streamed=is_streamed)
    elif job.teachers is not None:  # there is no champion yet
        alone = job.training.model_copy(update={"distillation": None})
        job = job.model_copy(update={"training": alone})
    plain, turned_off = simplify(job, task)

    def assemble_stage() -> Training:
        training = assemble(plain, world, stop, task, data=data, validation=validation)
        section, plan = training.section, training.loader.plan
        training.turned_off = turned_off
        training.hints = find_odd_dimensions(training.model, section, world.device, plan)
        for hint in training.hints:
            logger.warning("%s", hint)
        return training

    return assemble_stage


def simplify(job: TrainingJob, task: Task) -> tuple[TrainingJob, tuple[str, ...]]:
    """Return the job as it is trained, and what `training.simplified` turns off."""
    section = job.training
    if not section.simplified:
        return job, ()
    model = build_starting_model(task, section, job.initial)
    turned_off = tuple(list_turned_off(task, model, section))
    logger.warning("training.simplified turns off: %s", "; ".join(turned_off) or "nothing")
    return job.model_copy(update={"training": section.without_extras()}), turned_off


def assemble(
    job: TrainingJob,
    world: World,
    stop: StopSignal,
    task: Task,
    *,
    data: EncodedRows,
    validation: EncodedSplit,
) -> Training:
    """Build the training loop, in the state of the newest checkpoint."""
    choose_kernels(job.training, world.device)
    make_deterministic(enabled=job.training.deterministic)
    section = job.training
    if section.strategy == "auto":
        section = plan_strategy(job, world, task, data)
    # The stage of the checkpoint decides which parameters are frozen before they are sharded.
    start = newest_step(job, world) if section.stages else 0
    model = initial_model(task, data, section, world, initial=job.initial, step=start)
    names = model.whole if isinstance(model, Pipeline) else ()
    is_staged = isinstance(model, Pipeline)
    optimizer = build_optimizer(
        model, section, names, lambda: () if is_staged else task.blocks(unwrapped(model))
    )
    share_optimizer_state(optimizer, section, world)
    averaged = AveragedWeights(model, section.averaging) if section.averaging else None
    name = section.metric or next(iter(task.metrics), "loss")
    metric = name, direction_of(task, name, "training.metric")
    checkpointer = Checkpointer(job, metric, world, section, averaged)
    progress = checkpointer.restore(model, optimizer)
    loader = build_loader(task, data, section, world)
    curves, units = job.logs / "metrics.jsonl", speed_units(task, data, section)
    telemetry = Telemetry(section, world, progress, curves, units)
    return Training(
        section=section,
        world=world,
        task=task,
        loader=loader,
        model=model,
        optimizer=optimizer,
        averaged=averaged,
        clipper=Clipper(section.clipping, progress.gradient_norms, world.device),
        guard=Guard.resume(section, progress),
        evaluate=SampledEvaluation(task, validation, section, world),
        checkpointer=checkpointer,
        telemetry=telemetry,
        instruments=Instruments(
            Watchdog(section.watchdog, job, world),
            Profiler(section.profile, job.logs, world.rank, telemetry, loader.encoding),
            StragglerProbe(section.stragglers, world, progress.collective_waits),
        ),
        errors=job.errors,
        stop=stop,
        step=progress.step,
        data_offset=progress.data_offset,
    )


def speed_units(task: Task, data: EncodedRows, section: TrainingSection) -> SpeedUnits:
    """Count what an example consists of."""
    # Two rows, because batch normalisation refuses one.
    batch = data.gather(np.arange(min(data.rows, 2)))
    tokens = batch[task.tokens][0].numel() if task.tokens in batch else None
    return SpeedUnits(flops_per_example(task, batch, section), tokens)


def build_loader(task: Task, data: EncodedRows, section: TrainingSection, world: World) -> Loader:
    """Return the loader of this rank's part of the training rows.

    Raises:
        PerennialError: batches cannot be pinned for a device that needs no pinning, or the task
            needs the global batch in one pass and divided by rows alone, or there are no answers to
            learn from.
    """
    if (section.distillation is None) != (data.answers is None):
        raise PerennialError(
            "training.distillation is set, but no teacher has answered"
            if data.answers is None
            else "teachers have answered, but training.distillation is not set",
            action="start the training through `train_model`, which hands the teachers on",
        )
    plan = BatchPlan(section.global_batch_size, section.micro_batch_size, world.data_size)
    logger.info(plan.describe())
    if task.needs_whole_batch and plan.accumulation_steps > 1:
        raise PerennialError(
            f"the loss of {type(task).__name__} compares the rows of a global batch, but its "
            f"{plan.accumulation_steps} passes are computed separately",
            evidence=plan.describe(),
            action="set training.micro_batch_size >= "
            f"{-(-section.global_batch_size // world.data_size)} or training.global_batch_size <= "
            f"{section.micro_batch_size * world.data_size}; `training.memory` makes room",
        )
    if task.needs_whole_batch and world.data_size < world.size:
        raise PerennialError(
            f"the loss of {type(task).__name__} compares the rows of all processes, of which "
            "training.parallelism gives several the same rows",
            evidence=f"{world.size} processes share {world.data_size} parts of a batch",
            action="remove the tensor, context and pipeline sizes from [training.parallelism]",
        )
    is_gpu = world.device.type == "cuda"
    if section.loading.pin_memory and not is_gpu:
        raise PerennialError(
            "training.loading.pin_memory = true, but this process runs on a CPU",
            action="remove it: pinned memory is what a GPU copies from",
        )
    rank, seed, loading = world.data_rank, section.seed, section.loading.on(world.device.type)
    augments = not section.simplified
    if isinstance(data, StreamedSplit):
        total = world.sum_data
        return StreamedLoader(
            task, data, plan, rank, seed=seed, loading=loading, total=total, augments=augments
        )
    order = GlobalOrder(data.rows, seed)
    return Loader(task, data, order, plan, rank, seed=seed, loading=loading, augments=augments)


def initial_model(
    task: Task,
    data: EncodedRows,
    section: TrainingSection,
    world: World,
    *,
    initial: InitialModel | None = None,
    step: int = 0,
) -> nn.Module:
    """Build the same initial model on every rank, parallelized and ready for the update `step`."""
    model = build_starting_model(task, section, initial)
    if section.simplified:
        turn_off_dropout(model)
    model = normalized(model, section, world)
    freeze(model, section, step)
    if section.parallelism.pipeline > 1:
        return build_pipeline(
            model,
            task,
            section,
            world,
            inputs=inputs_of(data.gather(np.arange(1))),
            shard=partial(parallelize, task=task, training=section, world=world),
        )
    # Two rows, because batch normalisation refuses one.
    batch = data.gather(np.arange(min(data.rows, section.micro_batch_size, 2)))
    (batch,) = own_sequences([batch], task, world.layout)
    model = parallelize(model, task, section, world, inputs_of(batch))
    warm_up_buckets(model, inputs_of(batch), section, world.device)
    return model


def write_result(job: TrainingJob, training: Training) -> None:
    """Write the result; its presence means that the training is finished."""
    progress = training.telemetry.progress(training.step)
    size = load_decision(job, PassSize)
    TrainingResult(
        fingerprint=job.fingerprint,
        task=job.model.task,
        options=job.model.options,
        columns=training.task.columns,
        task_state=training.task.state(),
        initial=job.initial,
        adapter=training.section.adapter,
        teachers=job.teachers,
        steps=training.step,
        world_size=training.world.size,
        strategy=training.section.strategy,
        parts=training.checkpointer.parts,
        memory_plan=stored_plan(job),
        num_parameters=num_parameters(training.model),
        history=progress.history,
        evaluations=progress.evaluations,
        checkpoints=training.checkpointer.records(),
        seconds=progress.seconds,
        num_resumes=progress.num_resumes,
        num_skipped=training.guard.skipped,
        num_rescaled=training.guard.scale.halvings,
        num_rewinds=training.guard.rewinds,
        halvings=size.halvings if size else (),
        signals=training.telemetry.signals,
        hints=training.hints,
        watched=training.evaluate.watched(),
        turned_off=training.turned_off,
        collective_waits=training.instruments.stragglers.samples,
        bottleneck=training.instruments.profiler.bottleneck,
    ).write(job.root)
    keep_result(job)


if __name__ == "__main__":
    exit_code = main()
    # Tearing down process groups and their threads now and then aborts a finished process; all
    # that matters is on disk.
    logging.shutdown()
    os._exit(exit_code)
