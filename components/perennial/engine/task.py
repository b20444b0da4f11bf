"""Task: what a user writes; the engine does everything else of a training."""

import difflib
import html
import importlib.util
import inspect
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, TypeGuard

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import JsonValue, ValidationError
from torch import Tensor, nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.old_names import OLD
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.contracts.user_code import guard_methods, import_user_module, user_code
from perennial.engine.metrics.catalogue import directions_of, find_metric, require_fit
from perennial.engine.metrics.metric import Kind, Metric, UndefinedMetricError

Batch: TypeAlias = dict[str, Tensor]
"""Tensors by name; the first dimension of each is the example. `label` is the target: [B] of 0 and
1, of class numbers or of values, or what the task's own `losses` read; `weight` (optional, [B]) is
how much an example counts, in tokens for instance. The others are the model's inputs."""

LABEL = "label"
WEIGHT = "weight"
ANSWERS = "teacher_answers"
"""What teachers predict for each example; the engine adds it to training batches."""
DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": ("roc_auc", "log_loss"),
    "multiclass": ("log_loss", "accuracy"),
    "regression": ("rmse", "mae", "r2"),
    "statistic": ("mean_loss",),
}
"""Metrics of a task that names none, by its kind."""


class NoOptions(Section):
    """Options of a task that has none."""


class MeasuredOptions(Section):
    """Options of a task for which the contract may add metrics."""

    metrics: tuple[str, ...] = ()
    """Metrics of the catalogue (engine/metrics/README.md) besides the task's own. Add those that
    `selection` or `gate` of the contract name, or that reports should show."""


TensorStyle = Literal[
    "columns", "rows", "vocabulary", "logits", "normalization", "split", "whole", "repeated"
]
"""How the processes of a tensor group share a module.

- `columns`: a linear layer; each process computes some of the output features.
- `rows`: the linear layer after it; each process has some of the input features.
- `vocabulary`: an embedding; each process has some of its rows.
- `logits`: the output layer; each process computes some of the features, which are then gathered.

The other four matter under `sequence_parallel` alone, where the stream between `rows` and `columns`
is divided along the sequence:

- `split`: a module that starts the stream; its output is divided.
- `normalization`: works on a part of the stream.
- `whole`: a module around `columns` and `rows`; its input is gathered first.
- `repeated`: a module that every process computes whole, such as experts and their router.
"""


@dataclass(frozen=True)
class ParallelPlan:
    """The places where a model may be cut. `*` stands for one segment of a module's name.

    Attributes:
        before: Modules ahead of the blocks, for pipelines.
        blocks: The `ModuleList` of blocks, called one after the other with one tensor.
        after: Modules behind the blocks.
        tensor: How a tensor group shares which modules.
        divisible: Sizes by the option's name, such as the number of heads, that must be divisible
            by `tensor · context`.
        attention: Modules called with queries, keys and values of shape [B, T, heads, features]
            alone, returning [B, T, heads, features]; they see whole sequences.
        sequence: Tensors of the batch with a dimension along the sequence, and which it is. The
            label must be among them.
        positions: The model's input that takes the positions of the tokens, [T].
        ignored_label: Positions with this label count nothing. The task's losses must be means
            over the others, and 0 where there are none.
        sequence_means: Modules whose output is a mean over the sequence.
        experts: Modules called with tokens [N, features] sorted by expert and the number of tokens
            of each; their parameters' first dimension is the expert, and they read them through
            `perennial.engine.parallelism.experts.own_experts`.
    """

    before: tuple[str, ...] = ()
    blocks: str = ""
    after: tuple[str, ...] = ()
    tensor: Mapping[str, TensorStyle] = field(default_factory=dict)
    divisible: Mapping[str, int] = field(default_factory=dict)
    attention: str = ""
    sequence: Mapping[str, int] = field(default_factory=dict)
    positions: str = ""
    ignored_label: int = -100
    sequence_means: str = ""
    experts: str = ""


@dataclass(frozen=True)
class ParameterKeys:
    """What a parameter and its positions stand for, wherever they are.

    Attributes:
        name: What the parameter stands for, such as the embedding of a column.
        keys: For each dimension, what its positions stand for, each once; None: their places tell.
    """

    name: str
    keys: tuple[Sequence[Hashable] | None, ...]


class Task(ABC):
    """A model, its preprocessing, its loss and its metrics.

    A task names its `kind` and writes `encode`, `build_model` and `losses`; the rest has defaults.

    The engine calls `fit` once, on the training split alone; its state is saved with the weights.
    It then encodes rows, builds the model under a fixed seed, and owns the loop: accumulation,
    normalisation, clipping, schedule, sharding, checkpoints and evaluation are not the task's.

    Args:
        options: The contract's `model.options`, as an instance of `Options`.
        columns: Label and features, as recorded in the snapshot: without `data.features`, these are
            all columns but label, time, group, ids and meta.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """The task's own options; unknown keys in the contract are refused with it."""
    kind: Kind
    """Kind of the predictions, and what `predict` returns: P(label = 1) of shape [B], class
    probabilities of shape [B, C], or values of shape [B]. A task of kind `statistic` (language
    models, retrieval) measures each example instead: see `statistic`."""
    metrics: Mapping[str, Direction]
    """Keys that `score` returns, and the direction of each; `loss` is added by the engine. The
    first is the default for selection and gate. `directions_of` gives them for names of the
    catalogue, which the engine then computes; others are computed by the task's own `score`. A
    class that names none is measured by those of `DEFAULT_METRICS` for its kind."""
    statistics: ClassVar[tuple[str, ...]] = ()
    """For kind `statistic`: what each column of `statistic` is, for the catalogue's metrics:
    `loss` and `bytes` per token, or `ahead` and `tied` (itself included) of each right answer, with
    its `gain` where a query has several. A name may come repeatedly."""
    invariant_metrics: ClassVar[frozenset[str]] = frozenset()
    """For kind `statistic`: metrics that mean the same for two models that weigh the examples
    differently, such as bits per byte under two vocabularies. The others are compared only between
    models with equal weights, and all of them only between models with equal `exposure`."""

    serves_predictions: ClassVar[bool] = False
    """For kind `statistic`: whether a served model answers `predict`, which needs no label, and not
    `statistic`."""
    reconstructs_inputs: ClassVar[bool] = False
    """Whether the label is made of the features, as in autoencoders, denoisers and imputers. Inputs
    that determine the label are then not a leak, and the leakage checks are skipped."""
    tokens: ClassVar[str] = ""
    """The batch's tensor of token ids, [B, T], for models of sequences: their speed is then also
    measured in tokens per second. Empty means that there is none."""
    needs_whole_batch: ClassVar[bool] = False
    """Whether the loss compares the rows of a global batch with each other, as contrastive ones do:
    `training_losses` gets those of all processes. An update is then one forward pass of each."""
    gathers_batch: ClassVar[bool] = False
    """Whether `training_losses` gets the own rows alone, and gathers what it needs of others."""

    kept_files: ClassVar[frozenset[str]] = frozenset()
    """Parts of the state that are files named by options, as a tokenizer: rows do not matter."""
    fitted: Section | dict[str, JsonValue]
    """What `fit` learned: JSON, or a section. Without `state` and `load_state` of its own, a task
    saves this and nothing else."""

    def __init_subclass__(cls) -> None:
        """Set default metrics, and wrap each function so that it cannot end the calling process."""
        super().__init_subclass__()
        guard_methods(cls, except_of=Task)
        kind = getattr(cls, "kind", None)
        if kind == "statistic" and cls.statistic is Task.statistic:
            cls.statistics = cls.statistics or ("loss",)
        if not hasattr(cls, "metrics") and isinstance(kind, str) and kind in DEFAULT_METRICS:
            cls.metrics = directions_of(*DEFAULT_METRICS[kind])

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        self.options = options
        self.columns = columns
        self.fitted = {}
        if isinstance(options, MeasuredOptions) and options.metrics:
            self.metrics = {**type(self).metrics, **directions_of(*options.metrics)}

    def fit(self, train: pl.LazyFrame) -> None:  # noqa: B027 - not every task learns something
        """Learn preprocessing from the training split, the only data to fit on, into `fitted`."""

    def state(self) -> dict[str, JsonValue]:
        """Return what `fit` learned, as JSON: `fitted` by default."""
        fitted = self.fitted
        return fitted.model_dump(mode="json") if isinstance(fitted, Section) else fitted

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Load what an earlier `fit` learned: into `fitted` by default."""
        if isinstance(self.fitted, Section):
            self.fitted = type(self.fitted).model_validate(state, strict=False)
        else:
            self.fitted = dict(state)

    @abstractmethod
    def encode(self, rows: pl.DataFrame) -> Batch:
        """Encode rows as tensors, one example per row, in order.

        Without the label column the batch has no `label`. The same function serves training,
        evaluation and serving, so it must be deterministic; random augmentation goes to `augment`.
        """

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build a model; called as `model(**inputs)` with the batch's tensors except `label`."""

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return parameter → what its positions stand for, where the fitted state decides on them.

        A warm start then gives each category, class or token its own row, though its place has
        changed; rows of new ones start at random. None by default: all positions are fixed.
        """
        return {}

    @abstractmethod
    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example, shape [B].

        The engine averages over the global batch, by the batch's `weight` where it has one.
        """

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the training loss, shape [B]: `losses`, unless training adds other terms.

        Label smoothing and auxiliary terms belong here. Evaluation, the gate, the limit on the
        champion's loss and the sanity checks use `losses`, which must mean the same for every
        training.
        """
        return self.losses(output, batch)

    def predict(self, output: Tensor) -> Tensor:
        """Return predictions from the model's output, in the form of `kind`.

        By default the output holds one logit [B] or [B, 1] for `binary`, logits [B, C] for
        `multiclass`, and values [B] or [B, 1] for `regression`.
        """
        if self.kind == "statistic":
            return output
        if self.kind == "multiclass":
            return output.softmax(dim=-1)
        answers = output.squeeze(-1) if output.ndim > 1 else output
        return answers.sigmoid() if self.kind == "binary" else answers

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        """Return what `score` averages, for kind `statistic`: shape [B], or [B, K].

        A language model's is its loss per token, a retrieval model's the rank of the right answer.
        `score` then receives these as `predictions`, and the examples' weights (1 without `weight`)
        as `labels`. By default it is the loss.
        """
        return self.losses(output, batch)

    def exposure(
        self, statistics: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how much of each row was measured, shape [N]; for kind `statistic`.

        In a unit that does not depend on the model, such as bytes of text: a model that cuts rows
        earlier than another is measured on other data, and the two are not comparable.
        """
        return np.ones(len(weights))

    def score(
        self, predictions: NDArray[np.float64], labels: NDArray[np.float64]
    ) -> dict[str, float]:
        """Return the metrics named in `metrics`, over all examples of a split.

        Those of the catalogue. Override it for others, with `super().score(...) | {...}` if there
        are both. A metric that the rows do not define is left out, without a substitute value.
        """
        found = {}
        for name in self.metrics:
            metric = find_metric(name)
            if metric is not None:
                with suppress(UndefinedMetricError):
                    found[name] = self.reading(metric).measure(predictions, labels)
        return found

    def measure(
        self, name: str, predictions: NDArray[np.float64], labels: NDArray[np.float64]
    ) -> float:
        """Return one of the metrics of `score`; computes only this one where possible.

        Raises:
            UndefinedMetricError: the rows do not define it.
        """
        metric = find_metric(name)
        if metric is not None and getattr(self.score, "__func__", None) is Task.score:
            return self.reading(metric).measure(predictions, labels)
        found = self.score(predictions, labels)
        if name in found:
            return found[name]
        raise UndefinedMetricError(
            f"{name} is undefined on these {len(labels):,} rows",
            evidence=f"the task's `score` gives {', '.join(found) or 'nothing'}"
            if metric is None
            else f"it needs {metric.needs}",
            action="measure it on more rows, or choose another metric",
        )

    def reading(self, metric: Metric) -> Metric:
        """Return a metric of the catalogue, of this task's predictions or statistics.

        Raises:
            BadTaskError: it is for another kind of task.
        """
        if self.kind not in metric.kinds:
            raise BadTaskError(
                f"{type(self).__name__} cannot be measured by {metric.name!r}",
                evidence=f"its kind is {self.kind}; the metric is for "
                f"{', '.join(sorted(metric.kinds))}",
                action="remove it from the task's metrics or from model.options.metrics",
            )
        return metric.reading(self.statistics) if metric.statistics else metric

    def expected_initial_loss(self) -> float | None:
        """Return the theoretical mean loss before the first update, on the training split.

        Examples: ln C for C balanced classes and zero logits; the label's entropy when the last
        bias starts at the class prior; the variance for squared error around the mean. Without one,
        the sanity checks only reject a loss above that of an output of zeros.
        """
        return None

    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Augment a training batch; never applied in evaluation. Unchanged by default."""
        return batch

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the served names of the columns of `predict`, or of `statistic`.

        None by default: they are then numbered.
        """
        return ()

    def answer_texts(
        self, predictions: NDArray[np.float64], rows: pl.DataFrame
    ) -> Mapping[str, Sequence[str]]:
        """Return texts that a served model answers in place of numbers, by the name of a column.

        None by default. For answers whose form depends on the row, such as a tag for each word.

        Args:
            predictions: Of `predict`, or of `statistic`, [N, K].
            rows: What was predicted, without a label.
        """
        return {}

    @property
    def scoring_rows(self) -> int:
        """Return the examples per forward pass of an evaluation; fewer for large outputs."""
        return 4096

    def written_training(self) -> Mapping[str, JsonValue]:
        """Return the `[training]` options that the task's own code states, where it has any.

        The contract decides; the sanity checks warn where its optimizer is another.
        """
        return {}

    def published_names(self, model: nn.Module, stored: Collection[str]) -> Mapping[str, str]:
        """Return stored name → the model's, where published weights call a parameter otherwise.

        Args:
            model: As `build_model` made it.
            stored: Names of the initial weights, renamed as `model.initial.rename` asks.
        """
        return {}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the modules to shard one by one, in forward order; the rest is sharded as one."""
        return ()

    @property
    def scored_together(self) -> int:
        """Return the number of neighbours in a split that are evaluated together, as in retrieval.

        Evaluations never divide such a group, and `scoring_rows` is a multiple of it.
        """
        return 1

    def parallel_plan(self) -> ParallelPlan | None:
        """Return how the model may be divided, for `training.parallelism`; None if it may not."""
        return None

    def auxiliary_losses(self, model: nn.Module) -> Tensor | None:
        """Return the auxiliary loss of each example in the last training pass, shape [B], or None.

        For losses on what happens inside the model, such as the balance of experts. They are
        weighted like the others, and enter gradients, but neither reports nor evaluations.

        Args:
            model: As `build_model` made it, with weights that may be sharded.
        """
        return None

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Describe one example, decoded from the tensors right before the model."""
        return {name: str(tensor[index].tolist()) for name, tensor in batch.items()}

    def picture(self, batch: Batch, index: int) -> NDArray[np.uint8] | None:
        """Return one example as pixels [H, W] or [H, W, 3], from the tensors before the model.

        None if an example is not a picture.
        """
        return None

    def baseline(self, rows: pl.DataFrame) -> NDArray[np.float64] | None:
        """Return predictions of a human or a rule of thumb, in `predict`'s shape, or None."""
        return None

    def _repr_html_(self) -> str:
        """Show kind, metrics, columns and options in a notebook."""
        facts = {
            "kind": self.kind,
            "metrics": ", ".join(f"{name} ({way})" for name, way in self.metrics.items()),
            "label": self.columns.label,
            "features": ", ".join(f"{name} ({t})" for name, t in self.columns.features.items()),
            "options": self.options.to_json(),
        }
        rows = (f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items())
        return f"<b>{type(self).__name__}</b><table>{''.join(rows)}</table>"


def inputs_of(batch: Batch) -> Batch:
    """Return the batch without label, weight and teachers' answers: the model's inputs."""
    return {name: tensor for name, tensor in batch.items() if name not in (LABEL, WEIGHT, ANSWERS)}


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch of the host to a device; from page-locked memory the copies overlap."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def load_task(path: str, options: Mapping[str, JsonValue], columns: TaskColumns) -> Task:
    """Build the task named in a contract, with its options validated.

    Args:
        path: `package.module:ClassName`.
        options: The contract's `model.options`.
        columns: Label and features, as recorded in the snapshot.

    Raises:
        BadTaskError: it does not import, is not a complete `Task`, or refuses the options.
    """
    task_type = load_task_type(path)
    return task_type(check_options(task_type, options), columns)


def load_task_type(path: str) -> type[Task]:
    """Import the class `package.module:ClassName`.

    Raises:
        BadTaskError: it does not import or is not a complete `Task`.
    """
    module_name, _, class_name = path.partition(":")
    _refuse_misspelt_module(module_name, class_name)
    module = import_user_module(module_name, place=f"model.task = {path!r}")
    task_type: object = getattr(module, class_name, None)
    if task_type is None:
        classes = sorted(name for name, value in vars(module).items() if _is_task(value))
        near = difflib.get_close_matches(class_name, classes, n=1, cutoff=0.3)
        raise BadTaskError(
            f"model.task = {path!r}: {module_name} has no {class_name!r}",
            evidence=f"its tasks are: {', '.join(classes) or 'none'}",
            action=f'write task = "{module_name}:{(near or classes)[0]}"  # in [model]'
            if classes
            else "correct the name after the colon",
        )
    if not _is_task(task_type):
        raise BadTaskError(
            f"model.task = {path!r} is not a Task",
            action="derive the class from perennial.engine.task.Task",
        )
    missing = sorted(task_type.__abstractmethods__)
    missing += [name for name in ("kind", "metrics") if not hasattr(task_type, name)]
    if missing and not (set(missing) <= {"kind", "metrics"} and "__init__" in vars(task_type)):
        raise BadTaskError(
            f"model.task = {path!r} is incomplete",
            evidence=f"it does not define {', '.join(missing)}",
            action="write the missing members; components/perennial/tasks/README.md shows each",
        )
    if task_type.score is Task.score:
        _require_catalogued(task_type, getattr(task_type, "metrics", {}))
    return task_type


def _refuse_misspelt_module(module: str, class_name: str) -> None:
    """Refuse a module that does not exist where one of nearly its name lies beside the contract.

    Raises:
        BadTaskError: so it is; the line to write is in it.
    """
    top = module.partition(".")[0]
    if top in sys.modules or top == OLD or importlib.util.find_spec(top) is not None:
        return
    beside = [file.stem for file in Path(sys.path[0] or ".").glob("*.py")]
    if near := difflib.get_close_matches(top, beside, n=1):
        raise BadTaskError(
            f"model.task = '{module}:{class_name}': there is no module {top!r}",
            evidence=f"beside the contract lies {near[0]}.py",
            action=f'write task = "{near[0]}{module.removeprefix(top)}:{class_name}"  # in [model]',
        )


def check_options(task_type: type[Task], options: Mapping[str, JsonValue]) -> Section:
    """Validate the contract's `model.options` as the task's own section.

    Raises:
        BadTaskError: an option is unknown or does not fit.
    """
    try:
        with user_code(f"{task_type.__name__}.Options"):
            checked = task_type.Options.model_validate(dict(options), strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("model.options", *map(str, first["loc"])))
        raise BadTaskError(
            f"{where}: {first['msg']}",
            evidence=f"got {first['input']!r}",
            action=_correct_option(task_type, first["type"], first["loc"], first["input"]),
        ) from error
    if isinstance(checked, MeasuredOptions):
        _require_catalogued(task_type, directions_of(*checked.metrics))
    return checked


def _correct_option(
    task_type: type[Task], mistake: str, place: tuple[int | str, ...], value: object
) -> str:
    """Return the line with the nearest option, or all options of a task."""
    known = list(task_type.Options.model_fields)
    near = difflib.get_close_matches(str(place[0]) if place else "", known, n=1)
    if mistake == "extra_forbidden" and near and len(place) == 1:
        return f"write {near[0]} = {json.dumps(value, default=str)}  # in [model.options]"
    return f"{task_type.__name__} takes: {', '.join(known) or 'no options'}"


def check_metrics(task_type: type[Task], options: Section, named: Mapping[str, str]) -> None:
    """Check that a task has the metrics that a contract names.

    A task that sets `metrics` on its instances is checked when it is used.

    Raises:
        BadTaskError: it lacks one; the nearest is suggested.
    """
    takes_more = isinstance(options, MeasuredOptions)
    more = options.metrics if isinstance(options, MeasuredOptions) else ()
    known = [*dict.fromkeys([*getattr(task_type, "metrics", {}), *more]), "loss"]
    for place, name in named.items():
        if len(known) > 1 and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            section, _, key = place.removesuffix(f".{name}").rpartition(".")
            line = f'{key} = "{near[0]}"' if near and place == f"{section}.{key}" else ""
            if near and not line:
                section, line = f"{section}.{key}", f"{near[0]} = …"
            action = f"write {line}  # in [{section}]" if line else "choose one of them"
            if takes_more and find_metric(name) is not None:
                action = f"write metrics = {json.dumps([*more, name])}  # in [model.options]"
            raise BadTaskError(
                f"{place} names {name!r}, which {task_type.__name__} does not measure",
                evidence=f"its metrics are: {', '.join(known)}",
                action=action,
            )


def _require_catalogued(task_type: type[Task], names: Mapping[str, Direction]) -> None:
    kind: Kind | None = getattr(task_type, "kind", None)
    require_fit(names, kind, task_type.statistics, task_type.__name__)


def _is_task(value: object) -> TypeGuard[type[Task]]:
    return inspect.isclass(value) and issubclass(value, Task) and value is not Task
