"""Series of times and numbers: `init` adds the values before each row, and so does `import`."""

import datetime as dt
import tomllib

import polars as pl

from perennial.cli import main
from perennial.first_steps.series import choose_length

DAYS = [dt.date(2020, 1, 1) + dt.timedelta(days=row) for row in range(420)]
VALUES = [float((row * 37) % 101) for row in range(420)]


def test_values_before_a_row_are_its_features_and_new_rows_go_on_from_them(tmp_path, capsys):
    series = pl.DataFrame({"day": DAYS, "temp": VALUES})
    series[:400].sample(fraction=1.0, shuffle=True, seed=1).write_csv(tmp_path / "t.csv")
    series[400:].write_csv(tmp_path / "more.csv")
    contract = tmp_path / "contract.toml"
    assert main(["init", "table", str(tmp_path / "t.csv"), "--label", "temp", "--out", str(tmp_path)]) == 0  # fmt: skip
    assert "393 rows, 3 columns" in capsys.readouterr().out
    written = tomllib.loads(contract.read_text())
    assert written["data"]["features"] == ["history"]
    assert written["model"]["options"] == {"relative_to": "history"}
    assert main(["import", str(contract), str(tmp_path / "more.csv")]) == 0
    rows = pl.concat([pl.read_parquet(tmp_path / f"data/{name}.parquet") for name in ("t", "more")])
    assert rows["day"].to_list() == DAYS[7:]
    assert rows["history"].to_list() == [VALUES[row - 7 : row] for row in range(7, 420)]


def test_rows_of_several_series_are_refused_with_what_to_write(tmp_path, capsys):
    pl.DataFrame({"day": DAYS * 2, "temp": VALUES * 2}).write_csv(tmp_path / "t.csv")
    assert main(["init", "table", str(tmp_path / "t.csv"), "--label", "temp", "--out", str(tmp_path)]) == 2  # fmt: skip
    assert "a list of the values before it" in capsys.readouterr().err


def test_a_window_has_days_a_week_or_years():
    assert choose_length(24 * 400, 400) == 48
    assert choose_length(400, 400) == 7
    assert choose_length(400, 400 * 30.4) == 24
    assert choose_length(240, 10) == 24
