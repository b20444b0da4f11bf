"""The README's picture: why the newest champion was promoted, as headless Chromium shows it.

python -m benchmarks.report_picture images/report.png [--home .perennial]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perennial.contracts.gate import Verdict
from perennial.runs import Home

WIDTH, HEIGHT = 1330, 1480
LARGEST_BYTES = 300_000


def promoted(run: Path) -> Iterator[Path]:
    """The gate's page of a run in which a challenger beat a champion."""
    for verdict in run.glob("steps/evaluate_model-*/verdict"):
        found = Verdict.read(verdict)
        if found.promote and found.champion_version:
            yield verdict.with_name("report")


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
    pages = [page for run in home.runs() for page in promoted(home.folder(run.run_id))]
    if not pages:
        sys.exit(f"no run in {home.path} has replaced a champion; run `make demo` first")
    with tempfile.TemporaryDirectory(prefix="perennial-picture-") as scratch:
        page = Path(scratch) / "page.html"  # Chromium goes by the ending
        shutil.copyfile(pages[-1], page)
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
