"""Ensemble: several trained models that answer as one, by the mean of their predictions.

No contract names it: `select_checkpoint` makes one where `[model.ensemble]` asks for it. Each
member encodes the rows by its own task. The output has the form of the first member's model, so
that its task computes losses, predictions and metrics of the whole.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue
from torch import Tensor, nn

from perennial.contracts.data import ImportPath, TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.section import Section
from perennial.engine.task import LABEL, WEIGHT, Batch, Task, inputs_of, load_task

# The smallest normal number of float32, in which outputs are.
LEAST = 2.0**-126


class Member(Section):
    """A trained model of an ensemble: its task, and how its predictions fit the first one's."""

    title: str
    """`CHALLENGER`, or the registered version."""
    weights_sha256: str
    """Digest of its weights, by which the version that it is can be found."""
    task: ImportPath
    options: dict[str, JsonValue]
    columns: TaskColumns
    order: tuple[int, ...] = ()
    """For classes: the place of each of the first one's classes among its own."""
    unit: tuple[float, float] = (1.0, 0.0)
    """For a regression: factor and offset from its unit of the label to the first one's."""


class EnsembleOptions(Section):
    """The members of an ensemble."""

    members: Annotated[tuple[Member, ...], Field(min_length=2)]


class MeanModel(nn.Module):
    """The members' models; the output is the first one's, for the mean of their predictions."""

    def __init__(self, tasks: Sequence[Task], members: Sequence[Member]) -> None:
        super().__init__()
        self.members = nn.ModuleList(task.build_model() for task in tasks)
        self._tasks, self._members = tasks, members

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the output of the first task whose prediction is the mean."""
        answers, form = list[Tensor](), torch.empty(0)
        for number, model in enumerate(self.members):
            prefix = _prefix(number)
            own = {n.removeprefix(prefix): t for n, t in inputs.items() if n.startswith(prefix)}
            output = model(**own).double()
            form = form if number else output
            answers.append(self._answer(number, output))
        mean, first = torch.stack(answers).mean(dim=0), self._tasks[0]
        # Outputs from which the task's softmax or sigmoid gives back the mean.
        if first.kind == "multiclass":
            return mean.clamp_min(LEAST).log()
        if first.kind == "binary":
            logits = mean.clamp_min(LEAST).log() - (1.0 - mean).clamp_min(LEAST).log()
            return logits.reshape(form.shape)
        return _output_of(first, mean, form)

    def _answer(self, number: int, output: Tensor) -> Tensor:
        member = self._members[number]
        predictions = self._tasks[number].predict(output)
        if member.order:
            return predictions[:, list(member.order)]
        factor, offset = member.unit
        return factor * predictions + offset if (factor, offset) != (1.0, 0.0) else predictions


class Ensemble(Task):
    """The members' tasks, of which the first decides what predictions mean."""

    Options = EnsembleOptions

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.members = cast("EnsembleOptions", options).members
        self.tasks = [load_task(each.task, each.options, each.columns) for each in self.members]
        self._follow_first()

    def _follow_first(self) -> None:
        first = self.tasks[0]
        self.kind, self.metrics = first.kind, first.metrics
        if type(first).score is not Task.score:
            # Only then: metrics of the catalogue are measured faster.
            vars(self)["score"] = first.score

    def state(self) -> dict[str, JsonValue]:
        """Return the fitted state of each member."""
        return {"members": [task.state() for task in self.tasks]}

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Load the fitted state of each member."""
        states = cast("list[Mapping[str, JsonValue]]", state["members"])
        for task, own in zip(self.tasks, states, strict=True):
            task.load_state(own)
        self._follow_first()

    def encode(self, rows: pl.DataFrame) -> Batch:
        """Encode rows for each member; label and weight are the first one's."""
        batches = [task.encode(rows) for task in self.tasks]
        named = {
            f"{_prefix(number)}{name}": tensor
            for number, batch in enumerate(batches)
            for name, tensor in inputs_of(batch).items()
        }
        return named | {n: batches[0][n] for n in (LABEL, WEIGHT) if n in batches[0]}

    def build_model(self) -> nn.Module:
        """Build all members' models."""
        return MeanModel(self.tasks, self.members)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return each member's blocks, and then the member."""
        members = cast("MeanModel", model).members
        pairs = zip(self.tasks, members, strict=True)
        return [each for task, member in pairs for each in (*task.blocks(member), member)]

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the first member's losses, of the mean."""
        return self.tasks[0].losses(output, self._own(batch))

    def predict(self, output: Tensor) -> Tensor:
        """Return the mean prediction, in the form of the first member."""
        return self.tasks[0].predict(output)

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the names of the first member."""
        return self.tasks[0].prediction_names

    def answer_texts(
        self, predictions: NDArray[np.float64], rows: pl.DataFrame
    ) -> Mapping[str, Sequence[str]]:
        """Return the texts that the first member answers for the mean, if any."""
        first = self.tasks[0]
        return first.answer_texts(predictions, rows.select(list(first.columns.features)))

    @property
    def scoring_rows(self) -> int:
        """Return the smallest number that a member asks for."""
        return min(task.scoring_rows for task in self.tasks)

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Describe an example as the first member does."""
        return self.tasks[0].describe(self._own(batch), index)

    def picture(self, batch: Batch, index: int) -> NDArray[np.uint8] | None:
        """Return the first member's picture."""
        return self.tasks[0].picture(self._own(batch), index)

    def baseline(self, rows: pl.DataFrame) -> NDArray[np.float64] | None:
        """Return the first member's baseline."""
        return self.tasks[0].baseline(rows)

    def _own(self, batch: Batch) -> Batch:
        prefix = _prefix(0)
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in batch.items()
            if name.startswith(prefix) or name in (LABEL, WEIGHT)
        }


def _prefix(number: int) -> str:
    return f"member{number}_"


def _output_of(task: Task, values: Tensor, form: Tensor) -> Tensor:
    """Return the output that a regression predicts values from.

    Raises:
        BadTaskError: its prediction is not a multiple of the output plus a constant.
    """
    # Two points give factor and offset; the third shows whether the prediction is linear at all.
    zero, one, two = (task.predict(torch.full_like(form, each)) for each in (0.0, 1.0, 2.0))
    factor = one - zero
    if not torch.allclose(two - one, factor) or not factor.abs().min():
        raise BadTaskError(
            f"predictions of {type(task).__name__} cannot be averaged in an ensemble",
            evidence="`predict` is not a multiple of the model's output plus a constant",
            action="remove [model.ensemble], or put the transformation into the model",
        )
    return ((values - zero) / factor).reshape(form.shape)
