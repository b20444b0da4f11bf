"""Both ways to judge a suite: Great Expectations on pandas, and our counts."""

import warnings

import pandas as pd

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from great_expectations.core import ExpectationSuite
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    from perennial.validate_data.expectations import run_suite
    from perennial.validate_data.suites.judging import (
        exception_in,
        judge_suite,
        plan_suite,
        shown_result,
        suite_measures,
    )


def stock(suite, path):
    """What Great Expectations finds in a Parquet file through pandas, and nothing of ours."""
    wanted = ExpectationSuite(name="stock")
    for index, each in enumerate(suite.expectations):
        configuration = ExpectationConfiguration(
            type=each.type, kwargs=dict(each.kwargs), meta={"claim": index}
        )
        wanted.expectations.append(configuration.to_domain_obj())
    results = run_suite(wanted, pd.read_parquet(path))
    judged = []
    for _, each in sorted(results.items()):
        raised = exception_in(each.exception_info)
        outcome = "not_evaluated" if raised else "passed" if each.success else "failed"
        judged.append((outcome, "not measured" if raised else shown_result(each.result)))
    return judged


def from_counts(suite, table, *, batches=3, rows=10**6):
    """What our counts find, batch by batch; rows are judged by Great Expectations."""
    planned = plan_suite(suite, table.schema, is_sampled=False)
    measures = suite_measures(planned, table.schema, sample_rows=rows, sample_seed=0)
    size = max(table.height // batches, 1)
    parts = [*table.iter_slices(size)] or [table]
    state = measures.merge([measures.state_of(part) for part in parts])
    return judge_suite(planned, state.tables, table.schema)
