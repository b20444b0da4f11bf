"""Raw rows become what the model was trained on, or the error names what is wrong with them."""

from datetime import UTC, date, datetime, time, timedelta

import pandas as pd
import polars as pl
import pytest
import torch
from mlflow.exceptions import MlflowException

from perennial.contracts.errors import BadDataError
from perennial.engine.serving.pyfunc import ServedModel, prediction_names, typed_rows

LISTS = pl.List(pl.Float32)


# pyarrow reads pandas' times with a zone in a way that pandas 4 will not have.
@pytest.mark.filterwarnings("ignore:Series.values returning")
@pytest.mark.parametrize(
    ("sent", "dtype", "read"),
    [
        ([1.5, None], pl.Float64, [1.5, None]),
        ([1, 2], pl.Float32, [1.0, 2.0]),
        ([1.0, float("nan")], pl.Int64, [1, None]),  # as pandas keeps whole numbers that miss one
        ([None, None], pl.Int64, [None, None]),
        (["a", None], pl.String, ["a", None]),
        ([5, 6], pl.String, ["5", "6"]),
        (["a", "b"], pl.Categorical(), ["a", "b"]),
        ([True, None], pl.Boolean, [True, None]),
        ([b"\x89PNG"], pl.Binary, [b"\x89PNG"]),
        ([[1, 2], [3.5]], LISTS, [[1.0, 2.0], [3.5]]),
        ([[1.0, 2.0]], pl.List(pl.UInt8), [[1, 2]]),
        ([[], [None]], LISTS, [[], [None]]),
        ([[1, 2]], pl.Array(pl.Float32, 2), [[1.0, 2.0]]),
        ([{"a": 1.0, "b": "x"}, None], pl.Struct({"a": pl.Int64, "b": pl.String}), [{"a": 1, "b": "x"}, None]),
        ([{"a": None}, {"a": 2.0}], pl.Struct({"a": pl.Int64}), [{"a": None}, {"a": 2}]),
        ([90, 0.5], pl.Duration("us"), [timedelta(seconds=90), timedelta(seconds=0.5)]),
        ([timedelta(seconds=90), None], pl.Duration("ms"), [timedelta(seconds=90), None]),
        (["03:04:05", "03:04:05.5"], pl.Time, [time(3, 4, 5), time(3, 4, 5, 500_000)]),
        (["2025-01-02"], pl.Date, [date(2025, 1, 2)]),
        (["2025-01-02T03:00:00"], pl.Datetime("ms"), [datetime(2025, 1, 2, 3)]),
        (["2025-01-02T03:00:00+00:00"], pl.Datetime("us", "UTC"), [datetime(2025, 1, 2, 3, tzinfo=UTC)]),
        ([datetime(2025, 1, 2, tzinfo=UTC)], pl.Datetime("us", "UTC"), [datetime(2025, 1, 2, tzinfo=UTC)]),
    ],
)  # fmt: skip
def test_values_arrive_in_the_type_of_the_training_data(sent, dtype, read):
    rows = typed_rows(pd.DataFrame({"x": sent, "more": 1}), pl.Schema({"x": dtype}))
    assert rows.columns == ["x"], "columns that the model does not know are ignored"
    assert rows["x"].dtype == dtype
    assert rows["x"].to_list() == read


@pytest.mark.parametrize(
    ("sent", "dtype"),
    [
        (["12"], pl.Int64),
        (["far"], pl.Float64),
        ([1.5, 2.0], pl.Int64),
        ([300], pl.Int8),
        ([["a"]], LISTS),
        ([[1.5, 2.0]], pl.List(pl.UInt8)),
        ([[[0.5]]], pl.List(pl.List(pl.Int64))),
        ([{"a": 1.5}], pl.Struct({"a": pl.Int64})),
        ([{"b": {"c": [2.5]}}], pl.Struct({"b": pl.Struct({"c": pl.List(pl.Int64)})})),
        ([[{"a": 1.5}]], pl.List(pl.Struct({"a": pl.Int64}))),
        ([300, None], pl.Int8),
        (["far", None], pl.Enum(["near"])),
        (["far", None], pl.Date),
        ([{"a": 1}, 2], pl.String),
        ([5, None], pl.String),  # 5.0 for pandas, and so for polars' text
        ([5.0], pl.String),
        ([True], pl.String),
        ([date(2025, 1, 2)], pl.String),
        (["yesterday"], pl.Date),
        # polars would take days, or units of the type, since 1970.
        ([1_700_000_000], pl.Datetime("us", "UTC")),
        ([2], pl.Boolean),
        ([1e300], pl.Float32),
        ([[1e300]], LISTS),
        ([2.0**53 + 2], pl.Int64),
        ([1_700_000_000.5], pl.Datetime("ms")),
        ([20_000], pl.Date),
        ([3_600], pl.Time),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name_with_what_came(sent, dtype):
    with pytest.raises(BadDataError, match="column 'x' cannot be read as") as refused:
        typed_rows(pd.DataFrame({"x": sent}), pl.Schema({"x": dtype}))
    assert str(sent[0])[:3] in str(refused.value)


# pyarrow reads pandas' times with a zone in a way that pandas 4 will not have.
@pytest.mark.filterwarnings("ignore:Series.values returning")
@pytest.mark.parametrize(
    "sent",
    [["2025-07-02T03:00:00"], ["2025-07-02"], [datetime(2025, 7, 2, 3)], [date(2025, 7, 2)]],
)
def test_times_without_a_zone_are_not_taken_for_utc_in_a_column_of_another_zone(sent):
    """03:00 in Berlin was read as 05:00."""
    kind = pl.Datetime("us", "Europe/Berlin")
    with pytest.raises(BadDataError, match=r"send times with their offset"):
        typed_rows(pd.DataFrame({"x": sent}), pl.Schema({"x": kind}))
    three = datetime(2025, 7, 2, 1, tzinfo=UTC)
    for zoned in ("2025-07-02T03:00:00+02:00", "2025-07-02T01:00:00Z", three):
        rows = typed_rows(pd.DataFrame({"x": [zoned, None]}), pl.Schema({"x": kind}))
        assert rows["x"].dt.hour().to_list() == [3, None]


# pyarrow reads pandas' times with a zone in a way that pandas 4 will not have.
@pytest.mark.filterwarnings("ignore:Series.values returning")
@pytest.mark.parametrize("kind", [pl.Datetime("us"), pl.Date])
def test_times_of_a_zone_are_not_taken_for_the_clock_of_a_column_without_one(kind):
    """10:00 in Berlin was read as 08:00, and an evening in New York as the next day."""
    for sent in ("2025-07-02T23:00:00-05:00", "2025-07-02 03:00+0230"):
        with pytest.raises(BadDataError, match="without an offset"):
            typed_rows(pd.DataFrame({"x": ["2025-07-02T03:00:00", sent]}), pl.Schema({"x": kind}))
    moments = pd.Series([datetime(2025, 7, 2, 3)]).dt.tz_localize("Europe/Berlin")
    with pytest.raises(BadDataError, match="without an offset"):
        typed_rows(pd.DataFrame({"x": moments}), pl.Schema({"x": kind}))
    utc = ["2025-07-02T03:00:00Z", "2025-07-02T03:00:00+00:00"] if kind != pl.Date else []
    for sent in (*utc, datetime(2025, 7, 2, 3), "2025-07-02"):
        rows = typed_rows(pd.DataFrame({"x": [sent]}), pl.Schema({"x": kind}))
        assert str(rows["x"][0]).startswith("2025-07-02")


class Exponential:
    """A task of one number, whose prediction overflows for a large one."""

    scoring_rows, prediction_names = 2, ()
    kind, serves_predictions = "regression", False

    def encode(self, rows):
        return {"x": torch.tensor(rows["x"].to_list())}

    def predict(self, output):
        return output

    def answer_texts(self, values, rows):
        return {}


class Same(torch.nn.Module):
    def forward(self, x):
        return x


class Exponent(torch.nn.Module):
    def forward(self, x):
        return x.exp()


def test_a_prediction_that_is_not_finite_is_refused_with_the_row_that_gave_it():
    """As the evaluation does; NaN would be served to whoever asked."""
    model = ServedModel(Exponential(), Exponent(), pl.Schema({"x": pl.Float64, "y": pl.Float64}))
    sent = pd.DataFrame({"x": [0.0, 1.0, 1e30, 2.0], "y": [1.0, 2.0, 3.0, None]})
    with pytest.raises(MlflowException, match=r"1 of 4 rows have no finite prediction") as refused:
        model.predict(sent)
    assert "row 2 has x = 1e+30, y = 3" in str(refused.value)
    assert len(model.predict(sent.drop(index=2))) == 3


class Texts(Exponential):
    """Answers a text per row."""

    def answer_texts(self, values, rows):
        return {"word": [f"{value:g}" for value in values[:, 0]]}


ROWS = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0, 4.0]})


@pytest.mark.parametrize("task", [Exponential(), Texts()])
@pytest.mark.parametrize(
    "frame",
    [
        ROWS[ROWS.x > 1.0],
        ROWS.sample(frac=1.0, random_state=0),
        ROWS.set_axis([7, 7, 8, 8, 7]),
        ROWS.set_axis(pd.MultiIndex.from_product([["a"], range(5)], names=["group", "day"])),
        ROWS.set_axis(pd.date_range("2025-01-01", periods=5, freq="D")),
    ],
    ids=["filtered", "shuffled", "duplicated", "multi-index", "times"],
)
def test_predictions_have_the_index_of_their_rows(task, frame):
    """Assigned to a column of a filtered frame, they went to other rows."""
    found = ServedModel(task, Same(), pl.Schema({"x": pl.Float64})).predict(frame)
    pd.testing.assert_index_equal(found.index, frame.index)
    assert found.iloc[:, 0].astype(float).tolist() == frame.x.tolist()


def test_missing_columns_and_missing_rows_are_named():
    schema = pl.Schema({"a": pl.Int64, "b": pl.Int64})
    with pytest.raises(BadDataError, match=r"lack the columns \['b'\]"):
        typed_rows(pd.DataFrame({"a": [1], "c": [2]}), schema)
    with pytest.raises(BadDataError, match="no rows"):
        typed_rows(pd.DataFrame({"a": [], "b": []}), schema)


class Named:
    def __init__(self, *names):
        self.prediction_names = names


@pytest.mark.parametrize(
    ("own", "width", "names"),
    [
        ((), 1, ["prediction"]),
        ((), 2, ["prediction_0", "prediction_1"]),
        (("late",), 1, ["late"]),
    ],
)
def test_predictions_have_the_names_of_the_task_or_numbers(own, width, names):
    assert prediction_names(Named(*own), width) == names


def test_names_that_do_not_fit_the_predictions_are_refused():
    with pytest.raises(BadDataError, match="name each column"):
        prediction_names(Named("late"), 2)
