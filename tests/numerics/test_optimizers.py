"""Every optimizer, clipping method and schedule computes the same however the model is laid out."""

import pytest
import torch

from perennial.train_model.report import training_page
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)

ADAFACTOR = {"name": "adafactor", "learning_rate": 0.05, "weight_decay": 0.1}
# Without parameter scaling every weight moves, the ones that start at zero too.
PLAIN_ADAFACTOR = ADAFACTOR | {"learning_rate": 0.01, "scale_by_parameter": False}
NADAM = {"name": "nadam", "weight_decay": 0.1}
PLAIN_SGD = {"name": "sgd", "momentum": 0.0, "nesterov": False}


def validated(root, **settings):
    """A job whose settings went through JSON, as a contract's do."""
    job = tiny_job(root, **{"steps": 10, "evaluate_every_steps": 10, **settings})
    return type(job).from_json(job.to_json())


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": ADAFACTOR},
        pytest.param({"optimizer": PLAIN_ADAFACTOR}, marks=pytest.mark.full),
        pytest.param({"optimizer": NADAM}, marks=pytest.mark.full),  # below, resumed
        {"optimizer": {"name": "sgd", "learning_rate": 0.01}, "schedule": {"shape": "one_cycle"}},
        {"clipping": {"method": "value", "max_value": 0.4}},
        {"clipping": {"method": "adaptive", "percentile": 60.0, "window": 10}},
        pytest.param({"optimizer": {"name": "adam", "weight_decay": 0.1}}, marks=pytest.mark.full),
        pytest.param({"optimizer": PLAIN_SGD}, marks=pytest.mark.full),
    ],
    ids=[
        "adafactor", "plain adafactor", "nadam", "sgd in a cycle", "by value", "adaptive", "adam",
        "plain sgd",
    ],
)  # fmt: skip
def test_single_replicated_and_sharded_are_the_same(root, settings):
    single = finished(validated(root, strategy="single", **settings))
    replicated = finished(validated(root, strategy="ddp", **settings))
    sharded = finished(validated(root, strategy="fsdp", **settings))
    assert largest_difference(weights(sharded), weights(replicated)) == 0.0
    assert largest_difference(weights(single), weights(sharded)) <= 1e-6
    if "clipping" in settings:
        shares = [[point.clipped_share for point in r.history] for r in (single, sharded)]
        assert shares[0] == shares[1]
        assert 0.0 < sum(shares[0]) < len(shares[0])


@pytest.mark.parametrize(
    ("optimizer", "strategies"),
    [
        ({"name": "adamw", "implementation": "fused"}, ("single", "ddp", "fsdp")),
        ({"name": "sgd", "implementation": "fused"}, ("single", "ddp")),
        ({"name": "adam", "implementation": "fused"}, ("single", "ddp", "fsdp")),
    ],
    ids=["adamw", "sgd", "adam"],
)
@pytest.mark.full
def test_fused_kernels_are_close_to_the_others(root, optimizer, strategies):
    plain = finished(validated(root, strategy="single", optimizer={**optimizer, "implementation": "foreach"}))  # fmt: skip
    for strategy in strategies:
        fused = finished(validated(root, strategy=strategy, optimizer=optimizer))
        assert largest_difference(weights(plain), weights(fused)) <= 1e-6


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("fsdp", {"optimizer": ADAFACTOR}),
        (
            "ddp",
            {
                "optimizer": NADAM,
                "clipping": {"method": "adaptive", "percentile": 60.0, "window": 10},
                "schedule": {"shape": "one_cycle"},
            },
        ),
        pytest.param("single", {"optimizer": ADAFACTOR}, marks=pytest.mark.full),
        pytest.param("ddp", {"optimizer": ADAFACTOR}, marks=pytest.mark.full),
    ],
)
def test_a_resumed_training_is_bit_identical(root, strategy, settings):
    changes = {"strategy": strategy, "steps": 20, "evaluate_every_steps": 8, **settings}
    straight = finished(validated(root, **changes))
    job = validated(root, **changes)
    forwards = 2 if strategy == "single" else 1
    stopping = TinyOptions(fault="terminate", fault_call=13 * forwards)
    assert run_ranks(with_options(job, stopping)) == [75] * job.num_processes
    resumed = finished(job)
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    assert [(p.loss, p.learning_rate, p.clipped_share) for p in resumed.history] == [
        (p.loss, p.learning_rate, p.clipped_share) for p in straight.history
    ]


def test_constant_clipping_is_a_warning_in_the_log_and_on_the_page(root):
    constant, rare = (
        validated(root, strategy="single", clipping={"max_norm": limit}, log_every_steps=1)
        for limit in (1e-3, 1e3)
    )
    results = [finished(job) for job in (constant, rare)]
    shares = [{point.clipped_share for point in result.history} for result in results]
    assert shares == [{1.0}, {0.0}]
    pages = [training_page(result, "") for result in results]
    assert [page.outcome for page in pages] == ["warned", "neutral"]
    assert ["clipping constantly" in page.html() for page in pages] == [True, False]
    logs = [(job.logs / "rank-0.log").read_text() for job in (constant, rare)]
    assert [log.count("clipping constantly") for log in logs] == [1, 0]


@pytest.mark.full
def test_eight_bit_moments_train_alike_in_every_layout_and_resume_exactly(root):
    pytest.importorskip("torchao", reason="needs perennial[optimizers]")
    # Wide enough for each shard to be quantised: 4,096 values and a multiple of 256.
    options = TinyOptions(width=2048)
    settings = {"optimizer": {"name": "adamw8bit", "learning_rate": 1e-3}, "options": options}
    exact = finished(validated(root, options=options, optimizer={"learning_rate": 1e-3}))
    for strategy in ("single", "ddp", "fsdp"):
        result = finished(validated(root, strategy=strategy, **settings))
        # A few weights move far: beside large gradients their second moment rounds to zero.
        differences = torch.cat(
            [
                (weights(exact)[name] - value).abs().flatten()
                for name, value in weights(result).items()
            ]
        )
        assert 0.0 < torch.quantile(differences, 0.99) < 1e-3
        assert result.evaluations[-1].metrics["loss"] == pytest.approx(
            exact.evaluations[-1].metrics["loss"], rel=0.05
        )
    job = validated(root, strategy="fsdp", **settings)
    stopping = options.model_copy(update={"fault": "terminate", "fault_call": 5})
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    assert largest_difference(weights(finished(job)), weights(result)) == 0.0
