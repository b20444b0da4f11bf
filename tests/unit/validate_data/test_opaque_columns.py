"""Pictures and texts among the rows: what is wrong with them stops the run or warns."""

import numpy as np
import polars as pl
import pytest

from perennial.contracts.errors import BadDataError
from perennial.contracts.validation import ValidationReport
from perennial.data.pictures import encode_png


def picture(seed: int, width: int = 8) -> bytes:
    return encode_png(np.random.default_rng(seed).integers(0, 256, (8, width), dtype=np.uint8))


@pytest.fixture(scope="module")
def photographed(healthy) -> pl.DataFrame:
    """A thousand rows with a picture and a text each."""
    words = ["red", "green", "small", "large", "bus", "train", "car", "tram"]
    random = np.random.default_rng(3)
    rows = healthy.head(1000).drop("weather", "weather_at")
    return rows.with_columns(
        photo=pl.Series([picture(seed) for seed in range(rows.height)]),
        review=pl.Series([f"{' '.join(random.choice(words, 8))} {n}" for n in range(rows.height)]),
    )


def judged(validate, snapshot) -> ValidationReport:
    validate(snapshot)
    return ValidationReport.read(validate.out / "validation")


def not_met(report) -> set[str]:
    return {each.subject for each in report.expectations if each.outcome != "passed"}


def test_healthy_pictures_and_texts_pass(photographed, snapshot_of, validate):
    report = judged(validate, snapshot_of(photographed, text=("review",)))
    assert not_met(report) == set()
    assert report.facts["high:photo.width"] == 8.0
    assert report.facts["unreadable_share:photo"] == 0.0
    assert "leakage_auc:review.length" in report.facts
    assert "low:review" not in report.facts, "no text is copied into the facts"
    block = report.blocks[0]
    assert {"photo.contrast", "review.letters"} <= block.numeric.keys()
    assert "review" not in block.categorical
    assert "photo.contrast" in (validate.out / "report").read_text()


def test_text_that_is_not_named_free_is_an_identifier(photographed, snapshot_of, validate):
    assert "review" in not_met(judged(validate, snapshot_of(photographed)))


@pytest.mark.parametrize("column", ["photo", "review"])
def test_repeated_and_blank_values_warn(photographed, snapshot_of, validate, column):
    """A tenth of the rows each."""
    row = pl.int_range(pl.len()) % 10
    blank = pl.lit(encode_png(np.zeros((8, 8), np.uint8)) if column == "photo" else " ")
    spoiled = photographed.with_columns(
        pl.when(row == 0).then(blank).otherwise(column).alias(column)
    )
    report = judged(validate, snapshot_of(spoiled, text=("review",)))
    broken = {each.expected.partition(" at")[0] for each in report.expectations
              if each.outcome == "failed" and each.subject == column}  # fmt: skip
    assert broken == {"blank share", "repeated share"}


def test_a_picture_that_cannot_be_decoded_stops_the_run(photographed, snapshot_of, validate):
    row = pl.int_range(pl.len())
    spoiled = photographed.with_columns(
        photo=pl.when(row == 7).then(pl.col("photo").bin.slice(0, 40)).otherwise("photo")
    )
    with pytest.raises(BadDataError, match="unreadable share"):
        validate(snapshot_of(spoiled, text=("review",)))


def test_a_picture_size_that_predicts_the_label_is_a_leak(photographed, snapshot_of, validate):
    """As when the classes come from two cameras."""
    labels = photographed["label"].to_list()
    spoiled = photographed.with_columns(
        photo=pl.Series([picture(seed, 8 + label) for seed, label in enumerate(labels)])
    )
    with pytest.raises(BadDataError, match=r"photo\.width: leakage auc"):
        validate(snapshot_of(spoiled, text=("review",)))
    validate(snapshot_of(spoiled, text=("review",)), leakage_allow=["photo.width"])


def test_derived_columns_take_limits_of_their_own(photographed, snapshot_of, validate):
    with pytest.raises(BadDataError, match=r"review\.length"):
        validate(
            snapshot_of(photographed, text=("review",)), columns={"review.length": {"max": 20.0}}
        )


def test_pictures_of_training_among_held_out_rows_are_an_overlap(
    photographed, snapshot_of, validate
):
    repeated = photographed.with_columns(photo=pl.col("photo").gather(pl.int_range(pl.len()) // 2))
    report = judged(validate, snapshot_of(repeated, text=("review",)))
    assert report.facts["repeated_share:photo"] == pytest.approx(0.5)
    assert "photo" in not_met(report)


def test_free_text_can_be_its_own_label(photographed, snapshot_of, validate):
    """As for a language model: no classes, no leak, nothing untrained."""
    rows = photographed.select("id", "at", "user", "review")
    report = judged(
        validate, snapshot_of(rows, label="review", features=("review",), text=("review",))
    )
    assert report.facts["label_kind"] == "text"
    assert report.failures == ()
    assert "review.words" in report.blocks[0].numeric


def forecasts(healthy, label):
    """A thousand rows whose label is made of a list."""
    random = np.random.default_rng(3)
    lists = pl.Series(label(random.normal(size=(1000, 3))).tolist())
    return healthy.head(1000).select("id", "at", "user").with_columns(history=lists, label=lists)


def test_a_list_of_numbers_can_be_a_label(healthy, snapshot_of, validate):
    """No classes of hashes: it is described as a list that is a feature."""
    rows = forecasts(healthy, lambda values: values)
    snapshot = snapshot_of(rows, meta=("user",), available_at={})
    report = judged(validate, snapshot)
    assert not_met(report) == set()
    assert (report.facts["label_kind"], report.facts["label_values"]) == ("list", 1000)
    assert {"label.mean", "history.spread"} <= report.blocks[0].numeric.keys()


def test_a_list_that_never_changes_is_no_label(healthy, snapshot_of, validate):
    rows = forecasts(healthy, lambda values: 0 * values)
    with pytest.raises(BadDataError, match="label"):
        validate(snapshot_of(rows, meta=("user",), available_at={}))


def test_a_record_is_still_no_label(healthy, snapshot_of, validate):
    rows = forecasts(healthy, lambda values: values)
    rows = rows.with_columns(label=pl.struct(value=1.0))
    with pytest.raises(BadDataError, match="lists of numbers can be counted"):
        validate(snapshot_of(rows, meta=("user",), available_at={}))
