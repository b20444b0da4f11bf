"""The README's picture: the newest promoted run's report, as headless Chromium shows it.

python benchmarks/report_picture.py images/report.png [--home .perennial]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pipelines.run_page import REPORT_FILE
from pipelines.runs import Home, step_records

WIDTH, HEIGHT = 1330, 1150
LARGEST_BYTES = 300_000


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
    reports = [
        home.folder(run.run_id) / REPORT_FILE
        for run in home.runs()
        if any(record.step == "register_model" for record in step_records(home.folder(run.run_id)))
    ]
    if not reports:
        sys.exit(f"no run in {home.path} has registered a model; run `make demo` first")
    with tempfile.TemporaryDirectory(prefix="perennial-picture-") as profile:
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
             f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={options.target.resolve()}",
             reports[-1].as_uri()],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    size = options.target.stat().st_size
    if size > LARGEST_BYTES:
        sys.exit(f"{options.target} has {size:,} bytes, more than {LARGEST_BYTES:,}")
    print(f"{options.target}: {size:,} bytes")


if __name__ == "__main__":
    main()
