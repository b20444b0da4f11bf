"""Champion's code: a champion is scored as it serves, whatever changed since it was registered.

Weights that get other inputs than they were trained on predict badly, and any challenger of the
edited code would replace them. What the user edited is taken from the version, which carries it.
Perennial's own tasks and installed packages are those of today: whether they still predict what
they predicted then is measured on the version's example rows.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.clients.pyfunc_flavor import (
    CODE_FOLDER,
    EXAMPLE_ROWS_FILE,
    read_example_predictions,
    read_requirements,
)
from perennial.contracts.data import Split
from perennial.contracts.errors import BadTaskError, join_names
from perennial.contracts.training import Challenger
from perennial.contracts.user_code import OWN_NAME
from perennial.engine.evaluation.scoring import Scored, blames_machine
from perennial.engine.export import load_model
from perennial.engine.metrics.arrays import NUMBERS_AT_ONCE, slices_of
from perennial.engine.serving.carried_code import carried_modules
from perennial.engine.serving.pyfunc import predict_rows
from perennial.engine.sources import changed_sources
from perennial.engine.task import Task
from perennial.gate.comparison import Contender
from perennial.gate.serving import ABSOLUTE, RELATIVE

# Of the range of predictions: more than other hardware and other kernels change them by.
SAME = 0.01


@dataclass(frozen=True)
class ChampionCode:
    """What a champion was registered with, and what of it is another today.

    Attributes:
        folder: The version's files.
        own: Files of the user that changed.
        others: Files of Perennial's tasks that changed, and packages with their versions.
    """

    folder: Path
    own: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, record: Challenger) -> "ChampionCode":
        """Compare a downloaded version with this process."""
        code = folder / CODE_FOLDER
        found = chain.from_iterable(changed_sources(code, path) for path in record.task_paths)
        files = list(dict.fromkeys(found))
        own = [file for file in files if not file.startswith(f"{OWN_NAME}/")]
        packages = [
            f"{name} {then} (now {now})"
            for name, then in read_requirements(folder).items()
            if (now := _installed(name)) != then
        ]
        return cls(folder, tuple(own), (*(each for each in files if each not in own), *packages))

    @property
    def change(self) -> str:
        """Name what the user edited."""
        return f"{join_names(self.own, 3)} changed since it was registered"

    def score(
        self, score: Callable[..., tuple[Task, dict[Split, Scored]]], challenger: Contender
    ) -> Contender:
        """Score the champion, where the user's code was edited by the code that it carries.

        If both codes predict the same, the edit is in another place, and the current one measures
        both models.

        Raises:
            BadTaskError: its measures are the user's own, and the two codes do not agree.
            Exception: what the task's code raises.
        """
        if not self.own:
            task, splits = score()
            return Contender(task, splits[Split.TEST])
        carried_task, splits = score(carried=True)
        carried = splits[Split.TEST]
        try:
            task, splits = score()
        except (Exception, SystemExit) as error:  # the current code need not know an old model
            if isinstance(error, Exception) and blames_machine(error):
                raise
        else:
            if _agree(splits[Split.TEST], carried):
                return Contender(task, splits[Split.TEST])
        kind = carried_task.kind
        if kind != challenger.task.kind:
            raise BadTaskError(
                f"{self.change}, and it is of kind {kind}, not {challenger.task.kind}"
            )
        if kind == "statistic":
            raise BadTaskError(
                f"{self.change}, and today's code does not measure its rows as its own does"
            )
        # The challenger's task: one code measures the predictions of both.
        return Contender(challenger.task, carried, by_carried_code=True)

    def verify(self, scored: Contender, version: str, *, is_whole: bool) -> tuple[str, ...]:
        """Return notes on what changed, after a look at the example rows.

        A model that one process does not hold whole does not predict these.

        Raises:
            BadTaskError: they are not predicted as when the version was registered.
        """
        notes = []
        if self.own:
            how = "is scored by the code that it carries"
            if not scored.by_carried_code:
                how = "predicts the same by today's code and its own"
            notes.append(f"version {version} {how}: {self.change}")
        is_judged = bool(self.others) and is_whole
        known = read_example_predictions(self.folder) if is_judged else None
        if known is not None and not _is_near(self._predict(), known):
            raise BadTaskError(
                "it no longer predicts its example rows as when it was registered, with "
                f"{join_names(self.others, 3)}"
            )
        if self.others and known is None:
            notes.append(
                f"version {version} was registered with {join_names(self.others, 3)}: its "
                "predictions in production may differ"
            )
        return tuple(notes)

    def _predict(self) -> NDArray[np.float64]:
        with carried_modules(self.folder / CODE_FOLDER):
            task, model = load_model(self.folder)
            with (self.folder / EXAMPLE_ROWS_FILE).open("rb") as rows:
                return predict_rows(task, model, pl.read_parquet(rows))


def _installed(package: str) -> str:
    """Return the version as requirements name it: without the build, such as `cpu`."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _agree(one: Scored, other: Scored) -> bool:
    """Whether two codes give the rows the same predictions and labels, but for rounding."""
    pairs = ((one.predictions, other.predictions), (one.labels, other.labels))
    return all(
        mine.shape == theirs.shape
        and all(
            np.allclose(mine[part], theirs[part], rtol=RELATIVE, atol=ABSOLUTE)
            for part in slices_of(len(mine), NUMBERS_AT_ONCE)
        )
        for mine, theirs in pairs
    )


def _is_near(found: NDArray[np.float64], known: NDArray[np.float64]) -> bool:
    if found.shape != known.shape:
        return False
    return bool(np.allclose(found, known, rtol=SAME, atol=SAME * max(np.ptp(known), ABSOLUTE)))
