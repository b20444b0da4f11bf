"""Studies of real data whose answers are known: what each of them concludes, and its trials.

    python -m benchmarks.study_questions [--trials 32] [--only NAME]

A range of learning rates that ends below the good ones; a question whose answer is known (training
for a few steps only is worse) beside one without an answer (a weight decay of 1e-6); and a contract
whose learning rate is too small. On flights (a table) and digits (pictures). The exit code
is 1 if a study does not give the answer that was planted.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import keep_page
from perennial.contracts.toml import toml_line

RATE, STEPS = "training.optimizer.learning_rate", "training.steps"
DECAY = "training.optimizer.weight_decay"
GOOD_RATE = 2e-3
"""Of both examples' contracts; trials with it are among the best."""
EXAMPLES = {"flights": (100, 2), "digits": (60, 6)}
"""Example → steps of a trial, and so few of them that the model is known to be worse."""


@dataclass(frozen=True)
class Question:
    """A study, and the answers that it should give.

    Attributes:
        goal: In words.
        tables: Table of the study → its options.
        expected: The right answers, in words.
        is_answered: Whether a conclusion contains them.
        steps: Of a trial; None where they vary.
        rate: Learning rate of the contract, if not the example's.
    """

    goal: str
    tables: dict[str, dict[str, Any]]
    expected: str
    is_answered: Callable[["Answer"], bool]
    steps: int | None
    rate: float | None = None


def questions(steps: int, few: int) -> dict[str, Question]:
    """Return the studies of an example, given the steps of a trial, and far too few of them."""
    wide = {f'nuisance."{RATE}"': {"log": [1e-4, 1e-1]}}
    return {
        "narrow range": Question(
            "Which learning rate?",
            {f'nuisance."{RATE}"': {"log": [1e-5, 2e-4]}},
            f"the range ends below the good rates; the next range contains {GOOD_RATE:g}",
            lambda found: any(
                each["side"] == "high" and each["proposed"] and each["proposed"][1] >= GOOD_RATE
                for each in found.findings["boundaries"]
            ),
            steps,
            rate=1e-4,
        ),
        "known answer, no difference": Question(
            "Does training longer help? And which weight decay?",
            {
                **wide,
                f'scientific."{STEPS}"': {"choices": [few, steps]},
                f'scientific."{DECAY}"': {"choices": [0.0, 1e-6]},
            },
            f"{steps} steps are better than {few}; the weight decays are inconclusive",
            lambda found: (
                f"{steps} is better than {few}" in found.about(STEPS)
                and "inconclusive" in found.about(DECAY)
            ),
            None,
        ),
        "bad contract": Question(
            "Which learning rate?",
            wide,
            "adopt: the contract's 1e-4 is too small",
            lambda found: found.judgement["decision"] == "adopt",
            steps,
            rate=1e-4,
        ),
    }


@dataclass(frozen=True)
class Answer:
    """What a study concluded."""

    findings: dict[str, Any]
    judgement: dict[str, Any]
    proposal: str
    trials: int
    seconds: float

    def about(self, option: str) -> str:
        """Return the answer to the question about an option."""
        return next(each["text"] for each in self.judgement["answers"] if each["option"] == option)


def ask(example: str, question: Question, options: dict[str, Any], home: Path) -> Answer:
    """Run a study in a home of its own."""
    source = Path("examples") / example
    contract = home / "contract.toml"
    text = (source / "contract.toml").read_text()
    text = text.replace('uri = "data"', f'uri = "{(source / "data").resolve()}"')
    if question.rate is not None:
        text = re.sub(r"learning_rate = [\d.e-]+", f"learning_rate = {question.rate}", text)
    # Two trials at a time, one process each, fit on two cores.
    contract.write_text(f"{text}\n[resources]\nnum_processes = 1\n")
    lines = ["[study]", toml_line("goal", question.goal)]
    if question.steps is not None:
        options = {**options, "steps": question.steps}
    lines += [toml_line(*each) for each in options.items()]
    for name, table in question.tables.items():
        lines += [f"[study.{name}]", *(toml_line(*each) for each in table.items())]
    study = home / "question.study.toml"
    study.write_text("\n".join(lines) + "\n")
    started = time.perf_counter()
    command = ["study", "run", str(contract), "--study", str(study), "--home", str(home / "home")]
    subprocess.run([sys.executable, "-m", "perennial.cli", *command], check=True)
    seconds = time.perf_counter() - started
    (result,) = (home / "home" / "store" / "studies").glob("*/*/result.json")
    return Answer(
        findings=json.loads(result.read_text()),
        judgement=json.loads((result.parent / "judgement.json").read_text()),
        proposal=(result.parent / "next.study.toml").read_text(),
        trials=len(list((result.parent / "trials").glob("*.json"))),
        seconds=seconds,
    )


def lines_of(question: Question, answer: Answer) -> list[str]:
    """Return what a study concluded, beside what it should."""
    ranges = [line for line in answer.proposal.splitlines() if line.startswith(("log", "choices"))]
    return [
        f"Expected: {question.expected}. "
        f"{'Found' if question.is_answered(answer) else 'NOT found'}.",
        "",
        f"- {answer.judgement['decision']}: {answer.judgement['summary']}",
        *(f"- {each['text']}" for each in answer.findings["boundaries"]),
        *(f"- {each['text']}" for each in answer.judgement["answers"]),
        f"- the next study proposes {'; '.join(ranges) or 'nothing'}",
        f"- {answer.trials} trials in {answer.seconds:.0f} s: "
        f"{3600 * answer.trials / answer.seconds:.0f} an hour",
    ]


def main() -> None:
    """Ask all questions and keep the answers as a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--only", default="", help="questions whose name contains this")
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    given = parser.parse_args()
    page, wrong = ["# Studies of questions with known answers", ""], list[str]()
    for example in given.examples:
        for name, question in questions(*EXAMPLES[example]).items():
            if given.only not in name:
                continue
            options = {"trials": given.trials, "parallel": 2}
            with tempfile.TemporaryDirectory(prefix="perennial-question-") as folder:
                answer = ask(example, question, options, Path(folder))
            lines = [f"## {example}: {name}", "", *lines_of(question, answer), ""]
            print("\n".join(lines), flush=True)
            page += lines
            wrong += [] if question.is_answered(answer) else [f"{example}: {name}"]
    if not given.only and len(given.examples) == len(EXAMPLES):
        keep_page("study_questions.md", "\n".join(page))
    if wrong:
        sys.exit(f"the planted answer was not found: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
