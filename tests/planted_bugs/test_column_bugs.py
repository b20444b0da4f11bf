"""Columns whose values are lost on the way to the inputs, and columns that reveal the label."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from own_tasks import Leaving, Next, Praise
from perennial.check_skeleton.checks.data.values.lost_values import check_lost_values
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, require_caught
from planted import planted as planted_bug
from skeleton_tables import SETTINGS
from workshop import Workshop, results_of

BUGS: list[Bug] = []


def planted(check, hint, *, outcome="failed", **how):
    return planted_bug(BUGS, check, hint, material="customers", outcome=outcome, **how)


class OwnVisits(Leaving):
    """Numbers with another reading of the visits."""

    def read(self, visits):
        return visits

    def visits(self, rows):
        return self.read(rows["visits"].to_numpy())


@planted("lost_values", "too few bits")
class Bytes(OwnVisits):
    """numbers up to 360 are stored in bytes"""

    def read(self, visits):
        return visits.astype(np.uint8)


@planted("lost_values", "too few bits")
class SignedBytes(OwnVisits):
    """numbers up to 160 are stored in bytes with a sign"""

    def read(self, visits):
        return (visits - 200).astype(np.int8)


@planted("lost_values", "a modulo", outcome="warned")
class Modulo(OwnVisits):
    """only the last two digits of a number are kept"""

    def read(self, visits):
        return visits % 100


@planted("lost_values", "a limit that clips many", outcome="warned")
class Cut(OwnVisits):
    """a limit cuts most of the values"""

    def read(self, visits):
        return np.minimum(visits, 290)


@planted("lost_values", "different values share an input", outcome="warned")
class LogOfNegative(OwnVisits):
    """most values are not positive before their logarithm, and one small number stands for them"""

    def read(self, visits):
        return np.log(np.maximum(visits - 315, 1e-9))


@planted("lost_values", "coarse rounding", outcome="warned")
class Coarse(OwnVisits):
    """numbers around 300 are divided by 200 without a remainder"""

    def read(self, visits):
        return visits // 200 + (visits > 310)


@planted("lost_values", "cast to a whole number")
class Truncated(Leaving):
    """incomes in millions are cast to whole numbers"""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 1] = (rows["income"].to_numpy() / 1e6).astype(int)
        return numbers + 1e-3 * np.arange(len(numbers[0]))


@planted("lost_values", "overwritten")
class Twice(Leaving):
    """one column is written over another"""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 2] = numbers[:, 0]
        return numbers


@planted("lost_values", "unknown to encode|different values share an input")
class VocabularyOfAnotherColumn(Leaving):
    """the jobs are looked up among other words, one of which happens to be a job"""

    def jobs(self, rows):
        return [int(job == self.learned["jobs"][-1]) for job in rows["job"]]


@planted("lost_values", "dates of another format", outcome="warned")
class DayAndMonth(Leaving):
    """day and month are exchanged, and what is not a date becomes 1970"""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        days = rows["joined"].str.to_date("%Y-%d-%m", strict=False).dt.epoch("d")
        numbers[:, 3] = days.fill_null(0).to_numpy()
        return numbers


@planted("lost_values", "unknown to encode")
class OtherCase(Leaving):
    """the vocabulary is in capitals, the values are not"""

    def jobs(self, rows):
        known = {job.upper(): code for code, job in enumerate(self.learned["jobs"], start=1)}
        return [known.get(job, 0) for job in rows["job"]]


@planted("lost_values", "unknown to encode")
class Spaces(Leaving):
    """the vocabulary's names have a space that was not stripped"""

    def fit(self, train):
        super().fit(train)
        self.learned["jobs"] = [f" {job.title()}" for job in self.learned["jobs"]]

    def jobs(self, rows):
        known = {job: code for code, job in enumerate(self.learned["jobs"], start=1)}
        return [known.get(f" {job}", 0) for job in rows["job"]]


@planted("lost_values", "hashes that collide", outcome="warned")
class Colliding(Leaving):
    """three buckets hash eight frequent values"""

    def jobs(self, rows):
        return [sum(map(ord, job)) % 3 for job in rows["job"]]


@planted("lost_values", "vocabulary that ends early", outcome="warned")
class FewNames(Leaving):
    """the vocabulary ends after two of eight frequent values"""

    def jobs(self, rows):
        known = {job: code for code, job in enumerate(self.learned["jobs"][:2], start=1)}
        return [known.get(job, 0) for job in rows["job"]]


class Also(Leaving):
    """Reads one more number in place of the dates, which tell nothing."""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 3] = self.also(rows)
        return numbers


@planted("telling_columns", "label under another name", also="twin")
class Twin(Also):
    """the label stands in another column as text"""

    def also(self, rows):
        return (rows["churned"] == "yes").to_numpy()


@planted("telling_columns", "in another unit", also="scaled")
class Scaled(Also):
    """the label stands in another column as a score"""

    def also(self, rows):
        return rows["score"].to_numpy()


@planted("telling_columns", "in another unit", outcome="warned", also="scaled")
class UnreadScore(Leaving):
    """the label stands in another column, which encode does not read yet"""


@planted("telling_columns", "known when the prediction is made", outcome="warned", also="reason")
class Reason(Leaving):
    """the reason for leaving is filled in for those who left"""


@planted("telling_columns", "after the outcome is known", outcome="warned", also="closed")
class Closed(Leaving):
    """the days until the account was closed are empty for those who stay"""


@planted("telling_columns", "data.ids", outcome="warned", also="number")
class Numbered(Leaving):
    """the customer's number, which counts the rows, is a feature"""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


# Healthy neighbours


class Binned(OwnVisits):
    """Numbers in ten bins of equal frequency."""

    def fit(self, train):
        edges = np.quantile(train.collect()["visits"].to_numpy(), np.linspace(0.1, 0.9, 9))
        self.edges = edges.tolist()
        super().fit(train)
        self.learned["edges"] = self.edges

    def read(self, visits):
        return np.searchsorted(self.learned.get("edges") or self.edges, visits)


class Winsorized(OwnVisits):
    """The outermost two in a hundred are cut."""

    def read(self, visits):
        return np.clip(visits, 265, 340)


class Hashed(Leaving):
    """Enough buckets for all names."""

    def jobs(self, rows):
        return [1 + sum(map(ord, job)) % 61 % 8 for job in rows["job"]]


class Clock(OwnVisits):
    """Tens and ones of a number in two inputs."""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 3] = numbers[:, 2] % 100
        return numbers


class TwoColumns(Leaving):
    """Uses no dates, which tell nothing."""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 3] = numbers[:, 0] * numbers[:, 1]
        return numbers


def pictures(folder, read):
    """Grey values from 0 to 16 in lists, and a task that reads them so."""
    generator = np.random.default_rng(2)
    grey = generator.integers(0, 17, size=(800, 12))
    grey[generator.random(grey.shape) < 0.4] = 0
    return lists_read(folder, grey, read)


def sounds(folder, read):
    """Waves of any loudness, some of which are louder than 1."""
    generator = np.random.default_rng(2)
    loudness = generator.uniform(0.2, 1.4, size=(800, 1))
    return lists_read(folder, loudness * generator.uniform(-1, 1, size=(800, 12)), read)


def lists_read(folder, grey, read):
    label = (grey.sum(axis=1) > np.median(grey.sum(axis=1))).astype(int)
    frame = pl.DataFrame({"row": range(800), "grey": grey.tolist(), "label": label})

    class Pictures(Classes):
        def fit(self, train):
            self.fitted = {"mean": [0.0] * 12, **self.fit_label(train.collect()["label"])}

        def encode(self, rows):
            x = read(np.array(rows["grey"].to_list()))
            batch = {"x": torch.from_numpy(np.asarray(x, dtype=np.float32))}
            if "label" in rows.columns:
                batch[LABEL] = self.encode_label(rows["label"])
            return batch

    dataset = dataset_of(frame, folder)
    return Subject.prepare(
        lambda: Pictures(Pictures.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "measured"),
    [
        (lambda grey: (grey.astype(np.uint8) * np.uint8(25)) / 255, "wrap around after 10"),
        (lambda grey: grey.astype(np.int8) * np.int8(12) / 100, "wrap around"),
        (lambda grey: grey // 16, "become 2"),
        (lambda grey: (grey / 17).astype(int), "become 1"),
        (lambda grey: np.maximum(grey, 15) / 16, "become 2"),
    ],
)
def test_lists_whose_numbers_lose_their_information_fail(read, measured, tmp_path):
    result = check_lost_values(pictures(tmp_path, read))
    assert result.outcome == "failed"
    assert measured in result.measured


def test_sounds_that_overflow_sixteen_bits_fail(tmp_path):
    def read(wave):
        return (wave * 32768).astype(np.int64).astype(np.int16) / 32768

    result = check_lost_values(sounds(tmp_path, read))
    assert (result.outcome, "wrap around after 2" in result.measured) == ("failed", True)


def test_sounds_clipped_at_sixteen_bits_pass(tmp_path):
    def read(wave):
        return np.clip(wave * 32768, -32768, 32767).astype(np.int16) / 32768

    assert check_lost_values(sounds(tmp_path, read)).outcome in ("passed", "skipped")


@pytest.mark.parametrize(
    "read",
    [
        lambda grey: grey / 16,
        lambda grey: (grey - 8) / 8.0,
        lambda grey: 1 - grey / 16,
        np.sqrt,
        lambda grey: np.digitize(grey, [1, 8, 12]),
        lambda grey: grey > 4,
        lambda grey: (grey - grey.mean(axis=1, keepdims=True)) / grey.std(axis=1, keepdims=True),
        lambda grey: np.fft.rfft(grey).real[:, :6].repeat(2, axis=1),
    ],
)
def test_numbers_in_lists_may_be_scaled_binned_and_transformed(read, tmp_path):
    assert check_lost_values(pictures(tmp_path, read)).outcome in ("passed", "skipped")


HEALTHY = [
    (Leaving, "customers", {}),
    (Leaving, "customers", {"also": "noise"}),
    (Binned, "customers", {}),
    (Winsorized, "customers", {}),
    (Clock, "customers", {}),
    (TwoColumns, "customers", {}),
    (Praise, "reviews", {}),
    (Next, "series", {}),
    (TabularClassification, "binary", {}),
    (TabularClassification, "binary", {"options": {"numeric_bins": 8}}),
    (TabularClassification, "multiclass", {}),
    (TabularClassification, "binary", {"positive": 0.04}),
    (TabularRegression, "regression", {}),
    (TabularRegression, "zero-inflated", {}),
    (TabularClassification, "weak", {}),
    (TabularClassification, "noise", {}),
    (TabularClassification, "binary", {"width": 200}),
]


@pytest.mark.parametrize(("task_type", "material", "shape"), HEALTHY)
@pytest.mark.parametrize("check", ["lost_values", "telling_columns"])
def test_healthy_tasks_have_no_findings(task_type, material, shape, check, workshop):
    result = results_of(workshop.subject(task_type, material, **shape), check)[check]
    assert result.outcome in ("passed", "skipped"), (result.measured, result.hint)
