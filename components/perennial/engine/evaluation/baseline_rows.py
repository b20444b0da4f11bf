"""Baselines row by row: their predictions on the test rows, which the gate pairs."""

import base64
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import PerennialError

DOCUMENT = "baselines"
FILE_NAME = "baselines.npz"
KINDS = ("predictions", "losses")
MOST_NUMBERS = 10_000_000
"""Predictions of a baseline with more numbers (80 MB) are not stored."""
NONE_POSITIONS = np.zeros(0, dtype=np.int64)

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class BaselineRows:
    """Predictions of the baselines on N rows of the test split.

    Attributes:
        positions: Positions of the rows in the split, ascending, shape [N].
        labels: Encoded, shape [N]; for tasks of the kind `statistic` the weights.
        predictions: Baseline → predictions in the task's form, shape [N] or [N, C].
        losses: Baseline → loss of each row, shape [N]; only of the constant, whose output is known.
    """

    positions: NDArray[np.int64] = field(default_factory=NONE_POSITIONS.copy)
    labels: Floats = field(default_factory=lambda: np.zeros(0))
    predictions: Mapping[str, Floats] = field(default_factory=dict)
    losses: Mapping[str, Floats] = field(default_factory=dict)

    def document(self) -> str:
        """Return them as text for the file that a step hands on, without too large ones."""
        kept: dict[str, NDArray[Any]] = {"positions": self.positions, "labels": self.labels}
        for kind in KINDS:
            kept |= {
                f"{kind}.{name}": values
                for name, values in getattr(self, kind).items()
                if values.size <= MOST_NUMBERS
            }
        content = io.BytesIO()
        # A constant's predictions compress to nothing.
        np.savez_compressed(content, allow_pickle=False, **kept)
        # As text, because a step hands on one file, a JSON document.
        return base64.b64encode(content.getvalue()).decode()

    @classmethod
    def read(cls, place: Path) -> "BaselineRows":
        """Load what `document` made from what a step handed on.

        Empty where an earlier version wrote it; such a version wrote a folder with an npz file.

        Raises:
            PerennialError: it is damaged.
        """
        try:
            if place.is_dir():
                file = place / FILE_NAME
                content = file.read_bytes() if file.exists() else b""
            else:
                found = json.loads(place.read_bytes()).get(DOCUMENT, "")
                content = base64.b64decode(found, validate=True)
            if not content:
                return cls()
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            predictions, losses = (
                {
                    name.removeprefix(f"{kind}."): values
                    for name, values in arrays.items()
                    if name.startswith(f"{kind}.")
                }
                for kind in KINDS
            )
            return cls(arrays["positions"], arrays["labels"], predictions, losses)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise PerennialError(
                "the baselines' predictions cannot be read: they are damaged",
                evidence=f"{place}: {error}",
                action="run the pipeline again from check_skeleton",
            ) from error
