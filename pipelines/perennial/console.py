"""Console: progress of a run, for a terminal or a log file."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from perennial.runs import RunRecord

LINE_EVERY_SECONDS = 5.0  # where the output is a file, progress is a line now and then


class Console:
    """Prints a run's events; one live line on a terminal, sparse lines elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._started: dict[str, float] = {}
        self._last_line = 0.0
        self._open_line = False

    def run_started(self, run: RunRecord, folder: Path) -> None:
        """Name the run and where its files are."""
        again = f"  (attempt {run.attempts})" if run.attempts > 1 else ""
        self.note(f"{run.pipeline} of {run.model}, run {run.run_id}{again}")
        self.note(f"  files: {folder}")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._close_line()
        print(text, flush=True)

    def working(self, text: str) -> None:
        """Show on a terminal what is being done, until there is a note."""
        if self._live:
            self._progress(text)

    def show(self, events: Sequence[dict[str, JsonValue]]) -> None:
        """Print what happened."""
        for event in events:
            step, moment = str(event.get("step", "")), float(str(event["time"]))
            match event["kind"]:
                case "step_started":
                    self._started[step] = moment
                    self._progress(f"  … {step}", always=self._live)
                case "step_reused" if step not in self._started:
                    self.note(f"  = {step:<18} {'':>7}  {event['summary']} (finished before)")
                case "step_finished":
                    seconds = moment - self._started.get(step, moment)
                    self.note(f"  ✓ {step:<18} {seconds:6.1f}s  {event['summary']}")
                case "step_failed":
                    self.note(f"  ✗ {step:<18} failed")
                case "step_stopped":
                    self.note(f"  - {step:<18} stopped; checkpoint saved")
                case "progress":
                    self._progress(_progress_text(event))

    def _progress(self, text: str, *, always: bool = False) -> None:
        if self._live:
            print(f"\r\x1b[2K{text}", end="", flush=True)
            self._open_line = True
        elif always or time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(text, flush=True)

    def _close_line(self) -> None:
        if self._open_line:
            print("\r\x1b[2K", end="")
            self._open_line = False


def _progress_text(event: dict[str, JsonValue]) -> str:
    done, total = int(str(event["done"])), int(str(event["total"]))
    parts = [f"  … {event['step']}  step {done:,}/{total:,}"]
    for key, form in (("loss", "loss {:.4f}"), ("examples_per_second", "{:,.0f} examples/s")):
        if key in event:
            parts.append(form.format(float(str(event[key]))))
    if "eta_seconds" in event:
        minutes, seconds = divmod(round(float(str(event["eta_seconds"]))), 60)
        parts.append(f"ETA {minutes}:{seconds:02d}")
    return "  ".join(parts)
