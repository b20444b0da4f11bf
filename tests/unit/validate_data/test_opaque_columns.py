"""Pictures and texts among the rows: what is wrong with them stops the run or warns."""

from io import BytesIO

import numpy as np
import polars as pl
import pytest
from PIL import Image

from perennial.contracts.errors import BadDataError
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import Dataset
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


def sixteen_bits() -> bytes:
    file = BytesIO()
    Image.fromarray(np.full((8, 8), 4000, np.uint16)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (picture(7)[:40], "40 bytes beginning b'.*PNG.*': "),
        (sixteen_bits(), "mode I;16 has more than eight bits per channel"),
    ],
    ids=["cut off", "16 bits"],
)
def test_a_picture_that_cannot_be_decoded_stops_the_run(
    photographed, snapshot_of, validate, broken, reason
):
    """Of many pictures, the message names one and why it cannot be read."""
    spoiled = photographed.with_columns(
        photo=pl.when(pl.int_range(pl.len()) == 7).then(pl.lit(broken)).otherwise("photo")
    )
    snapshot = snapshot_of(spoiled, text=("review",))
    rows = Dataset(snapshot).collect(Dataset(snapshot).scan())
    place = rows["photo"].to_list().index(broken)
    where = (
        f"unreadable share at most 0, observed 0.001, as in row {place}, id = {rows['id'][place]}: "
    )
    with pytest.raises(BadDataError, match=f"{where}.*{reason}") as caught:
        validate(snapshot)
    assert str(caught.value).count("as in row") == 1
    assert where in (validate.out / "report").read_text()


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


LABELS = {
    "tags": ("list", [["red", "round"], [], ["red"]]),
    "tags of each token": ("list", [["O", "B-ORG"], ["O"], ["B-ORG"]]),
    "boxes": ("list", [[{"x": 1.0, "of": "cat"}], [], [{"x": 2.0, "of": "dog"}]]),
    "a mask": ("bytes", [picture(1), picture(2), picture(3)]),
    "an array's bytes": ("bytes", [b"\x01\x00", b"\x02\x00", b"\x03\x00"]),
    "a record": ("structure", [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}]),
}


@pytest.mark.parametrize("name", LABELS)
def test_tags_boxes_masks_and_records_are_labels_without_classes(
    name, healthy, snapshot_of, validate
):
    kind, values = LABELS[name]
    label = pl.Series([values[row % 3] for row in range(1000)])
    rows = healthy.head(1000).select("id", "at", "user", "amount").with_columns(label=label)
    report = judged(validate, snapshot_of(rows, meta=("user",), available_at={}))
    assert not_met(report) == set()
    assert (report.facts["label_kind"], report.facts["label_values"]) == (kind, 3)


def test_a_duration_is_no_label(healthy, snapshot_of, validate):
    rows = forecasts(healthy, lambda values: values).with_columns(
        label=pl.duration(days=pl.int_range(pl.len()))
    )
    with pytest.raises(BadDataError, match="cannot be counted"):
        validate(snapshot_of(rows, meta=("user",), available_at={}))


def test_texts_to_be_written_are_not_classes_that_lack_rows(healthy, snapshot_of, validate):
    """As the numbers of meters, which are read from their pictures."""
    rows = healthy.head(1000).select("id", "at", "user", "amount")
    rows = rows.with_columns(label=pl.format("{}", pl.int_range(pl.len()) * 7919 % 983))
    report = judged(validate, snapshot_of(rows, meta=("user",), available_at={}))
    assert report.failures == ()


def gaps(random):
    """Readings of six hours, of which some are missing."""
    readings = random.normal(20, 3, (1000, 6))
    return [[None if random.random() < 0.2 else float(each) for each in row] for row in readings]


LISTS = {
    "gaps": gaps,
    "no item at all": lambda random: [list(range(n)) for n in random.integers(0, 4, 1000)],
    "one item": lambda random: [[int(n)] for n in range(1000)],
    "no sales in most weeks": lambda random: random.poisson(0.2, (1000, 9)).tolist(),
    "the rooms' own and the common weather": lambda random: random.normal(size=(1000, 5)).tolist(),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_with_gaps_zeros_and_few_items_pass(name, healthy, snapshot_of, validate):
    random = np.random.default_rng(4)
    lists = pl.Series(LISTS[name](random))
    rows = healthy.head(1000).select("id", "at", "user", "label").with_columns(readings=lists)
    if "common" in name:
        weather = random.normal(size=(100, 5)).tolist()
        rows = rows.with_columns(weather=pl.Series([weather[row // 10] for row in range(1000)]))
    report = judged(validate, snapshot_of(rows, meta=("user",), available_at={}))
    assert not_met(report) == set()


FLAWS = {
    "an infinite reading": ([1.0, float("inf"), 2.0], "unreadable share"),
    "a sensor that is stuck": ([7.0, 7.0, 7.0], "blank share"),
}


@pytest.mark.parametrize("name", FLAWS)
def test_broken_lists_are_named(name, healthy, snapshot_of, validate):
    broken, fact = FLAWS[name]
    readings = np.random.default_rng(4).normal(20, 3, (1000, 3)).tolist()
    lists = pl.Series([broken if row % 50 == 0 else readings[row] for row in range(1000)])
    rows = healthy.head(1000).select("id", "at", "user", "label").with_columns(readings=lists)
    snapshot = snapshot_of(rows, meta=("user",), available_at={})
    if fact == "unreadable share":
        with pytest.raises(BadDataError, match=f"{fact}.*as in row 0, .*is not finite"):
            validate(snapshot)
    else:
        assert "readings" in not_met(judged(validate, snapshot))


def test_bytes_that_are_no_pictures_are_the_tasks_to_read(healthy, snapshot_of, validate):
    sounds = [b"RIFF" + np.random.default_rng(row).bytes(60) for row in range(1000)]
    rows = (
        healthy.head(1000).select("id", "at", "user", "label").with_columns(sound=pl.Series(sounds))
    )
    report = judged(validate, snapshot_of(rows, meta=("user",), available_at={}))
    assert not_met(report) == set()
