"""Options that would be ignored, and names that the task does not know, are mistakes."""

import pytest

from pipelines.cli import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "c.toml", "--first", "2"],
        ["run", "c.toml", "--until", "5"],
        ["run", "c.toml", "--new", "--from", "train_model"],
        ["run", "c.toml", "--replay", "--new"],
        ["run", "c.toml", "--replay", "--from", "train_model"],
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "--" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["training", "selection", "gate"])
def test_metric_that_the_task_lacks_is_found_before_anything_runs(tmp_path, capsys, place):
    contract = tmp_path / "contract.toml"
    contract.write_text(
        "[model]\nname = 'm'\ntask = 'components.tasks.tabular:TabularClassification'\n"
        "[data]\nuri = 'd'\nlabel = 'y'\nids = ['i']\n"
        f"[{place}]\nmetric = 'roc_acu'\n"
    )
    assert main(["run", str(contract), "--home", str(tmp_path / "home")]) == 2
    said = capsys.readouterr().err
    assert ".metric names 'roc_acu'" in said
    assert "write 'roc_auc'" in said
    assert not (tmp_path / "home").exists()


def test_runs_and_status_of_an_empty_home_say_so(tmp_path, capsys):
    for verb in ("runs", "status"):
        assert main([verb, "--home", str(tmp_path)]) == 0
        assert "no runs" in capsys.readouterr().out
    assert main(["report", "--home", str(tmp_path)]) == 2
