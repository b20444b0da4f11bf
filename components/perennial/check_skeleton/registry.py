"""The registry of sanity checks: `@check` on the function that performs a check declares it."""

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perennial.contracts.skeleton import CheckResult

if TYPE_CHECKING:
    from perennial.check_skeleton.subject import Subject

FOLDER = Path(__file__).parent / "checks"
FOUNDATION = "per_example_losses"
"""Without a model that maps a batch to one loss per example, most checks cannot run."""
DECLARATION = re.compile(r'^@check\(\s*"(?P<name>\w+)",(?P<rest>.*?)^def ', re.M | re.S)
_declared: dict[str, "Check"] = {}


@dataclass(frozen=True)
class Judge:
    """Builds the results of one check."""

    check: str  # the check's name
    expected: str = ""  # what a healthy task shows
    source: str = ""  # where the check and its threshold come from
    tolerance: str = ""  # how far from `expected` is still healthy, where that is a number
    severity: Literal["fail", "warn"] = "fail"  # `warn` if the check never fails

    def passed(self, measured: str, /, **evidence: object) -> CheckResult:
        """Return a passed result: the task is as expected."""
        return self._result("passed", measured, "", evidence)

    def warned(self, measured: str, /, hint: str, **evidence: object) -> CheckResult:
        """Return a warning: a person should look, but the training may start."""
        return self._result("warned", measured, hint, evidence)

    def failed(self, measured: str, /, hint: str, **evidence: object) -> CheckResult:
        """Return a failure: training would waste its budget."""
        if self.severity == "warn":
            raise ValueError(f"{self.check} is declared as a check that only warns")
        return self._result("failed", measured, hint, evidence)

    def skipped(self, reason: str) -> CheckResult:
        """Return a skipped result: the check does not apply."""
        return self._result("skipped", "", reason, {})

    def unmeasured(self, reason: str) -> CheckResult:
        """Return a warning: the check applies but could not run; the verdict names it."""
        hint = "this check applies and was not made: what it looks for may be there"
        found = self.warned(f"not measured: {reason}", hint)
        return found.model_copy(update={"is_unmeasured": True})

    def _result(
        self, outcome: str, measured: str, hint: str, evidence: Mapping[str, object]
    ) -> CheckResult:
        return CheckResult.model_validate(
            {
                "check": self.check,
                "outcome": outcome,
                "measured": measured,
                "expected": self.expected,
                "tolerance": self.tolerance,
                "evidence": {key: _storable(value) for key, value in evidence.items()},
                "hint": hint,
                "source": self.source,
            }
        )


@dataclass(frozen=True)
class Check:
    """A sanity check: call it with a subject."""

    name: str  # its name in contracts and reports
    # What a healthy task shows, or a function that returns it for a subject.
    expects: "str | Callable[[Subject], str]"
    source: str  # where the check and its thresholds come from
    # Examines the subject and returns the result.
    perform: "Callable[[Subject, Judge], CheckResult]"
    tolerance: str = ""  # how far from that is still healthy, where that is a number
    # `fail` if its findings may stop a run, `warn` if it only ever warns.
    severity: Literal["fail", "warn"] = "fail"
    needs_losses: bool = True  # whether it is skipped when the loss of single examples is broken
    # Whether it is skipped for tasks that compare examples or read no label.
    needs_labels: bool = False

    def __call__(self, subject: "Subject") -> CheckResult:
        """Perform the check."""
        expected = self.expects if isinstance(self.expects, str) else self.expects(subject)
        judge = Judge(self.name, expected, self.source, self.tolerance, self.severity)
        return self.perform(subject, judge)


def check(
    name: str,
    *,
    expects: "str | Callable[[Subject], str]",
    source: str,
    tolerance: str = "",
    severity: Literal["fail", "warn"] = "fail",
    needs_losses: bool = True,
    needs_labels: bool = False,
) -> "Callable[[Callable[[Subject, Judge], CheckResult]], Check]":
    """Declare the decorated function as a check; the arguments are the attributes of `Check`."""

    def declare(perform: "Callable[[Subject, Judge], CheckResult]") -> Check:
        _declared[name] = Check(
            name, expects, source, perform, tolerance, severity, needs_losses, needs_labels
        )
        return _declared[name]

    return declare


@cache
def check_names() -> tuple[str, ...]:
    """Return the name of every check in running order: those without losses, losses, the others.

    Read from the source: importing the checks imports PyTorch, which takes seconds, and which
    machines that only submit or deploy contracts do not have.
    """
    found: list[tuple[int, str]] = []
    for file in sorted(FOLDER.rglob("*.py")):
        for each in DECLARATION.finditer(file.read_text()):
            is_early = "needs_losses=False" in each["rest"]
            stage = 1 if each["name"] == FOUNDATION else 2 * (not is_early)
            found.append((stage, each["name"]))
    return tuple(name for _, name in sorted(found, key=lambda each: each[0]))


@cache
def load_checks() -> tuple[Check, ...]:
    """Import the checks and return them in running order."""
    for file in sorted(FOLDER.rglob("*.py")):
        parts = file.relative_to(FOLDER.parent).with_suffix("").parts
        importlib.import_module(".".join((__package__, *parts)))
    return tuple(_declared[name] for name in check_names())


def select_names(only: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen names in running order, with the check they depend on; all for none."""
    names = check_names()
    chosen = [name for name in names if name in only]
    if chosen and names.index(chosen[-1]) > names.index(FOUNDATION):
        chosen = [name for name in names if name in (*chosen, FOUNDATION)]
    return tuple(chosen) or names


def _storable(value: object) -> object:
    """Return evidence that JSON can hold: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {key: _storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
