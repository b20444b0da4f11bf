"""Sanity checks alone: results are stored until task, contract or data change."""

import difflib
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap

from pydantic import JsonValue

from perennial.check_skeleton.config import CheckSkeletonConfig
from perennial.check_skeleton.registry import check_names, load_checks, select_names
from perennial.check_skeleton.verdict import format_verdict, list_contract_changes
from perennial.console import Console
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.section import digest_of
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.user_code import LogFormatter
from perennial.reports.page import SIGNS, Page
from perennial.runs import Home, age, code_digest
from perennial.snapshot_data.manifest import take_snapshot

PAGE_FILE = "report.html"
LOG_FILE = "log.txt"
# A page is about 100 kB; people who fix a task run the checks after every change.
MOST_KEPT = 20
INDENT = " " * 4
WIDTH = 96


@dataclass(frozen=True)
class Sanity:
    """A request to run the sanity checks on a task, contract and data."""

    config: CheckSkeletonConfig
    snapshot: Snapshot
    checks: tuple[str, ...]
    """The checks to run, in order."""
    folder: Path
    """Folder of the results: `report.html`, `log.txt`, and last `skeleton.json`."""
    initial: InitialModel | None = None
    """The weights that training starts with; None for random ones."""
    teachers: Teachers | None = None
    """The versions that it learns from; None without distillation."""

    @classmethod
    def of(
        cls, contract: Contract, code_folder: Path, home: Home, only: Sequence[str] = ()
    ) -> "Sanity":
        """Return the request for some checks, or all, of the current contract, code and data."""
        config = CheckSkeletonConfig(
            model=contract.model, skeleton=contract.skeleton, training=contract.training
        )
        snapshot = take_snapshot(contract.data, contract.split)
        checks = choose_checks(only)
        code = code_digest(contract, [code_folder])
        parts: list[JsonValue] = [code, config.to_json(), snapshot.digest(), list(checks)]
        initial, teachers = None, None
        if contract.model.initial.source != "scratch":
            from perennial.registry.initial import resolve_initial

            initial = resolve_initial(contract.model, home.environment)
        if contract.training.distillation is not None:
            from perennial.registry.earlier_versions import resolve_teachers

            asked = contract.training.distillation
            teachers = resolve_teachers(contract.model, asked, home.environment)
        parts += [each.identity() for each in (initial, teachers) if each is not None]
        folder = home.path / "sanity" / f"{contract.model.name}-{digest_of(parts)[:12]}"
        return cls(config, snapshot, checks, folder, initial, teachers)

    @property
    def page(self) -> Path:
        """The report's file."""
        return self.folder / PAGE_FILE

    @property
    def log(self) -> Path:
        """The file with the tracebacks of checks that raised."""
        return self.folder / LOG_FILE

    def folds(self, result: CheckResult) -> bool:
        """Whether a result is only counted: it does not apply, and nobody asked for it by name."""
        is_whole = len(self.checks) == len(check_names())
        return is_whole and result.outcome == "skipped" and result.severity != "off"

    def load_stored(self) -> SkeletonReport | None:
        """Load the stored report of the same request; None if there is none."""
        is_whole = (self.folder / SkeletonReport.file_name).exists() and self.page.exists()
        return SkeletonReport.read(self.folder) if is_whole else None

    def measured_at(self) -> str:
        """Return when the stored results were measured, for people."""
        moment = (self.folder / SkeletonReport.file_name).stat().st_mtime
        return f"{age(moment)}, at {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"

    def store(self, report: SkeletonReport, page: Page) -> None:
        """Store results, the report last, and delete the oldest stored results."""
        page.write(self.page)
        report.write(self.folder)
        folders = sorted(self.folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for folder in folders[:-MOST_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def log_to_folder(self) -> Iterator[None]:
        """Delete stored results and log to the folder; output of the task stays on the screen."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        handler = logging.FileHandler(self.log, delay=True)
        handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
            handler.close()


def run_checks(request: Sanity, console: Console) -> SkeletonReport:
    """Run the checks, show each result as it comes, and store all.

    Raises:
        BadDataError: a split has too few rows.
        BadTaskError: the task cannot be fitted, or its sample cannot be encoded.
    """
    console.working("  … loading")
    from perennial.check_skeleton.examination import examine
    from perennial.data.dataset import Dataset

    # The next task after each number of results.
    ahead = iter([*request.checks[1:], "baselines, report"])

    def show(result: CheckResult) -> None:
        if not request.folds(result):
            console.note("\n".join(result_lines(result)))
        console.working(f"  … {next(ahead)}")

    console.working("  … reading the data, fitting the task")
    with request.log_to_folder():
        try:
            examination = examine(
                request.config,
                Dataset(request.snapshot),
                request.initial,
                request.teachers,
                only=request.checks,
                show=show,
            )
        except PerennialError as error:
            logging.getLogger(__name__).exception("the sanity checks could not be run")
            error.add_note(f"  log:      {request.log}")
            raise
        request.store(examination.report, examination.page)
    return examination.report


def choose_checks(only: Sequence[str]) -> tuple[str, ...]:
    """Return the checks to run, in order, with the one that most depend on if they follow it.

    Raises:
        PerennialError: there is no check of such a name.
    """
    unknown = [name for name in only if name not in check_names()]
    if unknown:
        near = difflib.get_close_matches(unknown[0], check_names(), n=1)
        raise PerennialError(
            f"there is no check {unknown[0]!r}",
            evidence=f"the checks are: {', '.join(check_names())}",
            action=f"did you mean {near[0]}?" if near else "name one of them",
        )
    return select_names(only)


def list_checks() -> Iterator[str]:
    """Yield every check: its name, whether it can stop a run, what it expects, its source."""
    checks = load_checks()
    yield (
        f"{len(checks)} checks, in running order: `fail` can stop a run, `warn` only warns; "
        "[skeleton.severities] and [skeleton.waivers] of the contract change that"
    )
    for check in checks:
        yield f"\n{check.name}  ({check.severity})"
        purpose = (check.perform.__doc__ or "").partition("\n")[0]
        for title, text in (
            ("", purpose),
            ("expects: ", check.expects),
            ("source: ", check.source),
        ):
            if isinstance(text, str):
                yield from (f"{INDENT}{line}" for line in wrap(f"{title}{text}", WIDTH))


def result_lines(result: CheckResult) -> Iterator[str]:
    """Yield the lines of a result: outcome, name, seconds, finding; then what to do about it."""
    sign = "-" if result.outcome == "skipped" else SIGNS[result.outcome]
    width = max(map(len, check_names()))
    found = result.measured or f"skipped: {result.hint}"
    yield f"  {sign} {result.check:<{width}} {result.seconds:6.2f}s  {' '.join(found.split())}"
    if result.outcome in ("warned", "failed"):
        yield f"{INDENT}→ {result.hint}"
    for agreed in list_contract_changes(result):
        yield f"{INDENT}set by the contract: {agreed}"


def closing_lines(request: Sanity, report: SkeletonReport) -> Iterator[str]:
    """Yield the checks that do not apply in one line, the verdict, and the log file if any."""
    if folded := [result.check for result in report.results if request.folds(result)]:
        yield f"  - {len(folded)} not applicable (reasons are in the report): {', '.join(folded)}"
    yield ""
    yield format_verdict(report)
    if request.log.exists():
        yield f"log: {request.log}"
