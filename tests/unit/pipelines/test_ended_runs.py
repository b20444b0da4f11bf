"""A local run that ended before the gate has its page and its trigger in MLflow."""

from dataclasses import replace
from pathlib import Path

import pytest

from minimal_contract import MINIMAL
from perennial.cli import _end_tracking_run
from perennial.clients.mlflow_client import open_mlflow
from perennial.clients.tracking import open_tracking
from perennial.contract import load_contract
from perennial.run_page import write_run_report
from perennial.runs import Home


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_the_page_and_the_trigger_of_a_run_that_ended_early_are_in_mlflow(tmp_path, status):
    (tmp_path / "contract.toml").write_text(MINIMAL)
    home = Home(tmp_path / ".perennial")
    run = home.new_run(load_contract(tmp_path / "contract.toml"), "continuous_training", "code")
    environment = replace(home.environment, run_id=run.run_id)
    record = open_tracking(environment, run.model).run_id
    page = write_run_report(home, run)
    _end_tracking_run(home, run, status)
    client = open_mlflow(environment)
    ended = client.get_run(record)
    assert (ended.info.status, ended.data.tags["perennial.trigger"]) == (status, "manual")
    found = Path(client.download_artifacts(record, "reports/run.html", str(tmp_path)))
    assert page.read_text() == found.read_text()
