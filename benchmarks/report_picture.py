"""The README's picture: the report of the run that made the newest champion, in Chromium.

python -m benchmarks.report_picture images/report.png [--home .perennial]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from perennial.run_page import find_run_results, write_run_report
from perennial.runs import Home, RunRecord

WIDTH, HEIGHT = 1280, 1140
LARGEST_BYTES = 300_000


def has_replaced_a_champion(home: Home, run: RunRecord) -> bool:
    """Whether a challenger of the run beat a champion."""
    found = find_run_results(home, run)
    return (
        found.word == "Promoted"
        and found.verdict is not None
        and bool(found.verdict.champion_version)
    )


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--home", type=Path, default=Path(".perennial"))
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs chromium on PATH")
    home = Home(options.home.resolve())
    runs = [run for run in home.runs() if has_replaced_a_champion(home, run)]
    if not runs:
        sys.exit(f"no run in {home.path} has replaced a champion; run `make demo` first")
    with tempfile.TemporaryDirectory(prefix="perennial-picture-") as scratch:
        page = write_run_report(home, runs[-1])
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--hide-scrollbars", f"--user-data-dir={scratch}/profile",
             f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={options.target.resolve()}",
             page.as_uri()],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    size = options.target.stat().st_size
    if size > LARGEST_BYTES:
        sys.exit(f"{options.target} has {size:,} bytes, more than {LARGEST_BYTES:,}")
    print(f"{options.target}: {size:,} bytes")


if __name__ == "__main__":
    main()
