"""A study as Katib's Experiment: what its schema and its webhook accept, and the values it reads back."""

import math
import re

import pytest

from cluster_manifests import mistakes
from fake_operator import step_pod
from made_up_studies import MOMENTUM, NAME, RATE, WIDTH, made_up_plan
from perennial.contracts.errors import PerennialError
from perennial.studies.katib import experiment, parameters, read_assignments
from perennial.studies.sampling import space_of
from perennial.training_jobs.config import ClusterSection, ResourcesSection
from perennial.training_jobs.manifests import RunIdentity

EVERY_KIND = {
    "scientific": {NAME: {"choices": ["adamw", "sgd"]}},
    "nuisance": {
        RATE: {"log": [1e-4, 1e-1]},
        MOMENTUM: {"linear": [0.0, 0.99], "when": {NAME: ["sgd"]}},
        WIDTH: {"log_integer": [8, 128]},
        "model.options.layers": {"integer": [1, 4]},
        "model.options.widths": {"choices": [[8, 8], [16]]},
        "training.micro_batch_size": {"same_as": WIDTH, "times": 2},
    },
}


def experiment_of(resources=None, **changes):
    plan = made_up_plan(**{**EVERY_KIND, **changes})
    run = RunIdentity.of_pod(step_pod())
    return experiment(plan, resources or ResourcesSection(num_processes=2), run, 16)


@pytest.mark.parametrize("sampler", ["quasi_random", "random", "tpe", "gp", "grid"])
def test_the_experiment_fits_katibs_definition(sampler):
    searched = EVERY_KIND["nuisance"].items()
    whole = {name: each for name, each in searched if not {"log", "linear"} & each.keys()}
    made = experiment_of(sampler=sampler, **({"nuisance": whole} if sampler == "grid" else {}))
    assert mistakes(made) == []
    assert mistakes(made["spec"]["trialTemplate"]["trialSpec"]) == []
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", made["metadata"]["name"])
    assert len(made["metadata"]["name"]) <= 40
    used = re.findall(r"\$\{trialParameters\.(\w+)\}", " ".join(command_of(made)))
    assert used == [each["name"] for each in made["spec"]["parameters"]]


def command_of(made):
    job = made["spec"]["trialTemplate"]["trialSpec"]["spec"]
    return job["template"]["spec"]["containers"][0]["command"]


def test_katibs_shell_leaves_every_argument_alone():
    """Its webhook joins them to a line for `sh -c`."""
    made = experiment_of()
    labels = [
        label
        for each in made["spec"]["parameters"]
        for label in each["feasibleSpace"].get("list", ())
    ]
    assert labels == ["adamw", "sgd", "choice-0", "choice-1"]
    plain = [part.replace("${trialParameters.", "").replace("}", "") for part in command_of(made)]
    assert all(re.fullmatch(r"[\w./=-]+", part) for part in plain)


def test_a_logarithmic_range_is_searched_by_its_exponent():
    """A service that does not know distributions would search the plain range, and not say so."""
    found = {each["name"]: each for each in parameters(space_of(made_up_plan(**EVERY_KIND)))}
    rate = found["log10_training_optimizer_learning_rate"]["feasibleSpace"]
    assert (float(rate["min"]), float(rate["max"])) == (-4.0, -1.0)
    assert all("distribution" not in each["feasibleSpace"] for each in found.values())


def test_assignments_become_the_values_of_the_trial():
    space = space_of(made_up_plan(**EVERY_KIND))
    assigned = {
        "training_optimizer_name": "adamw", "training_optimizer_momentum": "0.5",
        "log10_training_optimizer_learning_rate": "-2.5",
        f"log10_{WIDTH.replace('.', '_')}": "1.5051", "model_options_layers": "3",
        "model_options_widths": "choice-1",
    }  # fmt: skip
    values = read_assignments(space, assigned)
    assert math.isclose(values[RATE], 10**-2.5, rel_tol=1e-3)
    assert (values[WIDTH], values["training.micro_batch_size"]) == (32, 64)
    assert (values["model.options.layers"], values["model.options.widths"]) == (3, [16])
    assert MOMENTUM not in values


@pytest.mark.parametrize(
    "change",
    [
        {"model_options_layers": "9"}, {"model_options_layers": "many"},
        {"log10_training_optimizer_learning_rate": "400"}, {"training_optimizer_name": "lion"},
        {"unknown": "1"},
    ],
)  # fmt: skip
def test_assignments_that_are_not_of_the_space_are_refused(change):
    space = space_of(made_up_plan(**EVERY_KIND))
    ends = {
        each["name"]: each["feasibleSpace"].get("min") or each["feasibleSpace"]["list"][0]
        for each in parameters(space)
    }
    assert read_assignments(space, ends)
    with pytest.raises(PerennialError, match="Katib"):
        read_assignments(space, ends | change)


def test_what_katib_lacks_is_refused():
    with pytest.raises(PerennialError, match="unknown to Katib"):
        experiment_of(pruning="asha")
    with pytest.raises(PerennialError, match="does not end a search by"):
        experiment_of(device_hours=1.0)
    with pytest.raises(PerennialError, match="whole numbers or choices"):
        experiment_of(sampler="grid", nuisance={RATE: {"log": [1e-4, 1.0], "grid_points": 4}})
    two = ResourcesSection(num_processes=2, cluster=ClusterSection(machines=2))
    with pytest.raises(PerennialError, match="2 machines"):
        experiment_of(two)


def test_trials_run_under_restricted_pod_security_and_get_the_steps_secrets():
    job = experiment_of()["spec"]["trialTemplate"]["trialSpec"]["spec"]
    pod = job["template"]["spec"]
    container = pod["containers"][0]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert {"name": "AWS_SECRET_ACCESS_KEY",
            "valueFrom": {"secretKeyRef": {"name": "s3", "key": "secret"}}} in container["env"]  # fmt: skip
    assert job["backoffLimit"] == 0
