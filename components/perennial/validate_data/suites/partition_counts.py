"""Partition counts: what a suite needs of each partition, stored as the facts are."""

from functools import partial

import polars as pl

from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.state import FactsState
from perennial.validate_data.state_store import Measurement
from perennial.validate_data.suites.counts import SuiteMeasures
from perennial.validate_data.suites.document import load_suite
from perennial.validate_data.suites.judging import plan_suite, suite_measures

COUNTS_VERSION = 2
"""Raised when the tables or what they count change."""
_BATCH_ROWS = 250_000
_MERGED_AT_ONCE = 4


def counts_measurement(
    snapshot: Snapshot, section: ExpectationsSection, measures: SuiteMeasures
) -> Measurement:
    """Return the measurement of what a suite needs.

    Args:
        snapshot: Its columns are counted.
        section: Names the suite.
        measures: What the suite needs of them.
    """
    is_sampled = bool(measures.sampled)
    return Measurement(
        "suite",
        {
            "version": COUNTS_VERSION,
            "columns": dict(snapshot.columns),
            "suite": section.suite,
            "sampled": list(measures.sampled),
            "rows": measures.sample_rows if is_sampled else 0,
            "seed": section.suite_sample_seed,
        },
        partial(count_partition, section=section, is_sampled=is_sampled),
        measures.merge,
    )


def count_partition(
    snapshot: Snapshot, *, section: ExpectationsSection, is_sampled: bool
) -> FactsState:
    """Count what a suite needs in the rows of a snapshot of one partition."""
    dataset = Dataset(snapshot)
    schema = dataset.scan().collect_schema()
    # Planned here because expressions with functions cannot be sent to a process.
    measures = suite_measures(
        plan_suite(load_suite(section.suite), schema, is_sampled=False),
        schema,
        sample_rows=section.suite_sample_rows if is_sampled else 0,
        sample_seed=section.suite_sample_seed,
    )
    states = [measures.state_of(pl.DataFrame(schema=schema))]
    for batch in dataset.column_batches(list(schema), _BATCH_ROWS):
        states.append(measures.state_of(batch))
        if len(states) > _MERGED_AT_ONCE:
            states = [measures.merge(states)]
    return measures.merge(states)
