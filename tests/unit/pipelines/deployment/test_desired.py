"""What no step could do is refused before anything is deployed."""

import pytest

from deployments import contract, profile
from perennial.contracts.errors import PerennialError
from perennial.deployment.desired import desire
from perennial.training_jobs.config import ResourcesSection

ASKED = {"service_account": "mine", "shared_memory_gib": 8.0}


def resources(**values):
    return ResourcesSection.model_validate(values)


def test_what_no_trainjob_carries_is_refused():
    asked = resources(launcher="trainjob", cluster=ASKED)
    with pytest.raises(
        PerennialError, match=r"support resources\.cluster\.service_account, shared"
    ):
        desire(contract(resources=asked), profile())


def test_budgets_that_the_runtime_cuts_short_are_refused():
    asked = resources(launcher="trainjob", cluster={"budgets": {"running_hours": 73.0}})
    with pytest.raises(PerennialError, match="ends pods before the timeouts"):
        desire(contract(resources=asked), profile())


@pytest.mark.parametrize(
    "values",
    [
        {"launcher": "trainjob", "cluster": {"machines": 2, "runtime": "gpu"}},
        {"launcher": "pytorchjob", "cluster": ASKED},
        {"cluster": ASKED},
    ],
)
def test_what_the_launcher_can_do_is_deployed(values):
    assert desire(contract(resources=resources(**values)), profile()).pipelines
