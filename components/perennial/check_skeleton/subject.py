"""Subject: the task under examination, with bounded samples of its data, encoded once."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perennial.check_skeleton.config import SkeletonSection
from perennial.contracts.adapter import Adapter
from perennial.contracts.data import DataSection, Split
from perennial.contracts.environment import seconds_of
from perennial.contracts.errors import BadDataError, BadTaskError, PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.user_code import ENCODE_SECONDS, explain, time_limit
from perennial.data.dataset import Dataset
from perennial.engine.config.distillation import Distillation
from perennial.engine.config.optimization import Stage
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Batch, Task, inputs_of
from perennial.registry.initial import SeenTestRows, find_seen_test_rows

T = TypeVar("T")
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]
READ_ROWS = 65_536
SEQUENCE_LENGTH = 16
FEWEST_ROWS = 16
ROUNDING = 1e-5
# Columns of codes have equal ends in many rows, but not runs of several lengths.
FEWEST_LENGTHS = 4


@dataclass(frozen=True)
class Teaching:
    """The versions that a training learns from, and what is known of them."""

    teachers: Teachers
    distillation: Distillation
    snapshot: Snapshot
    seen: SeenTestRows  # test rows that they were trained or selected on


@dataclass(frozen=True)
class Subject:
    """The task and the data that the checks examine."""

    make_task: Callable[[], Task]  # A new, unfitted task
    task: Task  # the task, fitted on the whole training split
    train_rows: pl.DataFrame  # A sample of the training split
    validation_rows: pl.DataFrame  # A sample of the validation split
    settings: SkeletonSection  # sample sizes, budgets, tolerances
    training: TrainingSection  # settings of the training: seed, optimizer, schedule, batch size
    train_split_rows: int  # rows of the whole training split, of which `train_rows` is a sample
    data: DataSection | None = None  # source of the rows and meaning of their columns, if known
    initial: InitialModel | None = None  # weights that training starts with; None for random ones
    # Test rows that the initial weights have seen.
    seen: SeenTestRows = field(default_factory=SeenTestRows)
    stages: tuple[Stage, ...] = ()  # of the training; `training` has none
    adapter: Adapter | None = None  # of the training; `training` has none
    teaching: Teaching | None = None  # of the training; `training` has no distillation
    # The sample's variance of labels over the split's: far below 1 where few are very large.
    label_spread: float = 1.0
    _made: dict[Callable[..., Any], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def prepare(
        cls,
        make_task: Callable[[], Task],
        dataset: Dataset,
        settings: SkeletonSection,
        training: TrainingSection,
        initial: InitialModel | None = None,
        *,
        teachers: Teachers | None = None,
    ) -> "Subject":
        """Fit the task and sample its data.

        Raises:
            BadTaskError: the task cannot be fitted, or its sample cannot be encoded, in time.
            BadDataError: a split has too few rows.
        """
        train, validation = (
            sample_rows(dataset, split, settings.sample_rows, training.seed)
            for split in (Split.TRAIN, Split.VALIDATION)
        )
        task = make_task()
        split_rows = dataset.snapshot.split_rows[Split.TRAIN]
        data = dataset.snapshot.data
        seen = find_seen_test_rows(initial, dataset)
        teaching = None
        if training.distillation is not None and teachers is not None:
            taught = find_seen_test_rows(None, dataset, teachers.origins)
            teaching = Teaching(teachers, training.distillation, dataset.snapshot, taught)
        # Other checks examine one stage, in which all is trained that is not frozen, by labels.
        others = {"stages": (), "adapter": None, "distillation": None}
        whole = training.without_extras().model_copy(update=others)
        known = split_rows, data, initial, seen, training.stages, training.adapter, teaching
        # A pass over the split's labels, which the other kinds need not pay for.
        spread = _measure_label_spread(dataset, train) if task.kind == "regression" else 1.0
        subject = cls(make_task, task, train, validation, settings, whole, *known, spread)
        with _naming("fit(train)"):
            task.fit(dataset.scan(Split.TRAIN))
        limit = time_limit(
            seconds_of(ENCODE_SECONDS, default=600.0),
            f"encode of {train.height + validation.height:,} rows",
            "look for a loop that never ends, or set skeleton.sample_rows lower; "
            f"{ENCODE_SECONDS} sets the limit",
        )
        with _naming("encode(rows)"), limit:
            _require_examples(subject.train, subject.validation)
        return subject

    @property
    def time(self) -> str | None:
        """The column with the rows' time; None if the contract names none."""
        return self.data.time if self.data else None

    @property
    def seed(self) -> int:
        """The training's seed: the checks see the initialisation that it will start from."""
        return self.training.seed

    @cached_property
    def train(self) -> Batch:
        """The training sample, as tensors."""
        return self.task.encode(self.train_rows)

    @cached_property
    def validation(self) -> Batch:
        """The validation sample, as tensors."""
        return self.task.encode(self.validation_rows)

    @cached_property
    def _label_turns(self) -> Tensor:
        """Positions of examples with different inputs, ordered so that the labels take turns."""
        inputs, labels = inputs_of(self.train), self.train[LABEL]
        # The first rows of a sorted table are alike, and of those with equal inputs one is kept.
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed))
        order = order[_take_turns(labels[order])]
        mixed = {name: tensor[order] for name, tensor in inputs.items()}
        distinct = order[find_distinct_examples(mixed)]
        if self.task.scored_together > 1:
            # Pictures of one caption are each other's right answers: nothing tells them apart.
            for name, tensor in inputs.items():
                if tensor.ndim > 1:
                    firsts = find_distinct_examples({name: tensor})
                    distinct = distinct[torch.isin(distinct, firsts)]
        return distinct[_take_turns(labels[distinct])]

    def balanced(self, rows: int) -> Batch:
        """Return examples with different inputs and alternating labels: each can be learned."""
        return select_rows(self.train, self._label_turns[:rows])

    def build_model(self) -> nn.Module:
        """Build a new model under the training's seed; global generators are untouched."""
        with seeded(self.seed):
            return self.task.build_model()

    def reseeded(self, repeat: int) -> "Subject":
        """Return the subject with other initial weights and another order of rows; itself at 0."""
        training = self.training.model_copy(update={"seed": self.seed + repeat})
        return replace(self, training=training) if repeat else self

    def num_rows(self) -> int:
        """Return the number of rows in the training sample."""
        return int(self.train_rows.height)


def _take_turns(labels: Tensor) -> Tensor:
    """Return the order in which equal labels follow each other as late as possible.

    Numbers that all differ stay in their order, as sequences of labels do: they hardly ever repeat.
    """
    if labels.ndim > 1:
        return torch.arange(len(labels))
    _, values, counts = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    turns = np.empty_like(values)
    turns[np.argsort(values, kind="stable")] = np.concatenate([np.arange(each) for each in counts])
    return torch.from_numpy(np.argsort(turns, kind="stable"))


def once(make: Callable[[Subject], T]) -> Callable[[Subject], T]:
    """Let several checks share one value: the decorated function runs for the first of them."""

    @wraps(make)
    def get(subject: Subject) -> T:
        if get not in subject._made:
            subject._made[get] = make(subject)
        return cast("T", subject._made[get])

    return get


def _measure_label_spread(dataset: Dataset, sample: pl.DataFrame) -> float:
    """Return the sample's mean squared deviation of labels from the split's mean, over the split's.

    1 where labels are not numbers.
    """
    name = dataset.snapshot.data.label
    if name not in sample.columns or not sample.schema[name].is_numeric():
        return 1.0
    label = pl.col(name).cast(pl.Float64).fill_nan(None)
    whole = dataset.scan(Split.TRAIN).select(
        label.mean().alias("mean"), label.var(ddof=0).alias("of")
    )
    mean, variance = dataset.collect(whole).row(0)
    if not variance:
        return 1.0
    found = sample.select(((label - mean) ** 2).mean()).item()
    return 1.0 if found is None else float(found / variance)


def sample_rows(dataset: Dataset, split: Split, size: int, seed: int) -> pl.DataFrame:
    """Return at most `size` rows of a split, drawn evenly from all of it, in file order, streamed.

    Raises:
        BadDataError: the split has fewer than 16 rows.
    """
    return read_rows_at(dataset, split, sample_positions(dataset, split, size, seed))


def read_rows_at(dataset: Dataset, split: Split, positions: NDArray[np.int64]) -> pl.DataFrame:
    """Return the rows of a split at these positions, ascending; streamed."""
    parts, start = [], 0
    for rows in dataset.batches(split, READ_ROWS):
        is_here = (positions >= start) & (positions < start + rows.height)
        within = positions[is_here] - start
        parts.append(rows[within])
        start += rows.height
    return pl.concat(parts)


def sample_positions(dataset: Dataset, split: Split, size: int, seed: int) -> NDArray[np.int64]:
    """Return the positions of the rows that `sample_rows` draws, ascending.

    Raises:
        BadDataError: the split has fewer than 16 rows.
    """
    total = dataset.snapshot.split_rows[split]
    if total < FEWEST_ROWS:
        raise _make_too_few_error(dataset, split)
    drawn = np.random.default_rng(seed).choice(total, size=min(size, total), replace=False)
    return np.sort(drawn).astype(np.int64)


def _make_too_few_error(dataset: Dataset, split: Split) -> BadDataError:
    rows = dataset.snapshot.split_rows
    total = sum(rows.values())
    advice = "wait for more data"
    if split is not Split.TRAIN and total >= 4 * FEWEST_ROWS:
        share = min(math.ceil(150 * FEWEST_ROWS / total) / 100, 0.4)
        advice = f"set split.{split.value}_fraction = {share:g}, or wait for more data"
    return BadDataError(
        f"the {split.value} split has {rows[split]} rows; the sanity checks need {FEWEST_ROWS}",
        evidence=", ".join(f"{each.value}: {count} rows" for each, count in rows.items()),
        action=advice,
    )


def select_rows(batch: Batch, index: Tensor | slice) -> Batch:
    """Return the examples at these positions."""
    return {name: tensor[index] for name, tensor in batch.items()}


def select_head(batch: Batch, rows: int) -> Batch:
    """Return the first examples."""
    return select_rows(batch, slice(rows))


def is_sequence(name: str, batch: Batch) -> bool:
    """Whether a tensor [B, T] has positions, not columns: shaped like the labels, or padded."""
    tensor = batch[name]
    if tensor.ndim == 2 and LABEL in batch and tensor.shape == batch[LABEL].shape:
        return True
    is_long = tensor.ndim == 2 and tensor.shape[1] >= SEQUENCE_LENGTH
    return is_long and not tensor.is_floating_point() and find_padding(tensor) is not None


def are_equal(first: Tensor, second: Tensor, rounding: float = 0.0) -> bool:
    """Whether two tensors have the same form and numbers; NaN is equal to NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    return torch.allclose(first, second, rtol=rounding, atol=rounding / 10, equal_nan=True)


def find_differences(first: Batch, second: Batch) -> list[str]:
    """Return the names of the tensors that differ by more than rounding, or are not in both."""
    both = first.keys() & second.keys()
    # Vectorised and single arithmetic may round differently.
    equal = {name for name in both if are_equal(first[name], second[name], ROUNDING)}
    return sorted({*first, *second} - equal)


def find_distinct_examples(inputs: Batch) -> Tensor:
    """Return the position of the first example of each different input, ascending."""
    first: dict[bytes, int] = {}
    for index, key in enumerate(compute_example_keys(inputs)):
        first.setdefault(key, index)
    return torch.tensor(list(first.values()))


def compute_example_keys(batch: Batch) -> list[bytes]:
    """Return the content of each example as bytes, equal for equal examples."""
    arrays = [tensor.numpy() for tensor in batch.values()]
    return [b"".join(array[row].tobytes() for array in arrays) for row in range(len(arrays[0]))]


def _require_examples(*batches: Batch) -> None:
    for batch in batches:
        lengths = {name: len(tensor) for name, tensor in batch.items()}
        if LABEL not in batch or not inputs_of(batch) or len(set(lengths.values())) != 1:
            raise BadTaskError(
                f"encode must return inputs and {LABEL!r}, one entry per example in each",
                evidence=f"tensor lengths: {lengths}",
                action="return a dict of tensors whose first dimension is the example",
            )


def generator_states() -> tuple[object, ...]:
    """Return the states of the global generators of PyTorch, Python and NumPy."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, random.getstate(), (kind, np.asarray(keys).tobytes(), *rest)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run under seeded global generators and restore them afterwards."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    try:
        yield
    except PerennialError:
        raise
    except Exception as error:  # user code may raise anything
        raise BadTaskError(
            f"the task's {part} failed on the training split",
            evidence=explain(error),
            action="call it on a few rows in a notebook; the traceback is in the log",
        ) from error


@dataclass(frozen=True)
class Padding:
    """The token that fills sequences to one length."""

    code: int  # the token
    content: Tensor  # number of other tokens of each example, [B]
    is_left: bool  # whether padding comes first

    def covers(self, length: int) -> Tensor:
        """Return whether each position of examples of a length is padding, [B, T]."""
        places = torch.arange(length)
        if self.is_left:
            return places < length - self.content[:, None]
        return places >= self.content[:, None]


def find_padding(tokens: Tensor) -> Padding | None:
    """Return the code whose runs of different lengths end or begin the examples [B, T]."""
    for is_left in (False, True):
        ends = tokens if is_left else tokens.flip(1)
        code = int(ends[:, 0].mode().values)
        runs = (ends == code).long().cumprod(dim=1).sum(dim=1)
        if len(np.unique(runs[runs > 1].numpy())) >= FEWEST_LENGTHS:
            return Padding(code, tokens.shape[1] - runs, is_left)
    return None
