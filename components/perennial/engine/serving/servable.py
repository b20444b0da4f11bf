"""Servable: makes an exported model one that MLflow's tools serve, from raw rows, anywhere."""

from pathlib import Path

import numpy as np
import polars as pl

from perennial.clients.pyfunc_flavor import write_example_predictions, write_flavor
from perennial.contracts.data import Split
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.export import ADAPTERS, load_exported_task, load_model
from perennial.engine.serving import pyfunc
from perennial.engine.sources import sources_of
from perennial.engine.task import Task

EXAMPLE_ROWS = 5


def make_servable(folder: Path, dataset: Dataset, width: int | None = None) -> None:
    """Add MLflow's `python_function` flavour to an exported model.

    Validation rows give the input example. The model predicts it, unless `width`, the number of
    columns of its predictions, is known: then nothing tells later what it predicted.

    The folder then holds its own code: Perennial's part of it, and the task's where no installed
    package has it. A later checkout, or none, serves it as well. What installed packages have is
    required in the version that is installed here.

    Raises:
        BadTaskError: the task cannot be loaded from what was stored.
    """
    challenger = Challenger.read(folder)
    predictions = None
    if width is None:
        task, model = load_model(folder)
        predictions = pyfunc.predict_rows(task, model, example_rows(task, dataset))
        width = predictions.shape[1]
    else:
        _, task = load_exported_task(folder, verified=True)
    example = example_rows(task, dataset)
    texts = task.answer_texts(np.zeros((example.height, width)), example)
    needed = sources_of([pyfunc.__name__, *_modules(challenger)])
    write_flavor(
        folder,
        loader=pyfunc.__name__,
        sources=needed.files,
        requirements=[f"{name}=={version}" for name, version in needed.distributions.items()],
        example=example,
        nullable=_nullable(dataset, example.schema),
        outputs=dict.fromkeys(texts, str)
        or dict.fromkeys(pyfunc.prediction_names(task, width), float),
    )
    if predictions is not None:
        write_example_predictions(folder, predictions)


def example_rows(task: Task, dataset: Dataset) -> pl.DataFrame:
    """Return a few validation rows, as a served model gets them."""
    rows = next(dataset.batches(Split.VALIDATION, max(EXAMPLE_ROWS, task.scored_together)))
    return rows.select(input_columns(task))


def _modules(challenger: Challenger) -> list[str]:
    """Return what loading imports by name: the modules of its tasks, and what an adapter needs."""
    former = challenger.base.former if challenger.base else None
    tasks = [*challenger.task_paths, *([former.task] if former else [])]
    adapters = [ADAPTERS] if challenger.base else []
    return [*(task.partition(":")[0] for task in tasks), *adapters]


def input_columns(task: Task) -> list[str]:
    """Return the columns sent to a served model: features, and the label where rows need it."""
    names = list(task.columns.features)
    is_measured = task.kind == "statistic" and not task.serves_predictions
    if is_measured and task.columns.label not in names:
        names.append(task.columns.label)
    return names


def _nullable(dataset: Dataset, schema: pl.Schema) -> list[str]:
    """Return integer columns in which a value is missing anywhere."""
    integers = [name for name, dtype in schema.items() if dtype.is_integer()]
    if not integers:
        return []
    counts = dataset.collect(dataset.scan().select(pl.col(integers).null_count()))
    return [name for name in integers if counts[name].item()]
