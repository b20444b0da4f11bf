"""Pipeline: the blocks of a model divided over processes that work on different micro-batches.

A stage is the whole model in which the parts of all others pass their input on. It runs the model's
own `forward`, and its parameters keep the names that they have in the whole model.

Every process of a pipeline loads the same rows: the first stage needs the inputs, the last one the
labels, and the micro-batches of an update are what keeps all of them busy.
"""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.low_bits import low_bit_layers
from perennial.engine.parallelism.plan import Passthrough, checked_plan, matching
from perennial.engine.task import LABEL, WEIGHT, Batch, ParallelPlan, Task, inputs_of, to_device
from perennial.engine.world.distributed import World

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import _PipelineSchedule
    from torch.distributed.pipelining.stage import _PipelineStageBase

LossesOf = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]
"""Output of the model and its micro-batch → the loss of each example, times its weight: the one
that is reported, and the one that is differentiated."""


class Pipeline(nn.Module):
    """This process's stages of a model, under the names that their parts have in the whole.

    Its parameters, buffers and state are those of the stages here; all processes of a pipeline
    together have the whole model's.

    Attributes:
        whole: Size of each of the whole model's parameters, by name.

    Args:
        shard: Brings a stage to the device and shards it over the processes that hold the same.
    """

    def __init__(
        self,
        model: nn.Module,
        stages: Mapping[str, int],
        training: TrainingSection,
        world: World,
        shard: Callable[[nn.Module], nn.Module],
    ) -> None:
        super().__init__()
        num_passes = check_passes(training, world.data_size)
        self.whole = {name: value.numel() for name, value in model.named_parameters()}
        layout = world.layout
        self._group = layout.mesh["pipeline"].get_group()
        self._place, self._num_places = layout.place["pipeline"], layout.size("pipeline")
        self._device = world.device
        self._first_input = first_input(model)
        self._num_stages = max(stages.values()) + 1
        here = range(self._place, self._num_stages, self._num_places)
        for name, child in cut(model, stages, here).named_children():
            self.add_module(name, child)
        # In a dictionary, not as children: their parts already are, under their own names.
        self._stages = {stage: shard(cut(model, stages, (stage,))) for stage in here}
        self._schedule = self._build_schedule(training, num_passes)
        self._batches: Sequence[Batch] = ()
        self._losses_of: LossesOf | None = None
        self._scale = 1.0
        self._totals: dict[int, Tensor] = {}

    @property
    def has_output(self) -> bool:
        """Whether the model's output appears on this process: the last stage is here."""
        return self._num_stages - 1 in self._stages

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the roots of the stages here, in forward order."""
        return tuple(self._stages.values())

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode, for the roots of the stages too."""
        super().train(mode)
        for stage in self._stages.values():
            stage.train(mode)
        return self

    @torch.no_grad()
    def pass_on(self, inputs: Batch) -> None:
        """Take part in an evaluation whose output appears on another process."""
        training = self.training
        self.eval()(**inputs)
        self.train(training)

    def forward(self, **inputs: Tensor) -> Tensor | None:
        """Run the model without a backward pass; the output is on the last stage, None elsewhere.

        A process is done when it has passed its activation on, so that successive calls overlap.
        """
        activation, rest = inputs.pop(self._first_input), inputs
        for stage, module in self._stages.items():
            if stage > 0:
                activation = self._receive()
            activation = module(activation, **rest)
            if stage < self._num_stages - 1:
                self._send(activation)
        return activation if self.has_output else None

    def add_gradients(
        self, micro_batches: Sequence[Batch], losses_of: LossesOf, scale: float
    ) -> Tensor:
        """Forward and backward over all micro-batches, in the schedule's order.

        `losses_of` is called on the last stage; the sum of its losses is multiplied by
        `scale` before the backward pass.

        Returns:
            The sum of the losses; zero where the last stage is not.
        """
        rows = max(len(batch[LABEL]) for batch in micro_batches)
        self._batches = [to_device(padded(batch, rows), self._device) for batch in micro_batches]
        self._losses_of, self._scale = losses_of, scale
        inputs: dict[str, Any] = {
            name: torch.cat([batch[name] for batch in self._batches])
            for name in inputs_of(self._batches[0])
        }
        first = inputs.pop(self._first_input)
        # The schedule cuts inputs and target into equal chunks, which are the micro-batches again.
        # A target is a number, by which `_loss` finds its batch.
        self._schedule.step(
            *((first,) if 0 in self._stages else ()),
            target=torch.arange(len(micro_batches)),
            return_outputs=False,
            **inputs,
        )
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for loss in self._totals.values():
            total += loss
        self._batches, self._totals = (), {}
        return total

    def _loss(self, output: Tensor, index: Tensor) -> Tensor:
        if self._losses_of is None:
            raise RuntimeError("add_gradients() sets the losses")
        micro_batch = int(index)
        losses, objective = self._losses_of(output.float(), self._batches[micro_batch])
        # By number: before its first update the schedule tries the first micro-batch out.
        self._totals[micro_batch] = losses.detach().sum()
        return objective.sum() * self._scale

    def _build_schedule(self, training: TrainingSection, num_passes: int) -> "_PipelineSchedule":
        # Imports torch.compile's machinery: half a second of CPU in each process of any training.
        from torch.distributed import pipelining  # noqa: PLC0415

        stages: list[_PipelineStageBase] = [
            pipelining.PipelineStage(
                module, stage, self._num_stages, self._device, group=self._group
            )
            for stage, module in self._stages.items()
        ]
        # No `scale_grads`: the losses are divided by the weight of the global batch already, and
        # the library would divide them again, by the number of passes.
        schedule = training.parallelism.pipeline_schedule
        if schedule == "interleaved_1f1b":
            return pipelining.ScheduleInterleaved1F1B(
                stages, num_passes, loss_fn=self._loss, scale_grads=False
            )
        kind = pipelining.ScheduleGPipe if schedule == "gpipe" else pipelining.Schedule1F1B
        return kind(stages[0], num_passes, loss_fn=self._loss, scale_grads=False)

    def _send(self, activation: Tensor) -> None:
        peer = (self._place + 1) % self._num_places
        # The shape goes ahead, because the batches of an evaluation differ in size.
        header = [(activation.shape, activation.dtype)]
        dist.send_object_list(header, group=self._group, group_dst=peer, device=self._device)
        dist.send(activation.contiguous(), group=self._group, group_dst=peer)

    def _receive(self) -> Tensor:
        peer = (self._place - 1) % self._num_places
        header: list[tuple[torch.Size, torch.dtype]] = [(torch.Size(), torch.float32)]
        dist.recv_object_list(header, group=self._group, group_src=peer, device=self._device)
        shape, dtype = header[0]
        activation = torch.empty(shape, dtype=dtype, device=self._device)
        dist.recv(activation, group=self._group, group_src=peer)
        return activation


def build_pipeline(
    model: nn.Module,
    task: Task,
    training: TrainingSection,
    world: World,
    *,
    inputs: Batch,
    shard: Callable[[nn.Module], nn.Module],
) -> Pipeline:
    """Divide the model into stages; every rank passes the same initial model.

    The stages are checked on `inputs`, an example on the host; `shard` brings a stage to the
    device and shards it over the processes that hold the same.

    Raises:
        PerennialError: the contract, the model or the batch does not go with pipelines.
        BadTaskError: the task has no plan, or its model is not the chain that the plan declares.
    """
    stages = stages_of(model, task, training.parallelism)
    require_chain(model, stages, inputs)
    _require_one_loss(model, task, inputs)
    return Pipeline(model, stages, training, world, shard)


def stages_of(model: nn.Module, task: Task, parallelism: Parallelism) -> dict[str, int]:
    """Return the stage of each part of a whole model, by the part's name.

    Raises:
        PerennialError: the model cannot be cut into so many stages.
        BadTaskError: the task has no plan, or its plan names what the model does not have.
    """
    owner = type(task).__name__
    plan = checked_plan(task.parallel_plan(), owner, parallelism)
    if plan is None:
        raise RuntimeError("checked_plan() requires a plan for pipelines")
    # Of the whole model: a stage does not have all that its plan names.
    inner = (*plan.tensor, plan.attention, plan.sequence_means, plan.experts)
    for name in (*plan.before, plan.blocks, *plan.after, *filter(None, inner)):
        next(matching(model, name, owner))
    return assign_parts(model, plan, parallelism.pipeline * stages_per_process(parallelism))


def stages_per_process(parallelism: Parallelism) -> int:
    """Return how many stages of a pipeline each process holds."""
    return 2 if parallelism.pipeline_schedule == "interleaved_1f1b" else 1


def passes_in_flight(
    parallelism: Parallelism, place: int, passes: int
) -> Iterator[tuple[list[int], int]]:
    """Yield what a process keeps before each backward pass of an update, in the schedule's order.

    Yields:
        The number of micro-batches that are between forward and backward pass, for each stage of
        the process, and the stage whose backward pass is next.
    """
    processes, stages = parallelism.pipeline, stages_per_process(parallelism)
    behind, total = processes - 1 - place, stages * passes
    # The schedules of torch.distributed.pipelining; interleaved stages take turns in rounds.
    in_round = passes // max(1, passes // processes)
    ahead = {"gpipe": total, "1f1b": behind}.get(
        parallelism.pipeline_schedule, (stages - 1) * in_round + 2 * behind
    )
    counts, forwards = [0] * stages, 0
    for backward in range(total):
        while forwards < min(ahead + backward + 1, total):
            counts[forwards // in_round % stages] += 1
            forwards += 1
        stage = stages - 1 - backward // in_round % stages
        yield list(counts), stage
        counts[stage] -= 1


def check_passes(training: TrainingSection, data_size: int) -> int:
    """Return the number of micro-batches of an update.

    Raises:
        PerennialError: the schedule needs more of them, or another number.
    """
    plan = BatchPlan(training.global_batch_size, training.micro_batch_size, data_size)
    passes, processes = plan.accumulation_steps, training.parallelism.pipeline
    schedule = training.parallelism.pipeline_schedule
    share = -(-training.global_batch_size // data_size)
    if schedule != "gpipe" and passes < processes:
        raise PerennialError(
            f"the pipeline schedule {schedule} needs {processes} micro-batches or more, one for "
            f"each process, but an update has {passes}",
            evidence=plan.describe(),
            action=f"set training.micro_batch_size <= {share // processes}, or raise "
            "global_batch_size"
            if share >= processes
            else f"raise training.global_batch_size to {processes * data_size} or more",
        )
    rounds = max(1, passes // processes)
    if schedule == "interleaved_1f1b" and passes % rounds:
        fitting = processes * -(-passes // processes)
        raise PerennialError(
            f"interleaved_1f1b takes micro-batches in {rounds} equal rounds, but an update has "
            f"{passes} of them",
            evidence=plan.describe(),
            action=f"choose training.micro_batch_size so that there are {fitting}, or the "
            "schedule 1f1b",
        )
    return passes


def padded(batch: Batch, rows: int) -> Batch:
    """Repeat the last row of a batch up to so many rows; the repeated ones count nothing.

    The stages exchange activations of one shape only.
    """
    have = len(batch[LABEL])
    if have == rows:
        return batch
    index = torch.arange(rows).clamp(max=have - 1)
    weight = batch[WEIGHT][index] if WEIGHT in batch else torch.ones(rows)
    weight[have:] = 0.0
    return {name: tensor[index] for name, tensor in batch.items()} | {WEIGHT: weight}


@torch.no_grad()
def _require_one_loss(model: nn.Module, task: Task, inputs: Batch) -> None:
    model.train()(**inputs)
    if task.auxiliary_losses(model) is not None:
        raise PerennialError(
            "training.parallelism.pipeline cannot be combined with the auxiliary losses of "
            f"{type(task).__name__}",
            evidence="each stage has some of them, but the last one alone computes the loss",
            action="turn them off in model.options (`balance = 0` for a decoder's experts), or "
            "set training.parallelism.pipeline = 1",
        )


def num_parameters(model: nn.Module) -> int:
    """Count the parameters of the whole model, whatever part of it is here."""
    if isinstance(model, Pipeline):
        return sum(model.whole.values())
    quantized = low_bit_layers(model)
    codes = {id(each) for layer in quantized for each in (layer.codes, layer.scales)}
    return sum(layer.in_features * layer.out_features for layer in quantized) + sum(
        parameter.numel() for parameter in model.parameters() if id(parameter) not in codes
    )


def divide_blocks(num_blocks: int, num_stages: int) -> list[range]:
    """Return the blocks of each stage: contiguous, as equal as whole blocks allow.

    What is left over goes to the first stages: the last has the output layer to compute as well.

    Raises:
        PerennialError: a stage would have none.
    """
    if num_blocks < num_stages:
        raise PerennialError(
            f"the model's {num_blocks} blocks cannot fill {num_stages} pipeline stages",
            evidence="each process holds one stage, two under the schedule interleaved_1f1b",
            action=f"lower training.parallelism.pipeline, or build {num_stages} blocks or more",
        )
    edges = [-(-stage * num_blocks // num_stages) for stage in range(num_stages + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]


def assign_parts(model: nn.Module, plan: ParallelPlan, num_stages: int) -> dict[str, int]:
    """Return the stage of each part, by the part's name.

    Raises:
        PerennialError: the model cannot be cut into so many stages.
        BadTaskError: it cannot be cut at all.
    """
    count = len(list(model.get_submodule(plan.blocks).children()))
    stages = dict.fromkeys(plan.before, 0) | dict.fromkeys(plan.after, num_stages - 1)
    for stage, part in enumerate(divide_blocks(count, num_stages)):
        stages |= {f"{plan.blocks}.{index}": stage for index in part}
    _require_separable(model, stages)
    return stages


def cut(model: nn.Module, stages: Mapping[str, int], kept: Collection[int]) -> nn.Module:
    """Keep the parts of some stages of a model; the parts themselves are shared, not copied."""
    return _without(model, {name for name, stage in stages.items() if stage not in kept}, "")


@torch.no_grad()
def require_chain(
    model: nn.Module, stages: Mapping[str, int], inputs: Mapping[str, Tensor]
) -> None:
    """Check on an example that the stages in turn compute what the model computes.

    What `forward` does outside the parts, every stage does: it must not change the result.

    Raises:
        BadTaskError: they do not.
    """
    training, num_stages = model.training, max(stages.values()) + 1
    expected = model.eval()(**inputs)
    first = first_input(model)
    rest = {name: value for name, value in inputs.items() if name != first}
    activation, evidence = inputs[first], ""
    try:
        for stage in range(num_stages):
            activation = cut(model, stages, (stage,))(activation, **rest)
    except (RuntimeError, TypeError, ValueError) as error:  # what a wrong shape leads to
        evidence = f"stage {stage} failed: {error}"
    model.train(training)
    if not evidence and not torch.equal(activation, expected):
        evidence = "the same weights and inputs gave a different output"
    if evidence:
        raise BadTaskError(
            f"{type(model).__name__} differs from its {num_stages} stages in turn",
            evidence=evidence,
            action="let `forward` pass its first input through the parts of the task's plan, one "
            "after the other, and do everything else inside a part",
        )


def first_input(model: nn.Module) -> str:
    """Return the argument of `forward` in whose place the activation comes in later stages."""
    return next(iter(inspect.signature(model.forward).parameters))


def _without(module: nn.Module, absent: set[str], prefix: str) -> nn.Module:
    # A shallow copy shares the parameters: every stage must train the tensors of the whole model.
    copied = copy.copy(module)
    for name, value in vars(module).items():
        # Hooks above all: those of one stage must not run for another.
        if isinstance(value, dict):
            vars(copied)[name] = value.copy()
    for name, child in module._modules.items():
        path = f"{prefix}{name}"
        if path in absent:
            copied._modules[name] = Passthrough()
        elif child is not None and any(part.startswith(f"{path}.") for part in absent):
            copied._modules[name] = _without(child, absent, f"{path}.")
    return copied


def _require_separable(model: nn.Module, stages: Mapping[str, int]) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise PerennialError(
                "training.parallelism.pipeline cannot be combined with batch normalisation",
                evidence=f"{name} is a {type(module).__name__}: its statistics are those of a "
                "micro-batch, and a pipeline sets up its buffers with one that is not data",
                action="use layer or group normalisation, or strategy = 'fsdp' alone",
            )
    containers = [model.get_submodule(part.rpartition(".")[0]) for part in stages]
    for name, module in model.named_modules():
        if module in containers and next(module.buffers(recurse=False), None) is not None:
            raise BadTaskError(
                f"a buffer of {name or 'the model itself'} does not belong to a pipeline stage",
                action="give it a module of its own",
            )
    seen: dict[int, tuple[str, int]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners = [stage for part, stage in stages.items() if name.startswith(f"{part}.")]
        if not owners:
            raise BadTaskError(
                f"the parameter {name} does not belong to a pipeline stage",
                evidence=f"the plan's parts are: {', '.join(stages)}",
                action="name the module that holds it before or after the blocks in the task's "
                "plan; a parameter of the model itself needs a module of its own",
            )
        other, stage = seen.setdefault(id(parameter), (name, owners[0]))
        if stage != owners[0]:
            raise PerennialError(
                f"{other} and {name} are one tensor, which stages {stage} and {owners[0]} of the "
                "pipeline would both train",
                evidence="each process updates its own stage only",
                action="untie them in model.options, or set training.parallelism.pipeline = 1",
            )
