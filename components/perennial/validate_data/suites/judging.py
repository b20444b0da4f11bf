"""Judging a suite: from facts where they answer it, else by Great Expectations on rows.

Which of the two is known before the run: an expectation names the metrics that it needs.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import polars as pl
from great_expectations.core import ExpectationSuite
from great_expectations.exceptions.exceptions import ExpectationNotFoundError
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.contracts.validation import Expectation
from perennial.data.dataset import SPLIT_COLUMN
from perennial.validate_data.expectations import run_suite
from perennial.validate_data.suites.counts import SuiteMeasures
from perennial.validate_data.suites.document import Suite, SuiteExpectation
from perennial.validate_data.suites.metrics import (
    METRICS,
    UNIQUENESS,
    Found,
    NotFromFactsError,
    Request,
    measures_of,
    require_facts,
)

# Query a database, compare several batches, or depend on an order that files do not have.
_UNSUPPORTED = {
    "unexpected_rows_expectation": "it queries a database",
    "expect_query_results_to_match_comparison": "it queries a database",
    "expect_table_row_count_to_equal_other_table": "it compares two tables",
    "expect_column_values_to_be_increasing": "rows of a data set have no order",
    "expect_column_values_to_be_decreasing": "rows of a data set have no order",
}
# A sample of rows has other sums, and repeats fewer of its values.
_NEEDS_ALL_ROWS = {
    "expect_column_sum_to_be_between",
    "expect_column_unique_value_count_to_be_between",
    "expect_column_proportion_of_unique_values_to_be_between",
    "expect_column_values_to_be_unique",
    "expect_compound_columns_to_be_unique",
    "expect_column_distinct_values_to_contain_set",
    "expect_column_distinct_values_to_equal_set",
}
# Facts answer them while the different values can be counted; else the sample does.
_COUNTED = {
    "expect_column_median_to_be_between",
    "expect_column_most_common_value_to_be_in_set",
    "expect_column_kl_divergence_to_be_less_than",
}
_DISTRIBUTION = "expect_column_kl_divergence_to_be_less_than"
ALL_ROWS = "all rows"
_RESULT_FORMAT = {"result_format": "BASIC", "exclude_unexpected_values": True}


@dataclass(frozen=True)
class Planned:
    """An expectation of the suite, and how it will be judged.

    Attributes:
        requests: The metrics that it needs, by Great Expectations' name of each dependency.
        reason: Why facts do not answer it; empty if they do.
        refusal: Why it cannot be judged at all; empty if it can.
    """

    document: SuiteExpectation
    expectation: BatchExpectation | None
    requests: Mapping[str, Request]
    reason: str = ""
    refusal: str = ""

    @property
    def columns(self) -> list[str]:
        """Return the columns that it names."""
        return _columns(self.document)


def plan_suite(suite: Suite, schema: pl.Schema, *, is_sampled: bool) -> tuple[Planned, ...]:
    """Decide for each expectation whether facts answer it, rows do, or nothing can.

    `is_sampled` means that rows are a sample, on which some expectations cannot be judged.
    """
    engine = _engine(_pandas_types(schema, dict.fromkeys(schema, False)))
    planned = [_plan(each, schema, engine) for each in suite.expectations]
    if not is_sampled:
        return tuple(planned)
    return tuple(
        replace(each, refusal=f"{each.reason}, and a sample of rows does not answer it")
        if each.reason and not each.refusal and each.document.type in _NEEDS_ALL_ROWS
        else each
        for each in planned
    )


def refuse_unsupported(planned: Sequence[Planned], lines: Sequence[int] = ()) -> None:
    """Refuse a suite with expectations that cannot be judged.

    Raises:
        PerennialError: it names each of them, with its line in the suite's file where it is known.
    """
    refused = [(index, each) for index, each in enumerate(planned) if each.refusal]
    if not refused:
        return

    def place(index: int) -> str:
        return f"line {lines[index]}" if index < len(lines) else f"expectation {index + 1}"

    raise PerennialError(
        f"{len(refused)} of {len(planned)} expectations of the suite cannot be judged here",
        evidence="; ".join(
            f"{place(index)}, {each.document.type}: {each.refusal}" for index, each in refused
        ),
        action="remove from the suite: "
        + ", ".join(f"{place(index)} ({_subject(each.document)})" for index, each in refused),
    )


def suite_measures(
    planned: Sequence[Planned], schema: pl.Schema, *, sample_rows: int, sample_seed: int
) -> SuiteMeasures:
    """Return what the rows must be measured for, and the columns that must be sampled.

    At most `sample_rows` rows, chosen by `sample_seed`, are kept for what facts do not answer; 0
    takes no sample.
    """
    requests = [request for each in planned for request in each.requests.values()]
    # Whether values are missing decides which type a column has on pandas.
    measures = measures_of([*requests, *map(_missing_request, schema)], schema)
    return replace(
        measures,
        sampled=_sampled_columns(planned, schema) if sample_rows else (),
        sample_rows=sample_rows,
        sample_seed=sample_seed,
    )


def judge_suite(
    planned: Sequence[Planned],
    tables: Mapping[str, pl.DataFrame],
    schema: pl.Schema,
    open_spark: Callable[[], object] | None = None,
) -> tuple[Expectation, ...]:
    """Return each expectation with its outcome, in the order of the suite.

    `tables` are what was measured of all rows; `open_spark` returns all rows as a table of Spark,
    in place of the sample.
    """
    numbers = tables["numbers"]
    nulls = {name: bool(numbers[_missing_request(name).key].item()) for name in schema}
    types = _pandas_types(schema, nulls)
    found = Found(tables, schema, {name: types[name].dtype for name in types.columns})
    engine = _engine(types)
    judged: dict[int, Expectation] = {}
    for index, each in enumerate(planned):
        outcome = None if each.reason else _judge_from_facts(each, found, engine)
        if outcome is not None:
            judged[index] = outcome
    # Besides those that no fact answers, those whose values turned out to be too many to count.
    rest = [index for index in range(len(planned)) if index not in judged]
    if rest:
        left = [planned[index] for index in rest]
        if open_spark:
            on_rows = _judge_on_rows(left, open_spark(), "all rows, on Spark", "spark")
        else:
            sample = tables["sample"].drop("__order__", strict=False)
            is_sample = sample.height < found.count("rows")
            basis = f"a random sample of {sample.height:,} rows" if is_sample else ALL_ROWS
            on_rows = _judge_on_rows(left, sample.to_arrow().to_pandas(), basis)
        judged |= dict(zip(rest, on_rows, strict=True))
    return tuple(judged[index] for index in range(len(planned)))


def judge_splits(planned: Sequence[Planned], sample: pl.DataFrame) -> Iterator[Expectation]:
    """Yield how each split alone meets what the suite expects of distributions.

    So training, validation and test are compared with the suite's reference one by one. A split
    that too few rows are known of, by chance beyond half of the limit, is left out. `sample` has
    random rows of some columns, with the name of their split.
    """
    expected = [
        each
        for each in planned
        if each.document.type == _DISTRIBUTION
        and not each.refusal
        and "row_condition" not in each.document.kwargs
        and set(each.columns) <= set(sample.columns)
    ]
    for split in Split if expected else ():
        rows = sample.filter(pl.col(SPLIT_COLUMN) == split.value)
        enough = [each for each in expected if _can_tell(each.document, rows.height)]
        if not enough:
            continue
        rows = rows.select({name for each in enough for name in each.columns})
        measures = suite_measures(enough, rows.schema, sample_rows=rows.height, sample_seed=0)
        judged = judge_suite(enough, measures.state_of(rows).tables, rows.schema)
        for each in judged:
            yield each.model_copy(
                update={
                    "subject": f"{each.subject} ({split.value})",
                    # Seasons and groups, by which rows are split, may differ in good data.
                    "severity": "info" if each.severity == "info" else "warning",
                    "basis": f"a random sample of {rows.height:,} rows of {split.value}",
                }
            )


def _can_tell(distribution: SuiteExpectation, rows: int) -> bool:
    """Whether chance alone is expected to take at most half of the allowed divergence."""
    partition = distribution.kwargs.get("partition_object")
    threshold = distribution.kwargs.get("threshold")
    if not isinstance(partition, dict) or not isinstance(threshold, int | float):
        return False
    weights = partition.get("weights")
    # The divergence of a sample of n rows over k values is (k - 1) / 2n on average.
    return isinstance(weights, list) and len(weights) <= threshold * rows


def _plan(document: SuiteExpectation, schema: pl.Schema, engine: PandasExecutionEngine) -> Planned:
    expectation, refusal = _load(document)
    if expectation is None:
        return Planned(document, None, {}, refusal=refusal)
    try:
        requests = _requests(expectation, engine)
        require_facts(list(requests.values()), schema)
    except Exception as error:  # Great Expectations raises anything; its run on rows shows it
        is_known = isinstance(error, NotFromFactsError)
        reason = str(error) if is_known else f"{type(error).__name__}: {error}"
        return Planned(document, expectation, {}, reason=reason)
    return Planned(document, expectation, requests)


def _load(document: SuiteExpectation) -> tuple[BatchExpectation | None, str]:
    """Return an expectation as Great Expectations has it, or why it cannot be judged."""
    if document.type in _UNSUPPORTED:
        return None, _UNSUPPORTED[document.type]
    if "$PARAMETER" in canonical_json(document.kwargs):
        return None, "its $PARAMETER has no value in a pipeline"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of row conditions as texts
            expectation = _configuration(document).to_domain_obj()
    except ExpectationNotFoundError:
        return None, "Great Expectations has no such type"
    except (ValueError, TypeError) as error:
        return None, " ".join(str(error).split())[:200]
    if not isinstance(expectation, BatchExpectation):
        return None, "it is not about one batch of data"
    return expectation, ""


def _configuration(
    document: SuiteExpectation, meta: dict[str, Any] | None = None
) -> ExpectationConfiguration:
    return ExpectationConfiguration(
        type=document.type,
        kwargs=dict(document.kwargs),
        meta=meta,
        severity=cast("Any", document.severity),
    )


def _requests(expectation: BatchExpectation, engine: PandasExecutionEngine) -> dict[str, Request]:
    """Return the metrics that an expectation needs to reach its verdict."""
    needed = expectation.get_validation_dependencies(
        execution_engine=engine, runtime_configuration={"result_format": "BOOLEAN_ONLY"}
    )
    ignored = ("batch_id", "table", "condition_parser", "result_format", "limit", "sort")
    requests = {}
    for name, metric in needed.metric_configurations.items():
        arguments = {**metric.metric_domain_kwargs, **metric.metric_value_kwargs}
        given = {
            key: list(value) if isinstance(value, tuple | set) else value
            for key, value in arguments.items()
            if value is not None and key not in ignored
        }
        requests[name] = Request(metric.metric_name, given)
    return requests


def _judge_from_facts(
    planned: Planned, found: Found, engine: PandasExecutionEngine
) -> Expectation | None:
    """Let an expectation judge metrics that come from facts; None if they turn out not to do."""
    if planned.expectation is None:
        return None
    basis = ALL_ROWS
    try:
        # Types depend on whether values are missing, so what is needed may have changed.
        requests = _requests(planned.expectation, engine)
        try:
            metrics = {key: METRICS[each.name].value(each, found) for key, each in requests.items()}
        except NotFromFactsError:
            if not any(each.name in UNIQUENESS for each in requests.values()):
                return None
            metrics, share = found.sampled_values(requests)
            basis = f"a sample of 1 in {share:,} values, with all their rows"
        result = planned.expectation._validate(metrics, {"result_format": _RESULT_FORMAT}, engine)
    except KeyError:
        return None
    except Exception as error:  # as Great Expectations does, which reports it
        return _not_evaluated(planned.document, f"{type(error).__name__}: {error}")
    judged = cast("dict[str, Any]", result)
    return _judged(planned.document, judged["success"], judged.get("result", {}), basis)


def _judge_on_rows(
    planned: Sequence[Planned],
    rows: object,
    basis: str,
    source: Literal["pandas", "spark"] = "pandas",
) -> list[Expectation]:
    """Let Great Expectations judge expectations on rows, all or a sample of them."""
    suite = ExpectationSuite(name="rows")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of row conditions as texts
        for index, each in enumerate(planned):
            configuration = _configuration(each.document, {"claim": index})
            suite.expectations.append(configuration.to_domain_obj())
        results = run_suite(suite, rows, source)
    judged = []
    for index, each in enumerate(planned):
        result = results[index]
        problem = exception_in(result.exception_info)
        if "sample" in basis and each.document.type in _NEEDS_ALL_ROWS:
            problem = "it has too many different values to count, and a sample does not answer it"
        judged.append(
            _not_evaluated(each.document, problem)
            if problem
            else _judged(each.document, bool(result.success), result.result, basis)
        )
    return judged


def exception_in(info: Mapping[str, Any] | None) -> str:
    """Return what an expectation raised instead of a verdict; empty if it reached one.

    Great Expectations reports one exception, or one for each metric.
    """
    nested = [each for each in (info or {}).values() if isinstance(each, dict)]
    for each in (info or {}, *nested):
        if each.get("raised_exception"):
            message = str(each.get("exception_message") or "").strip()
            return message or "an exception without a message"
    return ""


def _judged(
    document: SuiteExpectation, is_met: bool, result: Mapping[str, Any], basis: str
) -> Expectation:
    notes = document.meta.get("notes") or document.meta.get("hint")
    hint = str(notes) if notes else "fix the source, or the expectation in the suite"
    return Expectation(
        name=document.type,
        subject=_subject(document),
        severity=document.severity,
        outcome="passed" if is_met else "failed",
        expected=_expected(document),
        observed=shown_result(result),
        hint="" if is_met else hint,
        basis=basis,
    )


def _not_evaluated(document: SuiteExpectation, why: str) -> Expectation:
    return Expectation(
        name=document.type,
        subject=_subject(document),
        severity=document.severity,
        outcome="not_evaluated",
        expected=_expected(document),
        observed="not measured",
        hint=f"Great Expectations could not judge it: {why.splitlines()[0]}",
        basis=ALL_ROWS,
    )


def _columns(document: SuiteExpectation) -> list[str]:
    single = [document.kwargs.get(key) for key in ("column", "column_A", "column_B")]
    several = document.kwargs.get("column_list")
    names = [*single, *(several if isinstance(several, list) else ())]
    return [str(name) for name in names if name is not None]


def _subject(document: SuiteExpectation) -> str:
    return ", ".join(_columns(document)) or "table"


def _expected(document: SuiteExpectation) -> str:
    """The expectation in words: its name without the column, then its other arguments."""
    words = document.type.removeprefix("expect_").replace("_", " ")
    arguments = ", ".join(
        f"{key} = {text if len(text := canonical_json(value)) <= 60 else text[:57] + '…'}"
        for key, value in document.kwargs.items()
        if key not in ("column", "column_A", "column_B", "column_list")
    )
    return f"{words}: {arguments}" if arguments else words


def shown_result(result: Mapping[str, Any]) -> str:
    """Return in words what Great Expectations observed."""
    if result.get("unexpected_percent") is not None:
        return f"{result['unexpected_count']:,} unexpected ({result['unexpected_percent']:.4g} %)"
    for key in ("observed_value", "partial_unexpected_list", "partial_missing_list"):
        value = result.get(key)
        if isinstance(value, float | np.floating):
            return f"{value:.6g}"
        if isinstance(value, list):
            value = [each.item() if isinstance(each, np.generic) else each for each in value]
        if value is not None and not (isinstance(value, list) and not value):
            return str(value)[:120]
    return "nothing unexpected" if "observed_value" in result else "no value"


def _missing_request(name: str) -> Request:
    return Request("column_values.nonnull.unexpected_count", {"column": name})


def _pandas_types(schema: pl.Schema, nulls: Mapping[str, bool]) -> pd.DataFrame:
    """An empty table with the types that pandas gives the columns, which depend on missing ones."""
    columns = {
        name: pl.Series(name, [None] if nulls[name] else [], dtype).to_arrow().to_pandas()
        for name, dtype in schema.items()
    }
    return pd.DataFrame({name: column.iloc[:0] for name, column in columns.items()})


def _engine(table: pd.DataFrame) -> PandasExecutionEngine:
    return PandasExecutionEngine(batch_data_dict={"types": table})


def _sampled_columns(planned: Sequence[Planned], schema: pl.Schema) -> list[str]:
    """Columns that the rows need which Great Expectations may judge."""
    on_rows = [each for each in planned if each.reason or each.document.type in _COUNTED]
    if any(
        "row_condition" in each.document.kwargs or set(each.columns) - set(schema)
        for each in on_rows
    ):
        opaque = (pl.Binary, pl.List, pl.Array)
        return [name for name, dtype in schema.items() if not isinstance(dtype, opaque)]
    wanted = {name for each in on_rows for name in each.columns}
    return [name for name in schema if name in wanted]
