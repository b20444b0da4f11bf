"""Inputs that depend on the process, the day, the order, or on files beside the rows."""

import os
from datetime import date, datetime

import numpy as np
import polars as pl
import pytest

from own_tasks import Leaving, Praise
from planted import Bug, require_caught
from planted import planted as planted_bug
from workshop import Workshop, results_of

BUGS: list[Bug] = []
FILES = "PLANTED_FILES"
CODES: dict[str, int] = {}
FRESH = {"settings": {"severities": {}}}


def planted(hint, *, outcome="failed"):
    return planted_bug(BUGS, "fresh_encoding", hint, material="customers", outcome=outcome, **FRESH)


@planted(r"hash\(\) of text")
class Hashed(Leaving):
    """categories are hashed by Python, which seeds its hash in each process"""

    def jobs(self, rows):
        return [hash(job) % 9 for job in rows["job"]]


@planted("the order of a set")
class OfASet(Leaving):
    """codes follow the order of a set"""

    def jobs(self, rows):
        codes = {job: code for code, job in enumerate(set(self.learned["jobs"]))}
        return [codes[job] for job in rows["job"]]


@planted("CODES")
class Remembered(Leaving):
    """codes are given in the order in which values are first met, in a global dictionary"""

    def jobs(self, rows):
        return [CODES.setdefault(job, len(CODES)) % 9 for job in rows["job"]]


@planted("self.met|met")
class RememberedByTask(Leaving):
    """codes are given in the order in which values are first met, in the task"""

    def jobs(self, rows):
        self.met = getattr(self, "met", {})
        return [self.met.setdefault(job, len(self.met)) for job in rows["job"]]


@planted("what state\\(\\) leaves out|remembers")
class FirstRow(Leaving):
    """numbers are counted from the first row that was ever encoded"""

    first = None

    def visits(self, rows):
        if type(self).first is None:
            type(self).first = int(rows["visits"][0])
        return rows["visits"].to_numpy() - self.first


@planted("the clock")
class AgeToday(Leaving):
    """the days since joining are counted until today"""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 3] = (date.today() - date(1970, 1, 1)).days - numbers[:, 3]
        return numbers


@planted("the clock")
class AgeNow(Leaving):
    """the years since joining are counted until now"""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        numbers[:, 3] = (datetime.now() - datetime(1970, 1, 1)).days / 365 - numbers[:, 3] / 365
        return numbers


def mostly_full(cases, few):
    """Each starts an interpreter: the first few in every run, the rest where there is time."""
    return [*cases[:few], *(pytest.param(each, marks=pytest.mark.full) for each in cases[few:])]


@pytest.mark.parametrize(
    "bug", mostly_full(BUGS[2:3] + BUGS[:2] + BUGS[3:], 1), ids=lambda bug: bug.name
)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


class ReadsAll(Leaving):
    """The mean is that of the whole data set, read where it lies."""

    def visits(self, rows):
        return rows["visits"].to_numpy() - float(self.read()["visits"].mean())

    def read(self):
        return pl.read_parquet(os.environ[FILES])


class ScansAll(ReadsAll):
    def read(self):
        return pl.scan_parquet(os.environ[FILES]).collect()


class ReadsTable(Leaving):
    """A table of prices beside the data."""

    def visits(self, rows):
        return rows["visits"].to_numpy() - np.load(os.environ[FILES])[0]


@pytest.mark.parametrize("task_type", mostly_full([ReadsAll, ScansAll], 1))
def test_reading_the_data_set_itself_is_named(task_type, workshop, monkeypatch):
    folder = workshop.dataset("customers").snapshot.data.uri
    monkeypatch.setenv(FILES, f"{folder}/*.parquet")
    result = results_of(workshop.subject(task_type, "customers", **FRESH), "fresh_encoding")
    found = result["fresh_encoding"]
    assert (found.outcome, found.hint) == ("failed", found.hint)
    assert "validation and test rows" in found.hint


@pytest.mark.full
def test_reading_another_table_warns(workshop, tmp_path, monkeypatch):
    np.save(tmp_path / "price.npy", np.array([3.0]))
    monkeypatch.setenv(FILES, str(tmp_path / "price.npy"))
    subject = workshop.subject(ReadsTable, "customers", **FRESH)
    found = results_of(subject, "fresh_encoding")["fresh_encoding"]
    assert (found.outcome, found.hint) == ("warned", found.hint)
    assert "price.npy" in found.measured


# Healthy neighbours


class Cached(Leaving):
    """Remembers codes that are the same whatever was met before."""

    def jobs(self, rows):
        self.met = getattr(self, "met", {})
        known = self.learned["jobs"]
        return [self.met.setdefault(job, known.index(job)) for job in rows["job"]]


class Dated(Leaving):
    """Counts days from a date of its own, and knows what a date is."""

    def numbers(self, rows):
        numbers = super().numbers(rows)
        dates = rows["joined"].str.to_date().to_list()
        assert all(isinstance(each, date) for each in dates)
        numbers[:, 3] = [(each - date(2020, 1, 1)).days for each in dates]
        return numbers


@pytest.mark.parametrize(
    "case",
    mostly_full(
        [(Dated, "customers"), (Leaving, "customers"), (Cached, "customers"), (Praise, "reviews")],
        1,
    ),
)
def test_healthy_tasks_have_no_findings(case, workshop):
    subject = workshop.subject(*case, **FRESH)
    found = results_of(subject, "fresh_encoding")["fresh_encoding"]
    assert (found.outcome, found.measured) == ("passed", found.measured)
