"""The workshop: small data sets of each kind of task, ready for the sanity checks.

Used by the tests of `tests/planted_bugs` and by `benchmarks/planted_bugs.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from captioned_shapes import OPTIONS as SHAPE_OPTIONS
from captioned_shapes import write_shapes
from documents import SETTINGS as TEXT_SETTINGS
from documents import SMALL, TOPIC_SETTINGS, documents, write_topics
from documents import TRAINING as TEXT_TRAINING
from documents import pinned as pinned_documents
from own_tasks import SETTINGS as OWN_SETTINGS
from own_tasks import TRAINING as OWN_TRAINING
from own_tasks import (
    write_customers,
    write_forecasts,
    write_reviews,
    write_sentences,
    write_series,
)
from perennial.check_skeleton.config import SkeletonSection
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.skeleton import CheckResult
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.snapshot_data.manifest import take_snapshot
from skeleton_tables import SETTINGS as TABLE_SETTINGS
from skeleton_tables import TRAINING as TABLE_TRAINING
from skeleton_tables import WITHOUT_TRIALS, table
from skeleton_tables import pinned as pinned_table

Values = Mapping[str, Any]
SMALL_NETWORK = {"shape": [8, 8], "resnet": {"depths": [1, 1], "widths": [8, 16]}}


@dataclass(frozen=True)
class Material:
    """A kind of data.

    Attributes:
        write: Writes it into a folder; keyword arguments are its shape.
        settings: Of the checks.
        options: Of the tasks made for it.
        training: What is trained on it, beside the defaults.
    """

    write: Callable[..., Snapshot]
    settings: SkeletonSection
    options: Values = field(default_factory=dict)
    training: Values = field(default_factory=dict)


def _write_table(folder: Path, *, kind: str, **shape: Any) -> Snapshot:
    return pinned_table(table(kind, **shape), folder)


def _write_documents(folder: Path, **shape: Any) -> Snapshot:
    return pinned_documents(folder, documents(**shape))


def write_digits(
    folder: Path, *, rows: int = 1797, classes: int = 10, validation: float = 0.15,
    rare: bool = False, colour: bool = False,
) -> Snapshot:  # fmt: skip
    """Real handwritten digits of scikit-learn as lists of 64 grey values, shuffled once.

    With `rare` the label is whether they are zeros, one in ten; with `colour` they are files: red
    on a blue ground, which is the brighter the further to the right.
    """
    source = load_digits(n_class=classes)
    grey = (source.data / 16 * 255).astype("uint8")
    frame = pl.DataFrame(
        {
            "row": range(len(source.target)),
            "picture": list(map(_coloured, grey)) if colour else pl.Series(grey.tolist()),
            "digit": (source.target == 0).astype("int64") if rare else source.target,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    frame.sample(min(rows, frame.height), shuffle=True, seed=0).write_parquet(folder / "a.parquet")
    data = DataSection(uri=str(folder), label="digit", ids=("row",))
    return take_snapshot(data, SplitSection(validation_fraction=validation))


def _coloured(grey: NDArray[np.uint8]) -> bytes:
    """A digit as a PNG of three different channels."""
    red = grey.reshape(8, 8)
    blue = np.broadcast_to(np.arange(0, 256, 32, dtype=np.uint8), (8, 8)) // (1 + grey[20] // 64)
    file = BytesIO()
    Image.fromarray(np.stack([red, red // 3, blue], axis=-1)).save(file, format="PNG")
    return file.getvalue()


DIGIT_SETTINGS = SkeletonSection(
    sample_rows=512, batch_rows=32, overfit_rows=16, training_steps=60,
    learning_rates=(1e-2, 1e-3),
)  # fmt: skip
DIGIT_TRAINING = {"steps": 600, "global_batch_size": 64}
MATERIALS: dict[str, Material] = {
    kind: Material(partial(_write_table, kind=kind), TABLE_SETTINGS, training=TABLE_TRAINING)
    for kind in ("binary", "multiclass", "regression", "zero-inflated", "weak", "noise")
} | {
    "digits": Material(
        write_digits, DIGIT_SETTINGS, options=SMALL_NETWORK, training=DIGIT_TRAINING
    ),
    "digit files": Material(
        partial(write_digits, colour=True), DIGIT_SETTINGS, training=DIGIT_TRAINING
    ),
    "documents": Material(
        _write_documents, TEXT_SETTINGS, options=SMALL, training=TEXT_TRAINING
    ),
    "texts": Material(_write_documents, TEXT_SETTINGS, training=TEXT_TRAINING),
    "topics": Material(write_topics, TOPIC_SETTINGS, training=TEXT_TRAINING),
    "captions": Material(
        write_shapes,
        SkeletonSection(
            sample_rows=128, batch_rows=32, overfit_rows=8, training_steps=60,
            learning_rates=(1e-3, 1e-2),
        ),
        options=SHAPE_OPTIONS,
        training={"steps": 400, "global_batch_size": 32},
    ),
    "customers": Material(write_customers, OWN_SETTINGS, training=OWN_TRAINING),
    "reviews": Material(write_reviews, OWN_SETTINGS, training=OWN_TRAINING),
    "sentences": Material(
        write_sentences, OWN_SETTINGS, options={"context_length": 64}, training=OWN_TRAINING
    ),
    "series": Material(write_series, OWN_SETTINGS, training=OWN_TRAINING),
    "forecasts": Material(write_forecasts, OWN_SETTINGS, training=OWN_TRAINING),
}  # fmt: skip


class Workshop:
    """Makes subjects; each data set is written once.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[tuple[Any, ...], Dataset] = {}

    def dataset(self, material: str, **shape: Any) -> Dataset:
        """A data set of a kind."""
        key = (material, *sorted(shape.items()))
        if key not in self._written:
            folder = self._folder / f"{len(self._written)}-{material}"
            folder.mkdir(parents=True)
            self._written[key] = Dataset(MATERIALS[material].write(folder, **shape))
        return self._written[key]

    def subject(
        self, task_type: type, material: str, *,
        options: Values | None = None, training: Values | None = None,
        settings: Values | None = None, **shape: Any,
    ) -> Subject:  # fmt: skip
        """A task over a kind of data, ready to be examined; the values depart from the kind's."""
        kind, dataset = MATERIALS[material], self.dataset(material, **shape)
        section = task_type.Options.model_validate(
            {**kind.options, **(options or {})}, strict=False
        )
        make_task = partial(task_type, section, dataset.snapshot.task_columns)
        values = {"seed": 1, **kind.training, **(training or {})}
        return Subject.prepare(
            make_task,
            dataset,
            kind.settings.model_copy(update={"severities": WITHOUT_TRIALS, **(settings or {})}),
            TrainingSection.model_validate(values, strict=False),
        )


def results_of(subject: Subject, only: str = "") -> dict[str, CheckResult]:
    """Results by check: of all checks, or of one check."""
    names = (only,) if only else ()
    return {result.check: result for result in run_checks(subject, names)}
