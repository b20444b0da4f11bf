"""Console: progress of a run, for a terminal or a log file."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import rich.console
from pydantic import JsonValue
from rich.progress_bar import ProgressBar
from rich.text import Text

from perennial.runs import RunRecord

CLEAR_LINE = "\r\x1b[2K"
BAR_WIDTH = 24
LINE_EVERY_SECONDS = 5.0  # where the output is a file, progress is a line now and then
COLORS = {"✓": "green", "✗": "red", "!": "yellow"}
"""Colours of the signs that lines begin with."""


class Console:
    """Prints a run's events: a live line on a terminal, plain and sparse lines elsewhere."""

    def __init__(self) -> None:
        self._terminal = rich.console.Console(highlight=False)
        self._is_live = sys.stdout.isatty() and not self._terminal.is_dumb_terminal
        self._started: dict[str, float] = {}
        self._last_line = 0.0
        self._has_open_line = False

    def run_started(self, run: RunRecord, folder: Path) -> None:
        """Name the run and where its files are."""
        again = f"  (attempt {run.attempts})" if run.attempts > 1 else ""
        self.note(f"{run.pipeline} of {run.model}, run {run.run_id}{again}")
        self.note(f"  files: {folder}")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        if not self._is_live:
            print(text, flush=True)
            return
        if self._has_open_line:
            print(CLEAR_LINE, end="")
            self._has_open_line = False
        shown = Text(text)
        for sign, color in COLORS.items():
            shown.highlight_regex(rf"(?m)^ *{sign}(?= )", color)
        self._terminal.print(shown, soft_wrap=True)

    def working(self, text: str) -> None:
        """Show on a terminal what is being done, until there is a note."""
        if self._is_live:
            self._rewrite_line(text)

    def show(self, events: Sequence[dict[str, JsonValue]]) -> None:
        """Print what happened."""
        for event in events:
            step, moment = str(event.get("step", "")), float(str(event["time"]))
            match event["kind"]:
                case "step_started":
                    self._started[step] = moment
                    self._show_progress(f"  … {step}")
                # A nested training reuses steps that ran in this attempt, which is no news.
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
                    share = int(str(event["done"])) / int(str(event["total"]))
                    self._show_progress(f"  … {step}  {_figures(event)}", share)

    def _show_progress(self, text: str, share: float | None = None) -> None:
        if self._is_live:
            self._rewrite_line(text, share)
        elif time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            print(text, flush=True)

    def _rewrite_line(self, text: str, share: float | None = None) -> None:
        room = self._terminal.width - len(text) - 3
        with self._terminal.capture() as rendered:
            self._terminal.print(Text(text), overflow="ellipsis", no_wrap=True, end="")
            if share is not None and room > 0:
                self._terminal.print("  ", end="")
                bar = ProgressBar(1.0, share, width=min(room, BAR_WIDTH))
                self._terminal.print(bar, end="")
        print(f"{CLEAR_LINE}{rendered.get()}", end="", flush=True)
        self._has_open_line = True


def _figures(event: dict[str, JsonValue]) -> str:
    parts = [
        f"{event.get('unit', 'step')} {int(str(event['done'])):,}/{int(str(event['total'])):,}"
    ]
    for key, form in (("loss", "loss {:.4f}"), ("examples_per_second", "{:,.0f} examples/s")):
        if key in event:
            parts.append(form.format(float(str(event[key]))))
    if "eta_seconds" in event:
        minutes, seconds = divmod(round(float(str(event["eta_seconds"]))), 60)
        parts.append(f"ETA {minutes}:{seconds:02d}")
    return "  ".join(parts)
