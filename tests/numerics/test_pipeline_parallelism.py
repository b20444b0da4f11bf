"""A pipeline computes what a single process computes, whatever its schedule and its stages."""

import json

import pytest

from small_decoder import SmallDecoderOptions, decoder_job
from tiny_training import finished, largest_difference, run_ranks, weights


def options(**changes):
    """Five blocks: no number of stages divides them evenly."""
    return SmallDecoderOptions(width=16, **({"layers": 5, "heads": 2} | changes))


def pipeline_job(root, schedule="1f1b", *, model=None, parallelism=None, **changes):
    settings = {
        "micro_batch_size": 5, "global_batch_size": 26, "steps": 12, "evaluate_every_steps": 6,
        "log_every_steps": 1, "clipping": {"max_norm": 0.3}, "evaluation_rows": 21,
        "averaging": {"decay": 0.9},
        "parallelism": {"pipeline": 2, "pipeline_schedule": schedule} | (parallelism or {}),
    }  # fmt: skip
    return decoder_job(root, model or options(), **(settings | changes))


@pytest.fixture(scope="module")
def alone(root):
    """The same training in a single process."""
    return finished(pipeline_job(root, strategy="single", parallelism={"pipeline": 1}))


def assert_equal(many, one, tolerance=1e-6):
    assert largest_difference(weights(one), weights(many)) <= tolerance
    for point, expected in zip(many.history, one.history, strict=True):
        assert point.loss == pytest.approx(expected.loss, abs=tolerance)
        assert point.gradient_norm == pytest.approx(expected.gradient_norm, abs=tolerance)
    for point, expected in zip(many.evaluations, one.evaluations, strict=True):
        assert point.metrics == pytest.approx(expected.metrics, abs=tolerance)
    assert many.num_parameters == one.num_parameters
    assert max(point.gradient_norm for point in many.history) > 0.3, "clipping took part"


@pytest.mark.parametrize(
    ("schedule", "processes", "changes"),
    [
        pytest.param("gpipe", 2, {}, marks=pytest.mark.full),
        pytest.param("1f1b", 2, {}, marks=pytest.mark.full),
        ("interleaved_1f1b", 2, {}),
        ("1f1b", 4, {"micro_batch_size": 3}),
        pytest.param(
            "gpipe", 4, {"strategy": "hsdp", "parallelism": {"replicas": 2}}, marks=pytest.mark.full
        ),
        pytest.param("gpipe", 4, {}, marks=pytest.mark.full),
        pytest.param("interleaved_1f1b", 4, {"micro_batch_size": 4}, marks=pytest.mark.full),
        pytest.param("1f1b", 4, {"parallelism": {"pipeline": 4}}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_a_pipeline_equals_a_single_process(root, alone, schedule, processes, changes):
    together = finished(pipeline_job(root, schedule, processes=processes, **changes))
    assert_equal(together, alone)


EXPERTS = {"experts": 4, "balance": 0.0}
FEWER = {"micro_batch_size": 3}
full = pytest.mark.full


@pytest.mark.parametrize(
    ("schedule", "processes", "model", "dimensions", "changes"),
    [
        pytest.param("1f1b", 4, {}, {"tensor": 2}, {}, marks=full),
        pytest.param("gpipe", 4, {}, {"context": 2}, {}, marks=full),
        pytest.param("interleaved_1f1b", 4, {}, {"tensor": 2}, {}, marks=full),
        pytest.param("1f1b", 4, {}, {"tensor": 2, "sequence_parallel": True}, {}, marks=full),
        pytest.param("1f1b", 4, EXPERTS, {"expert": 2}, FEWER, marks=full),
        pytest.param("1f1b", 8, {}, {"tensor": 2}, FEWER, marks=full),
        pytest.param("1f1b", 8, {}, {"tensor": 2, "context": 2}, {}, marks=full),
        pytest.param("1f1b", 8, EXPERTS, {"tensor": 2, "expert": 2}, FEWER, marks=full),
        pytest.param(
            "1f1b", 8, {}, {"tensor": 2, "replicas": 2}, {**FEWER, "strategy": "hsdp"}, marks=full
        ),
        pytest.param(
            "1f1b", 4, {}, {"tensor": 2}, {"memory": {"activation_checkpointing": "full"}},
            marks=full,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_stages_go_with_every_other_dimension(
    root, *, schedule, processes, model, dimensions, changes
):
    model = options(**({"heads": 4} | model))
    one = finished(pipeline_job(root, strategy="single", model=model, parallelism={"pipeline": 1}))
    job = pipeline_job(
        root, schedule, processes=processes, model=model, parallelism=dimensions, **changes
    )
    assert_equal(finished(job), one)


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"memory": {"activation_checkpointing": "selective"}},
        {"memory": {"parameter_offload": True}},
    ],
    ids=str,
)
def test_other_options_go_with_a_pipeline(root, changes):
    one = finished(pipeline_job(root, processes=1, parallelism={"pipeline": 1}, **changes))
    two = finished(pipeline_job(root, "interleaved_1f1b", **changes))
    assert largest_difference(weights(one), weights(two)) == 0.0


def stopping(job, stop_call=-1):
    values = {**job.model.options, "stop_call": stop_call}
    task = "stopping_decoder:StoppingDecoderTask"
    model = job.model.model_copy(update={"task": task, "options": values})
    return job.model_copy(update={"model": model})


@pytest.mark.parametrize(
    "schedule", [pytest.param("1f1b", marks=pytest.mark.full), "interleaved_1f1b"]
)
def test_a_pipeline_resumes_bit_for_bit(root, schedule):
    model = options(dropout=0.2)
    changes = {"optimizer": {"name": "adamw", "no_decay": ("head.*",)}}
    straight = finished(stopping(pipeline_job(root, schedule, model=model, **changes)))
    job = pipeline_job(root, schedule, model=model, **changes)
    assert run_ranks(stopping(job, stop_call=5 * 6)) == [75, 75]
    resumed = finished(stopping(job))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    assert resumed.evaluations == straight.evaluations
    assert [(p.step, p.loss, p.gradient_norm) for p in resumed.history] == [
        (p.step, p.loss, p.gradient_norm) for p in straight.history
    ]


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (options(layers=1), {}, "1 blocks cannot fill 2 pipeline stages"),
        (options(tie_embeddings=True), {}, "embedding.tokens.weight and head.weight are one"),
        (options(has_plan=False), {}, "SmallDecoderTask declares no plan for it"),
        (options(experts=2), {}, "cannot be combined with the auxiliary losses"),
        (options(), {"micro_batch_size": 26}, "needs 2 micro-batches or more"),
    ],
    ids=["too few blocks", "tied", "no plan", "experts", "one micro-batch"],
)
def test_what_a_pipeline_cannot_do_is_refused(root, model, changes, message):
    job = pipeline_job(root, model=model, **changes)
    assert run_ranks(job) == [1, 1]
    failures = [json.loads(path.read_text()) for path in job.errors.glob("rank-*.json")]
    assert len(failures) == 2
    assert all(message in failure["message"] for failure in failures)
