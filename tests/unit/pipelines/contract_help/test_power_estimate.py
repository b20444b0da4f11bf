"""Before a training: can the test split find what the contract calls worth finding?"""

import numpy as np
import polars as pl
import pytest

from perennial.contract import Contract
from perennial.contract_help.power_estimate import count_test_blocks, power_estimate_lines
from perennial.contracts.gate import Comparison, Interval, Verdict
from perennial.gate.config import GateSection
from perennial.runs import Home
from perennial.steps.journal import Journal
from small_models import ROWS_PER_DAY, TASK, stream, write_snapshot


@pytest.fixture
def foreseen(tmp_path):
    """The lines for a gate, after an earlier comparison with the given standard error."""

    def lines(error=None, days=90, positives=None, effective=None, **gate):
        rows = stream(days=days)
        if positives is not None:  # one on each of the last days, the others have none
            rare = pl.int_range(pl.len()) >= pl.len() - ROWS_PER_DAY * positives
            first = pl.int_range(pl.len()) % ROWS_PER_DAY == 0
            rows = rows.with_columns(label=(rare & first).cast(pl.Int64))
        snapshot = write_snapshot(tmp_path / "data", rows)
        contract = Contract.model_validate(
            {
                "model": {"name": "clicks", "task": TASK},
                "data": snapshot.data,
                "gate": GateSection(**gate),
            }
        )
        home = Home(tmp_path / "home")
        run = home.new_run(contract, "continuous_training", "code")
        folder = home.folder(run.run_id)
        if error is not None:
            write_verdict(folder, error, effective)
        return list(power_estimate_lines(home, contract, *count_test_blocks(snapshot)))

    return lines


def write_verdict(folder, error, effective=None):
    journal = Journal(folder)
    journal.append("step_started", step="evaluate_model", key="evaluate_model-1", log="log")
    journal.append("step_finished", step="evaluate_model", key="evaluate_model-1", summary="")
    improvement = Interval(estimate=0.0, low=-0.1, high=0.1)
    comparison = Comparison(
        metric="log_loss", challenger=0.4, champion=0.4, improvement=improvement,
        standard_error=error, degrees=8.0, effective_blocks=effective, correlation=0.8,
    )  # fmt: skip
    Verdict(
        promote=False, summary="", reasons=(), comparisons=(comparison,), baselines={},
        test_rows=20 * ROWS_PER_DAY, test_blocks=20, performance_reference=(),
    ).write(folder / "steps" / "evaluate_model-1" / "verdict")  # fmt: skip


def test_without_an_earlier_comparison_it_says_when_one_will_tell(foreseen):
    days, later = foreseen(worth_finding=0.02)
    assert days.startswith("the gate judges on 21 independent blocks (days)")
    assert "after the first comparison" in later
    assert len(foreseen()) == 1


def test_days_too_few_to_count_as_independent_are_warned_of_before_any_comparison(foreseen):
    warned = [line for line in foreseen(min_effective_days=22.0) if line.startswith("WARNING: ")]
    assert len(warned) == 1
    assert "21 test days can rarely count as gate.min_effective_days = 22" in warned[0]


def test_an_earlier_comparison_estimates_what_the_current_days_can_detect(foreseen):
    _, enough = foreseen(0.01, worth_finding=0.2)
    assert enough.startswith("21 test days detect an improvement in log_loss of 0.0")
    _, warning = foreseen(0.05, worth_finding=0.02)
    assert warning.startswith("WARNING: ")
    needed = int(warning.split("needs ")[1].split(":")[0].replace(",", ""))
    assert needed > 21 * (np.float64(0.05) / 0.02) ** 2


def test_an_error_of_another_metric_is_not_used(foreseen):
    assert len(foreseen(0.01, metric="roc_auc")) == 1


def test_too_few_rows_of_the_rarer_class_are_warned_of_where_the_metric_ranks(foreseen):
    warning = foreseen(positives=5, metric="roc_auc")[1]
    assert "WARNING: 5 test rows are of the rarer class, in 5 days" in warning
    assert "the gate wants 50 in 8" in warning
    assert len(foreseen(positives=5, metric="log_loss")) == 1
    assert len(foreseen(metric="roc_auc")) == 1


def test_days_that_were_alike_in_the_last_comparison_are_warned_of(foreseen):
    warning = foreseen(0.01, effective=4.0)[1]
    assert "these days are worth 4.2 independent ones, and the gate wants 12" in warning
    assert "correlates at 0.80" in warning
    assert len(foreseen(0.01, effective=18.0)) == 2
