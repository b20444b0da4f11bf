"""Snapshot: the immutable, content-addressed list of the exact bytes a model is trained on."""

from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

from pydantic import JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.data import DataSection, Split, SplitSection, TaskColumns
from perennial.contracts.section import Section, digest_of

# Clocks without a zone may be up to 14 hours ahead of UTC, so "future" starts a day from now.
CLOCK_MARGIN = timedelta(days=1)


def as_utc(moment: datetime) -> datetime:
    """Return a row's time in UTC, which one without a zone is taken for.

    Times of two snapshots are comparable then, also where the column's type changed in between.
    """
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_future(moment: datetime, now: datetime) -> bool:
    """Whether a row's time is later than any clock may show now."""
    return as_utc(moment) > now + CLOCK_MARGIN


class DataFile(Section):
    """One partition, pinned."""

    uri: str
    size_bytes: int
    sha256: str
    rows: int
    splits: tuple[Split, ...] | None = None
    """Splits that select rows of it; None where they were not counted."""
    days: tuple[date, date] | None = None
    """First and last day of its rows' times, in UTC; None without any."""


class Snapshot(Artifact):
    """Pinned files, columns and split rule of a training.

    File tree: `snapshot.json`. Equal data, column roles and split rule give an equal digest,
    whoever takes the snapshot, whenever, and wherever the dataset is stored.
    """

    file_name: ClassVar[str] = "snapshot.json"

    data: DataSection
    split: SplitSection
    files: tuple[DataFile, ...]
    columns: dict[str, str]
    """Column name → polars data type, in order of the names."""
    rows: int
    split_rows: dict[Split, int]
    """Rows that each split selects, after `train_days` and `test_days`."""
    time_min: datetime | None = None
    time_max: datetime | None = None
    counted_by: str = ""
    """Digest of the rule by which `splits` of the files were counted."""

    def digest(self) -> str:
        """Return the SHA-256 of all but the place: partitions count by path in the dataset.

        What was counted of a partition follows from the rest.
        """
        here = {
            "data": self.data.model_copy(update={"uri": ""}),
            "files": tuple(
                file.model_copy(update={"uri": path})
                for file, path in zip(self.files, self.paths, strict=True)
            ),
        }
        # Digests from before the option must stay: trainings are resumed by them.
        excluded: dict[str, Any] = {"counted_by": True, "files": {"__all__": {"splits", "days"}}}
        if not self.data.time_is_feature:
            excluded["data"] = {"time_is_feature"}
        values = self.model_copy(update=here).model_dump(mode="json", exclude=excluded)
        return digest_of(values)

    def counting_rule(self) -> str:
        """Return the digest of all that decides which splits select rows of a partition."""
        data = self.data
        roles = data.model_dump(mode="json", include={"label", "time", "group", "ids"})
        names = {data.label, *self.split_columns, *([data.time] if data.time else [])}
        types: JsonValue = {name: self.columns.get(name) for name in sorted(names)}
        newest = self.time_max.isoformat() if self.time_max else None
        return digest_of([roles, self.split.model_dump(mode="json"), types, newest])

    def files_of(self, split: Split) -> tuple[int, ...]:
        """Return the places of the files that may hold rows of a split."""
        if self.counted_by != self.counting_rule():  # an earlier version's, or other windows
            return tuple(range(len(self.files)))
        return tuple(
            at for at, file in enumerate(self.files) if file.splits is None or split in file.splits
        )

    def files_between(self, first: date, last: date) -> tuple[int, ...]:
        """Return the places of the files that may hold rows of these days, in any time zone."""
        first, last = (first - CLOCK_MARGIN, last + CLOCK_MARGIN)
        return tuple(
            at
            for at, file in enumerate(self.files)
            if file.days is None or (file.days[0] <= last and first <= file.days[1])
        )

    def data_time(self, now: datetime) -> datetime | None:
        """Return the time of the newest row, or the present if that lies in the future."""
        newest = self.time_max
        if newest is None or not is_future(newest, now):
            return newest
        return now.astimezone(UTC).replace(tzinfo=newest.tzinfo)

    def rows_beyond(self, earlier: "Snapshot") -> int:
        """Count the rows of partitions that an earlier snapshot did not have, by their contents."""
        known = {file.sha256 for file in earlier.files}
        return sum(file.rows for file in self.files if file.sha256 not in known)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files' names below `data.uri`, in the same order."""
        root = f"{self.data.uri.rstrip('/')}/"
        return tuple(file.uri.removeprefix(root) for file in self.files)

    @property
    def split_columns(self) -> tuple[str, ...]:
        """The columns whose values, and types, determine the split of a row."""
        data = self.data
        known = {"time": (data.time,), "group": (data.group,), "hash": data.ids}
        return tuple(name for name in known[self.split.resolved_method(data)] if name)

    def splits_as(self, other: "Snapshot") -> bool:
        """Whether both put each row into the same split, as far as types of columns are known.

        Numbers that become fractions, or another time zone, move rows as another rule does.
        """
        rules = [(s.split, s.data.time, s.data.group, s.data.ids) for s in (self, other)]
        kinds = ((self.columns.get(n), other.columns.get(n)) for n in self.split_columns)
        return rules[0] == rules[1] and all(a == b or None in (a, b) for a, b in kinds)

    @property
    def task_columns(self) -> TaskColumns:
        """The label and the columns that the model may see, in order of the names."""
        data = self.data
        other = {data.label, data.time, data.group, *data.ids, *data.meta}
        other.update(data.available_at.values())
        named = set(data.features) or self.columns.keys() - other
        if data.time and data.time_is_feature:
            named = {*named, data.time}
        features = {name: dtype for name, dtype in self.columns.items() if name in named}
        return TaskColumns(label=data.label, features=features)

    @property
    def described_features(self) -> tuple[str, ...]:
        """The features whose values come back: all but the time of the prediction."""
        return tuple(name for name in self.task_columns.features if name != self.data.time)
