"""Record: keeps the result of a benchmark, with the commit that it was measured at."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "BENCHMARK_RESULTS"
"""Variable that names another folder than `benchmarks/results`."""


def result_file(name: str) -> Path:
    """Return the place of a result."""
    return Path(os.environ.get(FOLDER) or ROOT / "benchmarks" / "results") / name


def keep_page(name: str, text: str) -> None:
    """Write a page of Markdown; the commit stands below its title."""
    title, _, rest = text.partition("\n")
    result_file(name).write_text(f"{title}\n\nMeasured at commit {commit()}.\n{rest}")


def keep_figures(name: str, figures: dict[str, Any]) -> None:
    """Write figures as JSON, and the commit."""
    content = {"commit": commit(), **figures}
    result_file(name).write_text(json.dumps(content, indent=1) + "\n")


def commit() -> str:
    """Return the commit of the sources; `-dirty` if they differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"
