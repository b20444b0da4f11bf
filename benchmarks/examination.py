"""How many silent bugs in other people's styles the sanity checks stop, and what they cry over.

    export PYTHONPATH=tests:tests/support
    python -m benchmarks.examination run RECORD.jsonl --jobs 2     # continues where it stopped
    python -m benchmarks.examination write RECORD.jsonl

`tests/examination` holds healthy tasks and bugs by authors who knew the protocol and not the
checks. Each is examined by the user's own command, `perennial sanity`, in a folder and a process of
its own, in a random order that mixes both, so that a part of the list is a fair sample of it.

A bug is caught if the command does not end with 0. A healthy task is blocked falsely by the same
rule; a bug that is caught by nothing but what blocks its healthy task too is counted apart.
Whether a mere warning names the cause is a person's judgement, kept in
`results/examination_reviewed.json`: case → true or false.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.record import keep_page
from examination.planted import all_cases
from examination.tasks import Case

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
REVIEWED = RESULTS / "examination_reviewed.json"
LONGEST_SECONDS = 900.0
COMMAND = "import sys; from perennial.cli import main; sys.exit(main())"


def main() -> None:
    """Examine the cases, or summarise a record of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["run", "write"])
    parser.add_argument("record", type=Path, help="one line of JSON per case")
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose names hold one of these")
    parser.add_argument("--commit", default="", help="of the checks, for the table")
    parser.add_argument("--note", default="", help="what a reader of the table must know")
    chosen = parser.parse_args()
    if chosen.verb == "run":
        run(chosen.record, chosen.jobs, chosen.seed, chosen.only)
    else:
        text = page(read(chosen.record), chosen.commit, chosen.note)
        keep_page("examination.md", text)
        print(text)


def run(record: Path, jobs: int, seed: int, only: Sequence[str]) -> None:
    """Examine what the record lacks, and append each answer as it comes."""
    chosen = [
        case
        for name, case in sorted(all_cases().items())
        if not only or any(part in name for part in only)
    ]
    random.Random(seed).shuffle(chosen)
    # One healthy task for one bug, so that a part of the list covers both alike.
    halves = [[case for case in chosen if bool(case.bug) == has_bug] for has_bug in (False, True)]
    cases = [case for pair in zip_longest(*halves) for case in pair if case]
    done = {line["case"] for line in read(record)} if record.exists() else set()
    lock = threading.Lock()

    def one(case: Case) -> None:
        answer = examined(case)
        with lock, record.open("a") as file:
            file.write(json.dumps(answer) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [case for case in cases if case.name not in done]))


def examined(case: Case) -> dict[str, object]:
    """The result of `perennial sanity` for a case."""
    folder = Path(tempfile.mkdtemp(prefix="examination-"))
    started = time.monotonic()
    try:
        contract = case.write(folder)
        command = [sys.executable, "-c", COMMAND, "sanity", contract.name, "--home", "home"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False,
                timeout=LONGEST_SECONDS,
            )  # fmt: skip
            code, output = done.returncode, (done.stdout + done.stderr)[-1500:]
        except subprocess.TimeoutExpired:
            code, output = None, f"did not end within {LONGEST_SECONDS:.0f} s"
        reports = sorted(folder.glob("home/sanity/*/skeleton.json"))
        results = json.loads(reports[0].read_text())["results"] if reports else []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "case": case.name,
        "family": case.family,
        "bug": case.bug,
        "code": code,
        "seconds": round(time.monotonic() - started, 1),
        "failed": _findings(results, "failed"),
        "warned": _findings(results, "warned"),
        "output": "" if results else output,
    }


def _findings(results: Sequence[dict[str, str]], outcome: str) -> list[dict[str, str]]:
    kept = ("check", "measured", "expected", "hint")
    return [{key: found[key] for key in kept} for found in results if found["outcome"] == outcome]


def read(record: Path) -> list[dict[str, Any]]:
    """The lines of a record."""
    return [json.loads(line) for line in record.read_text().splitlines()]


def interval(count: int, of: int) -> tuple[float, float]:
    """Wilson's, at 95%."""
    if of == 0:
        return 0.0, 1.0
    z, share = 1.96, count / of
    centre = (share + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z / (1 + z**2 / of) * (share * (1 - share) / of + z**2 / (4 * of**2)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def rate(count: int, of: int) -> str:
    """A count with its share and interval."""
    low, high = interval(count, of)
    return f"{count} of {of} ({count / max(of, 1):.1%}, {low:.0%} to {high:.0%})"


def page(answers: Sequence[dict[str, Any]], commit: str, note: str = "") -> str:
    """What was found, as Markdown."""
    judged = json.loads(REVIEWED.read_text()) if REVIEWED.exists() else {}
    every = all_cases()
    answers = [answer for answer in answers if answer["case"] in every]
    bugs = [answer for answer in answers if answer["bug"]]
    healthy = [answer for answer in answers if not answer["bug"]]
    caught = [answer for answer in bugs if answer["code"] not in (0, None)]
    sound = {answer["case"]: answer for answer in healthy}
    idle = [answer for answer in caught if _adds_nothing(answer, sound)]
    missed = [answer for answer in bugs if answer["code"] in (0, None)]
    named = [answer for answer in missed if judged.get(answer["case"])]
    blocked = [answer for answer in healthy if answer["code"] != 0]
    warned = [answer for answer in healthy if answer["code"] == 0 and answer["warned"]]
    total = sum(bool(case.bug) for case in every.values())
    seconds = sorted(answer["seconds"] for answer in answers)
    lines = [
        "# Examination of the sanity checks",
        "",
        f"{date.today()}, checks of {commit or 'this tree'}. Healthy tasks and bugs in other "
        "people's styles, written without knowledge of the checks (`tests/examination`), in random "
        "order, by `perennial sanity` with nothing set but what the tasks' users would set.",
        "",
        f"Examined: {len(bugs)} of {total} bugs, {len(healthy)} of {len(every) - total} healthy "
        "tasks. Intervals are Wilson's, at 95%.",
        "",
        *([note, ""] if note else []),
        "| what | rate |",
        "|---|---|",
        f"| bugs caught: the command does not end with 0 | {rate(len(caught), len(bugs))} |",
        f"| with those that a warning names | {rate(len(caught) + len(named), len(bugs))} |",
        "| caught, without those refused before any check or caught by nothing but what blocks the "
        f"healthy task too | {rate(len(caught) - len(idle), len(bugs))} |",
        f"| healthy tasks blocked | {rate(len(blocked), len(healthy))} |",
        f"| healthy tasks warned of | {rate(len(warned), len(healthy))} |",
        "",
        f"A case took {seconds[len(seconds) // 2]:.0f} s at the median on a busy machine."
        if seconds
        else "",
        "",
        "| family | bugs caught | healthy blocked | healthy warned of |",
        "|---|---|---|---|",
    ]
    for family in sorted({answer["family"] for answer in answers}):
        found, listed, stopped, examined_ones, noted = (
            sum(answer["family"] == family for answer in group)
            for group in (caught, bugs, blocked, healthy, warned)
        )
        lines.append(
            f"| {family} | {found} of {listed} | {stopped} of {examined_ones} | "
            f"{noted} of {examined_ones} |"
        )
    lines += ["", "## Bugs that were missed", ""]
    for answer in missed:
        warnings = ", ".join(found["check"] for found in answer["warned"]) or "no warning"
        verdict = ", which names it" if judged.get(answer["case"]) else ""
        lines.append(f"- `{answer['case']}`: {answer['bug']} ({warnings}{verdict})")
    lines += ["", "## Bugs that were caught", ""]
    for answer in caught:
        apart = " (counted apart)" if answer in idle else ""
        checks = ", ".join(found["check"] for found in answer["failed"]) or _why(answer)
        lines.append(f"- `{answer['case']}`: {checks}{apart}")
    lines += ["", "## Healthy tasks that were blocked", ""]
    for answer in blocked:
        lines.append(f"- `{answer['case']}`: {_why(answer)}")
    lines += ["", "## Healthy tasks that were warned of", ""]
    for answer in warned:
        lines.append(f"- `{answer['case']}`: {', '.join(f['check'] for f in answer['warned'])}")
    return "\n".join(lines) + "\n"


def _adds_nothing(answer: dict[str, Any], healthy: dict[str, dict[str, Any]]) -> bool:
    """Whether a bug's findings are its healthy task's as well, or a refusal of its data."""
    failed = {found["check"] for found in answer["failed"]}
    twin = healthy.get(answer["case"].partition("--")[0], {"failed": []})
    return failed <= {found["check"] for found in twin["failed"]}


def _why(answer: dict[str, Any]) -> str:
    if answer["failed"]:
        return "; ".join(
            f"{f['check']}: {' '.join(f['measured'].split())}" for f in answer["failed"]
        )
    return " ".join(answer["output"].split())[-300:]


if __name__ == "__main__":
    main()
