"""Planted bugs and healthy tasks, through the skeleton checks.

    PYTHONPATH=tests/support python -m benchmarks.planted_bugs [--whole]

Every bug of `tests/planted_bugs` is a few lines away from a healthy task. It is detected when the
check that is meant for it finds it (warned or failed, as the test demands) and its hint names the
cause. Bugs that no check can see are listed as misses. Healthy tasks go through all checks
but for the trials in several processes; with `--whole` bugs do so, too, and what else speaks up is
listed beside them (ten times as long).
"""

import argparse
import importlib.util
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.record import keep_page
from perennial.contracts.skeleton import CheckResult
from planted import Bug, Healthy
from workshop import Workshop, results_of

TESTS = Path(__file__).parent.parent / "tests" / "planted_bugs"


@dataclass(frozen=True)
class Outcome:
    """What the checks reported of one bug."""

    bug: Bug
    domain: str
    found: CheckResult
    others: Sequence[str]

    @property
    def detected(self) -> bool:
        """By the check that is meant for it, with the cause in its hint."""
        return self.found.outcome == self.bug.outcome and bool(
            re.search(self.bug.hint, self.found.hint)
        )

    def row(self) -> str:
        """A line of the table."""
        verdict = self.found.outcome if self.detected else f"**missed** ({self.found.outcome})"
        return (
            f"| {self.domain} | {self.bug.name} | {self.bug.check} | {verdict} | "
            f"{', '.join(self.others)} |"
        )


def main() -> None:
    """Examine all of them and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names; writes no results")
    parser.add_argument("--whole", action="store_true", help="every check on every bug")
    arguments = parser.parse_args()
    only = arguments.only
    logging.disable(logging.CRITICAL)  # bugs that raise are meant to
    outcomes: list[Outcome] = []
    healthy: dict[str, list[CheckResult]] = {}
    misses: list[str] = []
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
        workshop = Workshop(Path(folder))
        for path in sorted(TESTS.glob("test_*.py")):
            module = loaded(path)
            domain = path.stem.removeprefix("test_").removesuffix("_bugs")
            if hasattr(module, "use"):
                module.use(workshop)
            # Modules with tables of their own make are examined by their tests alone.
            bugs = [*getattr(module, "BUGS", ()), *getattr(module, "LONG", ())]
            bugs = [each for each in bugs if isinstance(each, Bug)]
            for bug in (each for each in bugs if only in each.name):
                outcomes.append(examined(bug, domain, workshop, is_whole=arguments.whole))
                print(outcomes[-1].row(), flush=True)
            for task in (each for each in healthy_of(module) if only in each.name):
                results = results_of(task.subject(workshop))
                healthy[f"{domain.removeprefix('healthy_')}: {task.name}"] = list(results.values())
                print(healthy_row(task.name, list(results.values())), flush=True)
            misses += getattr(module, "MISSES", ())
    if not only:
        keep_page("planted_bugs.md", "\n".join(page(outcomes, healthy, misses)) + "\n")


def loaded(path: Path) -> ModuleType:
    """A module of the tests, which are no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def healthy_of(module: ModuleType) -> list[Healthy]:
    """The healthy tasks of a module: a list, or by name in the modules of nothing else."""
    found: list[Healthy] = []
    for named in (getattr(module, "HEALTHY", ()), getattr(module, "MORE", ())):
        if not isinstance(named, dict):
            found += [each for each in named if isinstance(each, Healthy)]
        elif module.__name__.startswith("test_healthy"):
            found += [Healthy(name, *values) for name, values in named.items()]
    return found


def examined(bug: Bug, domain: str, workshop: Workshop, *, is_whole: bool) -> Outcome:
    """One bug through its check, or through all checks."""
    results = results_of(bug.subject(workshop), "" if is_whole else bug.check)
    others = [
        f"{name} {result.outcome}"
        for name, result in results.items()
        if result.outcome in ("warned", "failed") and name != bug.check
    ]
    return Outcome(bug, domain, results[bug.check], others)


def healthy_row(name: str, results: Sequence[CheckResult]) -> str:
    """A line of the table of healthy tasks."""
    counts = Counter(result.outcome for result in results)
    doubted = [r.check for r in results if r.outcome in ("warned", "failed")]
    seconds = sum(result.seconds for result in results)
    numbers = " | ".join(str(counts[each]) for each in ("passed", "warned", "failed", "skipped"))
    return f"| {name} | {numbers} | {seconds:.1f} | {', '.join(doubted)} |"


def page(
    outcomes: Sequence[Outcome],
    healthy: dict[str, list[CheckResult]],
    misses: Sequence[str],
) -> list[str]:
    """Totals, then the tables."""
    detected = sum(each.detected for each in outcomes)
    planted = len(outcomes) + len(misses)
    verdicts = [result.outcome for results in healthy.values() for result in results]
    judged = len(verdicts) - verdicts.count("skipped")
    return [
        "# Planted bugs and healthy tasks",
        "",
        f"{date.today()}, torch {torch.__version__}, `python -m benchmarks.planted_bugs`.",
        "",
        f"- **{detected} of {planted} planted bugs detected** ({detected / planted:.1%}; goal "
        "95%), each by the check that is meant for it, with a hint that names the cause.",
        f"- **{len(healthy)} healthy tasks: {verdicts.count('failed')} failed checks** (goal 0), "
        f"{verdicts.count('warned')} warnings among {judged} verdicts "
        f"({verdicts.count('warned') / max(judged, 1):.1%}; goal 2%).",
        "",
        "## Bugs",
        "",
        "| kind | what is wrong | check meant for it | outcome | others that speak up |",
        "|---|---|---|---|---|",
        *(each.row() for each in outcomes),
        "",
        "## Not seen by any check",
        "",
        *(f"- {each}" for each in misses or ("none",)),
        "",
        "## Healthy tasks",
        "",
        "| task | passed | warned | failed | skipped | seconds | doubted |",
        "|---|---|---|---|---|---|---|",
        *(healthy_row(name, results) for name, results in healthy.items()),
    ]


if __name__ == "__main__":
    main()
