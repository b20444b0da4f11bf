"""Bad input ends before any training, with a message that names the cause."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from click_stream import add_month
from perennial.cli import main
from perennial.runs import Home, step_records


def partition(project: Path) -> Path:
    return project / "data" / "month=2024-02" / "clicks.parquet"


def rewrite(change):
    def apply(project: Path) -> None:
        path = partition(project)
        change(pl.read_parquet(path)).write_parquet(path)

    return apply


def rewrite_all(change):
    def apply(project: Path) -> None:
        for path in (project / "data").rglob("*.parquet"):
            change(pl.read_parquet(path)).write_parquet(path)

    return apply


def truncate(project: Path) -> None:
    path = partition(project)
    path.write_bytes(path.read_bytes()[:-500])


def in_contract(before: str, after: str):
    def apply(project: Path) -> None:
        path = project / "contract.toml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    return apply


def broken_task(project: Path) -> None:
    (project / "mine.py").write_text("import nothing_of_this_name\n")
    in_contract("perennial.tasks.tabular:TabularClassification", "mine:Mine")(project)


def incomplete_task(project: Path) -> None:
    (project / "unfinished.py").write_text(
        "from perennial.engine.task import Task\nclass Mine(Task):\n    pass\n"
    )
    in_contract("perennial.tasks.tabular:TabularClassification", "unfinished:Mine")(project)


def move_data_away(project: Path) -> None:
    (project / "data").rename(project / "elsewhere")


def data_is_a_file(project: Path) -> None:
    move_data_away(project)
    (project / "data").write_text("not a folder")


# found by `perennial check` → what is done, and what the message names
CHECKED = {
    "column missing in a partition": (rewrite(lambda t: t.drop("price")), ["month=2024-02", "lacks column 'price'"]),
    "column renamed in a partition": (
        rewrite(lambda t: t.rename({"price": "prize"})),
        ["month=2024-02", "lacks column 'price'", "'prize'"],
    ),
    "column retyped in a partition": (
        rewrite(lambda t: t.with_columns(pl.col("price").cast(pl.String))),
        ["month=2024-02", "'price' as String, expected Float64"],
    ),
    "empty partition": (rewrite(lambda t: t.head(0)), ["month=2024-02", "rows"]),
    "truncated partition": (truncate, ["month=2024-02"]),
    "label column misspelt": (in_contract('"clicked"', '"cliked"'), ["'cliked'", "did you mean 'clicked'"]),
    "time column that is text": (
        rewrite_all(lambda t: t.with_columns(pl.col("shown_at").cast(pl.String))),
        ["shown_at", "String", "expected Datetime or Date"],
    ),
    "folder that does not exist": (move_data_away, ["data", "does not exist or is empty"]),
    "folder that is a file": (data_is_a_file, ["data"]),
    "task that does not import": (broken_task, ["mine:Mine", "nothing_of_this_name"]),
    "task without its methods": (incomplete_task, ["unfinished:Mine", "build_model", "losses"]),
    "task class misspelt": (
        in_contract("TabularClassification", "TabularClasification"),
        ["TabularClasification", "TabularClassification"],
    ),
    "unknown task option": (in_contract("hidden", "hiden"), ["model.options.hiden", "hidden"]),
    "too little history": (
        lambda project: [path.unlink() for path in (project / "data").rglob("*.parquet")]
        and rewrite_first_days(project),
        ["no row falls into", "validation"],
    ),
}  # fmt: skip


def rewrite_first_days(project: Path) -> None:
    add_month(project / "data", 0)
    path = project / "data" / "month=2024-01" / "clicks.parquet"
    pl.read_parquet(path).filter(pl.col("shown_at").dt.day() < 5).write_parquet(path)


# found by `validate_data` → what is done, and what the message names
VALIDATED = {
    "label of one class": (rewrite_all(lambda t: t.with_columns(pl.lit(1).alias("clicked"))), ["clicked"]),
    "column without a value": (
        rewrite_all(lambda t: t.with_columns(pl.lit(float("nan")).alias("price"))),
        ["price"],
    ),
    "the label again as a feature": (
        rewrite_all(lambda t: t.with_columns((pl.col("clicked") * 2.5).alias("noise"))),
        ["noise"],
    ),
}  # fmt: skip


def perennial(project: Path, verb: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "perennial.cli", verb, str(project / "contract.toml")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PERENNIAL_HOME": str(project / "home")},
    )


@pytest.mark.parametrize("mistake", CHECKED)
def test_mistake_is_found_by_check(project, mistake, capsys, monkeypatch):
    monkeypatch.setenv("PERENNIAL_HOME", str(project / "home"))
    plant, named = CHECKED[mistake]
    plant(project)
    assert main(["check", str(project / "contract.toml")]) == 2
    printed = capsys.readouterr().err
    for part in named:
        assert part in printed


def test_a_mistake_leaves_no_traceback_at_a_prompt(project):
    broken_task(project)
    done = perennial(project, "check")
    assert done.returncode == 2
    assert "nothing_of_this_name" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("mistake", VALIDATED)
def test_mistake_is_found_before_training(project, mistake):
    plant, named = VALIDATED[mistake]
    plant(project)
    done = perennial(project, "run")
    assert done.returncode == 1
    assert "validate_data failed" in done.stderr
    assert "Traceback" not in done.stderr
    for part in named:
        assert part in done.stderr, done.stderr
    home = Home(project / "home")
    steps = [record.step for record in step_records(home.folder(home.runs()[-1].run_id))]
    assert steps == ["snapshot_data", "validate_data"]


@pytest.mark.full
def test_corrected_data_is_read_by_the_same_command(project):
    keep = {path: path.read_bytes() for path in (project / "data").rglob("*.parquet")}
    VALIDATED["column without a value"][0](project)
    assert "validate_data failed" in perennial(project, "run").stderr
    for path, content in keep.items():
        path.write_bytes(content)
    done = perennial(project, "run")
    assert done.returncode == 0, done.stderr
