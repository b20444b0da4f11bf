"""Notebook: load, sanity and run in Python, with results that a notebook shows inline.

    from perennial.api import load, run, sanity

`from perennial import load` cannot work: `perennial` is a namespace package, which holds no names.
"""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perennial import supervisor
from perennial.arguments import open_home
from perennial.check_skeleton.verdict import format_verdict
from perennial.console import Console
from perennial.contract import Contract, load_beside_its_task, load_checked
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.user_code import forget_user_modules
from perennial.data.dataset import Dataset
from perennial.data.pictures import Pixels, encode_png
from perennial.engine.task import Batch, Task, load_task
from perennial.runs import Home, RunRecord, code_digest
from perennial.sanity import Sanity, run_checks
from perennial.snapshot_data.manifest import take_snapshot

FRAME_HEIGHT = 720  # of a report in a notebook, in pixels
PICTURE_SIDE = 96
_loaded: dict[str, tuple[Path, str]] = {}
"""Folder and digest of the code whose modules this process has imported."""


class ShownBatch(Batch):
    """A batch as the model gets it; a notebook shows its tensors and its decoded examples."""

    def __init__(self, batch: Batch, task: Task) -> None:
        super().__init__(batch)
        self._task = task

    def _repr_html_(self) -> str:
        rows = []
        for name, tensor in self.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            # A table without numbers has a tensor without columns.
            ends = (tensor.min(), tensor.max()) if tensor.numel() else ()
            span = ", ".join(f"{end.item():.4g}" for end in ends)
            rows.append((name, str(list(tensor.shape)), dtype, span))
        examples = []
        for index in range(len(next(iter(self.values())))):
            shown = self._task.describe(self, index)
            pixels = self._task.picture(self, index)
            picture = "" if pixels is None else _picture(pixels)
            text = ", ".join(f"{name}: {value}" for name, value in shown.items())
            examples.append(f"<li>{picture}{html.escape(text[:500])}</li>")
        tensors = _table(("tensor", "shape", "type", "smallest, largest"), rows)
        return f"{tensors}<ol>{''.join(examples)}</ol>"


@dataclass(frozen=True)
class Project:
    """A contract with its data: what `load` returns.

    Attributes:
        contract: Every section, with its defaults.
        folder: The contract's folder, where the task's module is looked for.
    """

    contract: Contract
    folder: Path

    @cached_property
    def snapshot(self) -> Snapshot:
        """The files of the data as they are now, and the rows of each split."""
        return take_snapshot(self.contract.data, self.contract.split)

    @cached_property
    def task(self) -> Task:
        """The task, fitted on the training split."""
        model = self.contract.model
        task = load_task(model.task, model.options, self.snapshot.task_columns)
        task.fit(Dataset(self.snapshot).scan(Split.TRAIN))
        return task

    def batch(self, rows: int = 8, split: str = "train") -> Batch:
        """Return the first rows of a split, encoded as the model gets them.

        Raises:
            PerennialError: there is no such split.
        """
        if split not in list(Split):
            raise PerennialError(
                f"there is no split {split!r}", action=f"choose {', '.join(list(Split))}"
            )
        task = self.task
        found = Dataset(self.snapshot).scan(Split(split)).head(rows).collect()
        return ShownBatch(task.encode(found), task)

    def _repr_html_(self) -> str:
        snapshot, data = self.snapshot, self.contract.data
        rows = [(str(split), f"{count:,} rows") for split, count in snapshot.split_rows.items()]
        roles = {"label": data.label, "time": data.time, "ids": ", ".join(data.ids)}
        rows += [(role, str(name)) for role, name in roles.items() if name]
        rows += [("features", ", ".join(snapshot.task_columns.features))]
        model = self.contract.model
        return f"<b>{html.escape(model.name)}</b> ({html.escape(model.task)}){_table((), rows)}"


@dataclass(frozen=True)
class SanityResult:
    """The results of the sanity checks: what `sanity` returns.

    Attributes:
        report: Each check's result.
        page: The report's file.
    """

    report: SkeletonReport
    page: Path

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.report.failures

    def __str__(self) -> str:
        return f"{format_verdict(self.report)} ({self.page})"

    def _repr_html_(self) -> str:
        return _frame(self.page)


@dataclass(frozen=True)
class RunResult:
    """A run that ended: what `run` returns.

    Attributes:
        record: Its id, status and times.
        page: The report's file.
    """

    record: RunRecord
    page: Path

    @property
    def succeeded(self) -> bool:
        """Whether every step ended; a rejected challenger is a success, too."""
        return self.record.status == "succeeded"

    def __str__(self) -> str:
        return f"run {self.record.run_id} {self.record.status} ({self.page})"

    def _repr_html_(self) -> str:
        return _frame(self.page)


def load(contract: str | Path) -> Project:
    """Load a contract and check its task and suite, as `perennial check` does.

    A task whose source has changed since the last call, or is in another folder, is imported again.

    Raises:
        PerennialError: the contract has mistakes, or the task cannot be loaded.
    """
    path = Path(contract)
    folder = path.resolve().parent
    source = folder, code_digest(load_beside_its_task(path), [folder])
    if source != _loaded.get("source"):
        forget_user_modules(folder)
        _loaded["source"] = source
    return Project(load_checked(path), folder)


def sanity(
    contract: str | Path, only: Sequence[str] = (), home: str | Path | None = None
) -> SanityResult:
    """Run the sanity checks, as `perennial sanity` does; equal requests are answered from its home.

    Args:
        contract: The contract's file.
        only: Names of checks; empty means all.
        home: Folder of results; by default `.perennial` beside the contract or above it.

    Raises:
        PerennialError: the checks could not be run.
    """
    project = load(contract)
    request = Sanity.of(project.contract, project.folder, _home(home, contract), only)
    report = request.load_stored() or run_checks(request, Console())
    return SanityResult(report, request.page)


def run(contract: str | Path, home: str | Path | None = None) -> RunResult:
    """Train, evaluate and register, as `perennial run` does; continues an unfinished run.

    Args:
        contract: The contract's file.
        home: As of `sanity`.

    Raises:
        PerennialError: the contract has mistakes, or another run of the model is active.
    """
    project = load(contract)
    place, pipeline = _home(home, contract), "continuous_training"
    launch = supervisor.Launch(place, project.contract, project.folder)

    def choose() -> RunRecord:
        chosen = (project.contract, pipeline, launch.code_digest)
        return place.unfinished_run(*chosen) or place.new_run(*chosen)

    ended = supervisor.execute(launch, choose, Console())
    return RunResult(ended, place.folder(ended.run_id) / "report.html")


def _home(home: str | Path | None, contract: str | Path) -> Home:
    return open_home(Path(home) if home is not None else None, Path(contract))


def _picture(pixels: Pixels) -> str:
    data = base64.b64encode(encode_png(pixels)).decode()
    return f'<img src="data:image/png;base64,{data}" height="{PICTURE_SIDE}"> '


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (
        [("th", header), *(("td", row) for row in rows)] if header else [("td", r) for r in rows]
    )
    cells = (
        "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in line) for tag, line in lines
    )
    return f"<table>{''.join(f'<tr>{each}</tr>' for each in cells)}</table>"


def _frame(page: Path) -> str:
    """Return a page in a frame without rights, as dashboards show reports."""
    content = html.escape(page.read_text(), quote=True)
    return (
        f'<iframe sandbox srcdoc="{content}" width="100%" height="{FRAME_HEIGHT}" '
        'style="border: 0"></iframe>'
    )
