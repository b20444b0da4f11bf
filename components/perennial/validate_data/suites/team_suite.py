"""Team suite: a contract's own suite, from its document to its verdicts on a dataset.

What it needs of each partition is counted once and stored, as the facts are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Self

import polars as pl

from perennial.clients.object_store import ObjectStore
from perennial.contracts.environment import spark_address
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import Expectation
from perennial.data.dataset import Dataset
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.state import FactsState, merge_in_steps
from perennial.validate_data.state_store import Measurement, load_states
from perennial.validate_data.suites.counts import SuiteMeasures
from perennial.validate_data.suites.document import SuiteExpectation, load_suite
from perennial.validate_data.suites.judging import (
    Planned,
    judge_splits,
    judge_suite,
    plan_suite,
    refuse_unsupported,
    suite_measures,
)
from perennial.validate_data.suites.spark_rows import open_rows

COUNTS_VERSION = 2
"""Raised when the tables or what they count change."""
_BATCH_ROWS = 250_000


@dataclass(frozen=True)
class TeamSuite:
    """The expectations of a suite, and what must be measured to judge them."""

    section: ExpectationsSection
    planned: tuple[Planned, ...]
    measures: SuiteMeasures
    schema: pl.Schema
    spark: str = ""
    """Address of Spark, where it judges what no count answers; else a sample of rows is taken."""

    @classmethod
    def prepare(cls, section: ExpectationsSection, schema: pl.Schema, rows: int) -> Self:
        """Load the suite that the contract names; without one it has no expectations.

        The number of rows decides whether a sample is needed.

        Raises:
            PerennialError: the suite cannot be loaded, or has expectations that cannot be judged.
        """
        expectations = load_suite(section.suite) if section.suite else None
        spark = spark_address()
        is_sampled = not spark and rows > section.suite_sample_rows
        planned = plan_suite(expectations, schema, is_sampled=is_sampled) if expectations else ()
        refuse_unsupported(planned)
        measures = suite_measures(
            planned,
            schema,
            sample_rows=0 if spark else section.suite_sample_rows,
            sample_seed=section.suite_sample_seed,
        )
        return cls(section, planned, measures, schema, spark)

    @property
    def documents(self) -> list[SuiteExpectation]:
        """Return its expectations as they were written."""
        return [each.document for each in self.planned]

    def judge(
        self, snapshot: Snapshot, store: ObjectStore, sample: pl.DataFrame
    ) -> tuple[Expectation, ...]:
        """Return each expectation with its outcome; only new partitions are counted.

        `sample` has random rows of the splits, each of which is compared with the reference.
        """
        if not self.planned:
            return ()
        measurement = self._measurement(snapshot)
        tables = load_states(snapshot, measurement, store).tables
        uris = [file.uri for file in snapshot.files]
        open_spark = partial(open_rows, self.spark, uris) if self.spark else None
        judged = judge_suite(self.planned, tables, self.schema, open_spark)
        return (*judged, *judge_splits(self.planned, sample))

    def _measurement(self, snapshot: Snapshot) -> Measurement:
        section, is_sampled = self.section, bool(self.measures.sampled)
        return Measurement(
            "suite",
            {
                "version": COUNTS_VERSION,
                "columns": dict(snapshot.columns),
                "suite": section.suite,
                "sampled": list(self.measures.sampled),
                "rows": self.measures.sample_rows if is_sampled else 0,
                "seed": section.suite_sample_seed,
            },
            partial(count_partition, section=section, is_sampled=is_sampled),
            self.measures.merge,
        )

    def lines(self) -> Iterator[str]:
        """Yield how the suite will be judged, for people."""
        on_rows = [each for each in self.planned if each.reason]
        yield (
            f"suite: {len(self.planned)} expectations, {len(self.planned) - len(on_rows)} judged "
            f"by counts of all rows, {len(on_rows)} by Great Expectations on "
            + ("Spark" if self.spark else f"at most {self.measures.sample_rows:,} rows")
        )
        for each in on_rows:
            reason = each.reason.strip().splitlines()[0]
            yield f"  on rows: {each.document.type} ({', '.join(each.columns)}): {reason}"


def count_partition(
    snapshot: Snapshot, *, section: ExpectationsSection, is_sampled: bool
) -> FactsState:
    """Count what a suite needs in the rows of a snapshot of one partition."""
    dataset = Dataset(snapshot)
    schema = dataset.schema()
    # Planned here because expressions with functions cannot be sent to a process.
    measures = suite_measures(
        plan_suite(load_suite(section.suite), schema, is_sampled=False),
        schema,
        sample_rows=section.suite_sample_rows if is_sampled else 0,
        sample_seed=section.suite_sample_seed,
    )
    no_rows = pl.DataFrame(schema=schema)
    batches = dataset.column_batches(list(schema), _BATCH_ROWS)
    return merge_in_steps(map(measures.state_of, chain([no_rows], batches)), measures.merge)
