"""Dataset task: base of tasks whose examples a map-style `torch.utils.data.Dataset` makes of rows.

What a script's dataset, transforms and tokenizer do stays as it is: docs/adapters/dataset.md.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import polars as pl
import torch
from torch import Tensor, nn

from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.engine.task import LABEL, Batch, Task


class MapStyle(Protocol):
    """What is used of a dataset; a list of examples has it, too."""

    def __getitem__(self, index: int, /) -> object: ...
    def __len__(self) -> int: ...


class DatasetTask(Task):
    """Task that encodes rows by a dataset over them.

    An example is a tuple, whose tensors get `names`, or a dictionary with `label` among its keys.
    """

    names: ClassVar[Sequence[str]] = ("inputs", LABEL)
    """Names of an example's parts: those of the arguments of the model's `forward`, and `label`."""

    @abstractmethod
    def dataset(self, rows: pl.DataFrame) -> MapStyle:
        """Return a dataset with one example per row, in order, without random changes."""

    def fit(self, train: pl.LazyFrame) -> None:
        """Keep one label: rows to predict have none, but the dataset reads it."""
        label = self.columns.label
        known = train.select(pl.col(label).drop_nulls()).head(1).collect()[label].to_list()
        if not known:
            raise BadDataError(f"the label {label!r} is missing in every row of the training split")
        self.fitted = {"any_label": known[0]}

    def encode(self, rows: pl.DataFrame) -> Batch:
        """Stack the examples of the dataset."""
        is_labelled = self.columns.label in rows.columns
        if not is_labelled:
            any_label = dict(self.fitted)["any_label"]
            rows = rows.with_columns(pl.lit(any_label).alias(self.columns.label))
        examples = self.dataset(rows)
        if len(examples) != rows.height:
            raise BadTaskError(
                f"the dataset has {len(examples)} examples for {rows.height} rows",
                action="make one example of each row, in order; filter rows before they are stored",
            )
        each = [self._named(examples[at]) for at in range(rows.height)]
        names = [name for name in each[0] if is_labelled or name != LABEL]
        try:
            return {name: torch.stack([example[name] for example in each]) for name in names}
        except (KeyError, RuntimeError) as error:
            raise BadTaskError(
                "the examples of the dataset do not have the same parts of the same shapes",
                evidence=f"{type(error).__name__}: {error}",
                action="pad them to one length in the dataset: a collate_fn is not called",
            ) from error

    def _named(self, example: object) -> Batch:
        if isinstance(example, Mapping):
            named = dict(example)
        elif isinstance(example, Sequence) and len(example) == len(self.names):
            named = dict(zip(self.names, example, strict=True))
        else:
            parts = len(example) if isinstance(example, Sequence) else 1
            raise BadTaskError(
                f"{type(self).__name__}.names does not name the parts of an example",
                evidence=f"an example has {parts} parts; names are {', '.join(self.names)}",
                action=f"write names = (…, {LABEL!r}), as the model's forward takes them",
            )
        try:
            tensors = {str(name): torch.as_tensor(part) for name, part in named.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadTaskError(
                "an example of the dataset does not consist of numbers",
                evidence=str(error),
                action="encode texts and categories in the dataset; return numbers or tensors",
            ) from error
        if LABEL not in tensors:
            raise BadTaskError(
                "an example of the dataset has no label",
                evidence=f"its parts are {', '.join(tensors)}",
                action=f"name one of them {LABEL!r}",
            )
        return tensors


class Logits(nn.Module):
    """A model of `transformers` that returns its logits, a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the logits of the inputs."""
        logits: Tensor = self.model(**inputs).logits
        return logits
