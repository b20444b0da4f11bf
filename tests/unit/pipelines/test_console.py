"""What a person sees while a run goes on."""

import contextlib
import io

import pytest

from perennial.console import Console


def event(kind, moment, **fields):
    return {"kind": kind, "time": moment, **fields}


def test_finished_steps_have_a_line_with_time_and_summary(capsys):
    console = Console()
    console.show([event("step_started", 1.0, step="validate_data")])
    console.show([event("step_finished", 3.5, step="validate_data", summary="all is well")])
    line = capsys.readouterr().out.splitlines()[-1]
    assert "✓ validate_data" in line
    assert "2.5s  all is well" in line


def test_progress_shows_step_loss_throughput_and_time_left(capsys):
    console = Console()
    fields = {"done": 420, "total": 1000, "loss": 0.5123, "examples_per_second": 12345.6}
    console.show([event("progress", 1.0, step="train_model", eta_seconds=81.0, **fields)])
    printed = capsys.readouterr().out
    for part in ("step 420/1,000", "loss 0.5123", "12,346 examples/s", "ETA 1:21"):
        assert part in printed


def test_progress_in_a_file_is_sparse(capsys):
    console = Console()
    for step in range(100):
        console.show([event("progress", 1.0, step="train_model", done=step, total=100)])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_earlier_attempts_result_is_reported_once_per_attempt(capsys):
    console = Console()
    console.show([event("step_reused", 1.0, step="snapshot_data", summary="3 partitions")])
    assert "3 partitions (finished before)" in capsys.readouterr().out
    console.show([event("step_started", 1.0, step="validate_data")])
    console.show([event("step_finished", 2.0, step="validate_data", summary="fine")])
    capsys.readouterr()
    console.show([event("step_reused", 3.0, step="validate_data", summary="fine")])
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Shows events on a terminal of 100 columns with colours; gives the text that it receives."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def show(*events):
        with contextlib.redirect_stdout(Terminal()) as screen:
            Console().show(events)
        return screen.getvalue()

    return show


STARTED = event("step_started", 1.0, step="train_model")
PROGRESS = event(
    "progress", 2.0, step="train_model", done=500, total=1000, loss=0.5, eta_seconds=81.0
)
FINISHED = event("step_finished", 3.0, step="train_model", summary="loss [0.5]")


def test_a_terminal_shows_a_progress_bar_until_the_result(terminal):
    _, step, bar, result = terminal(STARTED, PROGRESS, FINISHED).split("\r\x1b[2K")
    assert step == "  … train_model"
    assert bar.startswith("  … train_model  step 500/1,000  loss 0.5000  ETA 1:21  ")
    assert bar.count("━") == 23  # and one half
    assert result == "\x1b[32m  ✓\x1b[0m train_model           2.0s  loss [0.5]\n"


@pytest.mark.parametrize(("columns", "width"), [(50, 0), (70, 13), (80, 23)])
def test_the_bar_takes_the_room_that_the_figures_leave(terminal, monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", str(columns))
    line = terminal(PROGRESS)
    assert sum(line.count(part) for part in "━╸╺") == width


def test_no_color_is_respected(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal(FINISHED) == "  ✓ train_model           0.0s  loss [0.5]\n"


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    printed = terminal(PROGRESS, FINISHED)
    assert "\x1b" not in printed
    assert len(printed.splitlines()) == 2
