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


NAMED = {
    "training.metric": "metric = 'roc_acu'",
    "selection.metric": "metric = 'roc_acu'",
    "selection.limits.roc_acu": "limits = { log_loss = 0.6, roc_acu = 0.5 }",
    "gate.metric": "metric = 'roc_acu'",
}


@pytest.mark.parametrize("place", NAMED)
@pytest.mark.parametrize("verb", ["check", "run", "monitor"])
def test_metric_that_the_task_lacks_is_found_before_anything_runs(tmp_path, capsys, place, verb):
    contract = tmp_path / "contract.toml"
    contract.write_text(
        "[model]\nname = 'm'\ntask = 'components.tasks.tabular:TabularClassification'\n"
        "[data]\nuri = 'd'\nlabel = 'y'\nids = ['i']\n"
        f"[{place.split('.')[0]}]\n{NAMED[place]}\n"
    )
    home = [] if verb == "check" else ["--home", str(tmp_path / "home")]
    assert main([verb, str(contract), *home]) == 2
    said = capsys.readouterr().err
    assert f"{place} names 'roc_acu'" in said
    assert "write 'roc_auc'" in said
    assert not (tmp_path / "home").exists()


def test_runs_and_status_of_an_empty_home_say_so(tmp_path, capsys):
    for verb in ("runs", "status"):
        assert main([verb, "--home", str(tmp_path)]) == 0
        assert "no runs" in capsys.readouterr().out
    assert main(["report", "--home", str(tmp_path)]) == 2
