"""Processes that share matrices, sequences or experts compute what a single process computes."""

import pytest

from perennial.engine.checkpoints.folder import committed
from small_decoder import SmallDecoderOptions, decoder_job
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    tiny_job,
    weights,
)

DENSE = SmallDecoderOptions(kv_heads=2)
GPT2 = SmallDecoderOptions(variant="gpt2", tie_embeddings=True)
EXPERTS = SmallDecoderOptions(experts=4, experts_per_token=2)
SWITCH = SmallDecoderOptions(variant="gpt2", experts=4)
LEARNING_RATE = 3e-3
# The order of summation differs; Adam turns a gradient's last bits into a share of the learning
# rate where the gradient is almost zero.
TOLERANCE = 1e-6
WEIGHT_TOLERANCE = 0.02 * LEARNING_RATE


def job_of(root, options=DENSE, **changes):
    settings = {
        "steps": 10, "evaluate_every_steps": 5, "log_every_steps": 1, "evaluation_rows": 21,
        "clipping": {"max_norm": 0.3}, "optimizer": {"learning_rate": LEARNING_RATE},
    }  # fmt: skip
    return decoder_job(root, options, **(settings | changes))


@pytest.fixture(scope="module")
def alone(root):
    """Trainings in a single process, by their model, each run once."""
    known = {}

    def run(options):
        if options not in known:
            known[options] = finished(job_of(root, options, strategy="single"))
        return known[options]

    return run


def assert_equal(many, one):
    assert largest_difference(weights(one), weights(many)) <= WEIGHT_TOLERANCE
    for point, expected in zip(many.history, one.history, strict=True):
        assert point.loss == pytest.approx(expected.loss, abs=TOLERANCE)
        assert point.gradient_norm == pytest.approx(expected.gradient_norm, abs=2 * TOLERANCE)
    for point, expected in zip(many.evaluations, one.evaluations, strict=True):
        assert point.metrics == pytest.approx(expected.metrics, abs=TOLERANCE)
    assert many.num_parameters == one.num_parameters
    assert max(point.gradient_norm for point in many.history) > 0.3, "clipping took part"


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


def named(value):
    """A short name of a case's part: what differs from the small decoder's defaults."""
    values = value.model_dump(exclude_defaults=True) if hasattr(value, "model_dump") else value
    return " ".join(f"{key} {part}" for key, part in dict(values).items()) or "plain"


@pytest.mark.parametrize(
    ("options", "parallelism", "changes"),
    [
        full(DENSE, {"tensor": 2}, {}),
        full(GPT2, {"tensor": 2}, {}),
        full(DENSE, {"tensor": 2, "sequence_parallel": True}, {}),
        full(DENSE, {"tensor": 2}, {"processes": 4}),
        (GPT2, {"tensor": 2, "sequence_parallel": True}, {"micro_batch_size": 5}),
        full(DENSE, {"tensor": 2, "sequence_parallel": True}, {"processes": 4}),
        full(DENSE, {"tensor": 2, "replicas": 2}, {"processes": 4, "strategy": "hsdp"}),
        (DENSE, {"context": 2}, {"strategy": "ddp"}),
        full(GPT2, {"context": 2}, {"micro_batch_size": 5}),
        full(DENSE, {"context": 2}, {"processes": 4}),
        full(GPT2, {"context": 2, "tensor": 2}, {"processes": 4}),
        full(GPT2, {"context": 4}, {"processes": 4}),
        full(EXPERTS, {"expert": 2}, {"micro_batch_size": 5}),
        full(SWITCH, {"expert": 2}, {}),
        full(EXPERTS, {"expert": 2}, {"processes": 4}),
        full(EXPERTS, {"expert": 4}, {"processes": 4}),
        full(EXPERTS, {"expert": 2, "replicas": 2}, {"processes": 4, "strategy": "hsdp"}),
        (EXPERTS, {"expert": 2, "context": 2}, {"processes": 4}),
        full(EXPERTS, {"expert": 2, "tensor": 2, "sequence_parallel": True}, {"processes": 4}),
        full(SWITCH, {"context": 2}, {}),
        full(SWITCH, {"tensor": 2}, {}),
        full(DENSE, {"tensor": 2}, {"memory": {"activation_checkpointing": "full"}}),
        full(GPT2, {"context": 2}, {"memory": {"activation_checkpointing": "selective"}}),
        full(EXPERTS, {"expert": 2}, {"memory": {"activation_checkpointing": "full"}}),
    ],
    ids=named,
)
def test_shared_models_equal_a_single_process(root, alone, options, parallelism, changes):
    job = job_of(root, options, parallelism=parallelism, **changes)
    assert_equal(finished(job), alone(options))


@pytest.mark.parametrize(
    ("options", "parallelism"),
    [
        full(GPT2, {"tensor": 2}),
        full(GPT2, {"tensor": 2, "sequence_parallel": True}),
        full(GPT2, {"context": 2}),
        full(EXPERTS, {"expert": 2}),
    ],
    ids=named,
)
def test_compiled_blocks_go_with_shared_models(root, alone, options, parallelism):
    job = job_of(root, options.model_copy(update={"layers": 1}), parallelism=parallelism)
    plain = finished(job)
    again = job_of(
        root, options.model_copy(update={"layers": 1}), parallelism=parallelism, compile=True
    )
    assert_equal(finished(again), plain)


@pytest.mark.parametrize(
    ("options", "processes", "parallelism", "strategy"),
    [
        full(DENSE, 2, {"tensor": 2, "sequence_parallel": True}, "fsdp"),
        full(DENSE, 2, {"context": 2}, "fsdp"),
        full(EXPERTS, 4, {"expert": 2, "tensor": 2}, "fsdp"),
        (DENSE, 2, {"zero_stage": 1}, "ddp"),
    ],
    ids=lambda value: named(value) if isinstance(value, dict | SmallDecoderOptions) else str(value),
)
def test_shared_models_resume_bit_for_bit(root, options, processes, parallelism, strategy):
    changes = {"processes": processes, "parallelism": parallelism, "strategy": strategy}
    options = options.model_copy(update={"dropout": 0.2})
    straight = finished(stopping(job_of(root, options, **changes)))
    job = job_of(root, options, **changes)
    passes = -(-32 // (16 * data_size(processes, parallelism)))
    assert run_ranks(stopping(job, stop_call=6 * passes)) == [75] * processes
    assert 5 < int(committed(job.checkpoints)[-1].name[5:]) < 10
    resumed = finished(stopping(job))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    assert resumed.evaluations == straight.evaluations
    assert [(p.step, p.loss, p.gradient_norm) for p in resumed.history] == [
        (p.step, p.loss, p.gradient_norm) for p in straight.history
    ]


def data_size(processes, parallelism):
    return processes // parallelism.get("tensor", 1) // parallelism.get("context", 1)


def stopping(job, stop_call=-1):
    model = job.model.model_copy(
        update={
            "task": "stopping_decoder:StoppingDecoderTask",
            "options": {**job.model.options, "stop_call": stop_call},
        }
    )
    return job.model_copy(update={"model": model})


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"strategy": "fsdp", "parallelism": {"zero_stage": 2}}),
        full(2, {"strategy": "ddp", "parallelism": {"zero_stage": 1}}),
        (2, {"strategy": "hsdp", "parallelism": {"replicas": 2}}),
        (1, {"strategy": "fsdp"}),
        full(1, {"strategy": "ddp", "parallelism": {"zero_stage": 1}}),
    ],
    ids=str,
)
def test_every_way_to_shard_is_bit_identical_to_replicas(root, processes, changes):
    options = TinyOptions(dropout=0.2)
    replicated = finished(tiny_job(root, processes=processes, options=options, strategy="ddp"))
    sharded = finished(tiny_job(root, processes=processes, options=options, **changes))
    assert largest_difference(weights(replicated), weights(sharded)) == 0.0
    require_same_evaluations(sharded, replicated)
    assert max(point.gradient_norm for point in sharded.history) > 0.5, "clipping took part"


def test_groups_of_shards_equal_a_single_process(root):
    alone = finished(tiny_job(root, strategy="single"))
    grouped = finished(
        tiny_job(
            root, processes=4, strategy="hsdp", parallelism={"replicas": 2}, micro_batch_size=8
        )
    )
    assert largest_difference(weights(alone), weights(grouped)) <= 1e-6


def test_weights_whose_experts_were_divided_train_on_with_other_processes(root, alone):
    """The checkpoint of 4 processes, two of which share the experts, goes on in one."""
    job = job_of(root, EXPERTS, processes=4, parallelism={"expert": 2, "tensor": 2})
    assert run_ranks(stopping(job, stop_call=6)) == [75] * 4
    training = job.training.model_copy(
        update={"strategy": "fsdp", "parallelism": type(job.training.parallelism)()}
    )
    fewer = job.model_copy(update={"training": training, "num_processes": 1})
    assert_equal(finished(stopping(fewer)), alone(EXPERTS))


def test_dropout_draws_the_masks_of_a_single_process_in_a_tensor_group(root, alone):
    """Attention draws for fewer heads there, so it must not; other masks would show in the loss."""
    options = DENSE.model_copy(update={"dropout": 0.3, "attention_dropout": False})
    assert_equal(finished(job_of(root, options, parallelism={"tensor": 2})), alone(options))


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (
            DENSE.model_copy(update={"has_plan": False}),
            {"parallelism": {"tensor": 2}},
            "SmallDecoderTask.parallel_plan",
        ),
        (
            SmallDecoderOptions(kv_heads=1),
            {"parallelism": {"context": 2}},
            "model.options.kv_heads = 1 is not divisible",
        ),
        (DENSE, {"parallelism": {"expert": 2}}, "has no `experts`"),
        (
            SmallDecoderOptions(experts=3),
            {"parallelism": {"expert": 2}},
            "experts of blocks.0.feed_forward.experts (3) is not divisible",
        ),
        (DENSE, {"parallelism": {"tensor": 3}}, "needs a multiple of 3 processes"),
    ],
    ids=["no plan", "few heads", "no experts", "odd experts", "few processes"],
)
def test_what_a_model_cannot_share_is_refused(root, options, changes, message):
    job = job_of(root, options, **changes)
    assert run_ranks(job) == [1, 1]
    failures = "".join(path.read_text() for path in job.errors.glob("rank-*.json"))
    assert message in failures
