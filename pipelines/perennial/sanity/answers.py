"""Sanity: the skeleton checks alone, their results kept until task, contract or data change."""

import hashlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perennial.check_skeleton.config import CHECK_NAMES, FOUNDATION, CheckSkeletonConfig
from perennial.check_skeleton.verdict import agreements, verdict_of
from perennial.contract import Contract
from perennial.contracts.section import canonical_json
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.reports.page import SIGNS, Page
from perennial.runs import Home, age, code_digest
from perennial.snapshot_data.manifest import take_snapshot

PAGE_FILE = "report.html"
LOG_FILE = "log.txt"
# A page is about 100 kB; whoever mends a task looks again after every line.
MOST_KEPT = 20
INDENT = " " * 4


@dataclass(frozen=True)
class Sanity:
    """One question to the checks: of this task, contract and data.

    Attributes:
        config: The sections that the checks read.
        snapshot: The data.
        checks: The checks that are made, in their order.
        folder: Where the answer is kept: `report.html`, `log.txt`, and last `skeleton.json`.
    """

    config: CheckSkeletonConfig
    snapshot: Snapshot
    checks: tuple[str, ...]
    folder: Path

    @classmethod
    def of(
        cls, contract: Contract, code_folder: Path, home: Home, only: Sequence[str] = ()
    ) -> "Sanity":
        """The question that a contract asks now.

        Args:
            contract: What is examined.
            code_folder: Where the user's task module is looked for first.
            home: Where answers are kept.
            only: Checks to make; none for all of them.
        """
        config = CheckSkeletonConfig(
            model=contract.model, skeleton=contract.skeleton, training=contract.training
        )
        snapshot = take_snapshot(contract.data, contract.split)
        checks = chosen(only)
        code = code_digest(contract, [code_folder])
        identity = canonical_json([code, config.to_json(), snapshot.digest(), list(checks)])
        key = hashlib.sha256(identity.encode()).hexdigest()[:12]
        folder = home.path / "sanity" / f"{contract.model.name}-{key}"
        return cls(config, snapshot, checks, folder)

    @property
    def page(self) -> Path:
        """The report's file."""
        return self.folder / PAGE_FILE

    @property
    def log(self) -> Path:
        """Where the tracebacks of checks that raised are."""
        return self.folder / LOG_FILE

    def copied_page(self, target: Path) -> Path:
        """The report, copied to where a person wants it."""
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(self.page, target))

    def kept(self) -> SkeletonReport | None:
        """The answer, if the same was asked before."""
        is_whole = (self.folder / SkeletonReport.file_name).exists() and self.page.exists()
        return SkeletonReport.read(self.folder) if is_whole else None

    def measured_at(self) -> str:
        """When the answer was found, for people."""
        moment = (self.folder / SkeletonReport.file_name).stat().st_mtime
        return f"{age(moment)}, at {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"

    def keep(self, report: SkeletonReport, page: Page) -> None:
        """Store an answer, the report last, and forget the oldest answers."""
        page.write(self.page)
        report.write(self.folder)
        folders = sorted(self.folder.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for folder in folders[:-MOST_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Drop what was kept and log to the folder; what the task prints stays on the screen."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        handler = logging.FileHandler(self.log, delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
            handler.close()


def chosen(only: Sequence[str]) -> tuple[str, ...]:
    """The checks to make, in their order: with the one that most rest on, if they come after it."""
    if not only:
        return CHECK_NAMES
    wanted = [name for name in CHECK_NAMES if name in only]
    if CHECK_NAMES.index(wanted[-1]) > CHECK_NAMES.index(FOUNDATION):
        wanted = [name for name in CHECK_NAMES if name in (*wanted, FOUNDATION)]
    return tuple(wanted)


def result_lines(result: CheckResult) -> Iterator[str]:
    """A result on the screen: outcome, name, seconds, finding; then what to do about it."""
    sign = "-" if result.outcome == "skipped" else SIGNS[result.outcome]
    sign = SIGNS["warned"] if result.is_unmeasured else sign
    width = max(map(len, CHECK_NAMES))
    word = "not measured" if result.is_unmeasured else "skipped"
    found = result.measured or f"{word}: {result.hint}"
    yield f"  {sign} {result.check:<{width}} {result.seconds:6.2f}s  {' '.join(found.split())}"
    if result.outcome in ("warned", "failed"):
        yield f"{INDENT}→ {result.hint}"
    for agreed in agreements(result):
        yield f"{INDENT}by the contract: {agreed}"


def closing_lines(question: Sanity, report: SkeletonReport) -> Iterator[str]:
    """How it ended."""
    yield verdict_of(report)
    if question.log.exists():
        yield f"log: {question.log}"
