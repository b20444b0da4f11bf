"""What a person sees while a run goes on."""

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
    said = capsys.readouterr().out
    for part in ("step 420/1,000", "loss 0.5123", "12,346 examples/s", "ETA 1:21"):
        assert part in said


def test_progress_in_a_file_is_sparse(capsys):
    console = Console()
    for step in range(100):
        console.show([event("progress", 1.0, step="train_model", done=step, total=100)])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_result_of_an_earlier_attempt_is_said_but_not_twice_in_one_attempt(capsys):
    console = Console()
    console.show([event("step_reused", 1.0, step="snapshot_data", summary="3 partitions")])
    assert "3 partitions (finished before)" in capsys.readouterr().out
    console.show([event("step_started", 1.0, step="validate_data")])
    console.show([event("step_finished", 2.0, step="validate_data", summary="fine")])
    capsys.readouterr()
    console.show([event("step_reused", 3.0, step="validate_data", summary="fine")])
    assert capsys.readouterr().out == ""
