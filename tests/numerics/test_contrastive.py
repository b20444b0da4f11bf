"""A loss over the whole global batch has the gradients of a single process, however it is spread."""

import pytest

from captioned_shapes import shapes_job
from perennial.engine.job import RankFailure
from tiny_training import finished, largest_difference, run_ranks, weights


@pytest.fixture(scope="module")
def alone(shapes):
    return finished(shapes_job(shapes, "alone", strategy="single"))


@pytest.mark.parametrize(
    ("strategy", "processes", "micro_batch_size"),
    [("ddp", 2, 16), pytest.param("fsdp", 2, 16, marks=pytest.mark.full), ("fsdp", 3, 11)],
)
def test_ranks_together_compute_the_loss_of_one_process(
    shapes, alone, strategy, processes, micro_batch_size
):
    spread = finished(
        shapes_job(
            shapes, f"{strategy}-{processes}", processes=processes, strategy=strategy,
            micro_batch_size=micro_batch_size,
        )
    )  # fmt: skip
    for one, many in zip(alone.history, spread.history, strict=True):
        assert many.loss == pytest.approx(one.loss, abs=1e-5)
        assert many.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
    assert largest_difference(weights(alone), weights(spread)) <= 1e-5
    for one, many in zip(alone.evaluations, spread.evaluations, strict=True):
        assert many.metrics == pytest.approx(one.metrics, abs=1e-5)


def test_the_engine_gathers_what_the_task_does_not(shapes, alone):
    # 11, 11 and 10 rows, the last with one more that only keeps the process in step.
    spread = finished(
        shapes_job(
            shapes, "gathered", processes=3, strategy="fsdp", micro_batch_size=11,
            task="captioned_shapes:Ungathered",
        )
    )  # fmt: skip
    for one, many in zip(alone.history, spread.history, strict=True):
        assert many.loss == pytest.approx(one.loss, abs=1e-5)
    assert largest_difference(weights(alone), weights(spread)) <= 1e-5


def test_without_gathering_the_gradients_would_differ(shapes, alone):
    # Two passes of half the batch do not see each other's captions: an easier question.
    apart = "captioned_shapes:PassesApart"
    halves = finished(
        shapes_job(shapes, "halves", strategy="single", micro_batch_size=16, task=apart)
    )
    assert halves.history[0].loss < alone.history[0].loss - 0.3
    assert largest_difference(weights(alone), weights(halves)) > 1e-4


def test_several_passes_are_refused_with_the_sizes_that_fit(shapes):
    job = shapes_job(shapes, "passes", strategy="single", micro_batch_size=16)
    assert run_ranks(job) == [1]
    message = RankFailure.from_json((job.errors / "rank-0.json").read_text()).message
    assert "its 2 passes are computed separately" in message
    assert "micro_batch_size >= 32 or training.global_batch_size <= 16" in message


def test_it_learns_which_caption_is_which(shapes):
    trained = finished(
        shapes_job(
            shapes, "trained", strategy="single", steps=60, evaluate_every_steps=60,
            optimizer={"name": "adamw", "learning_rate": 2e-3}, clipping={},
        )
    )  # fmt: skip
    metrics = trained.evaluations[-1].metrics
    assert metrics["recall_at_5"] > 0.6, "5 of 16 by chance would be 0.31"
