"""The loss is the mean over the whole global batch, however unevenly that is divided."""

import pytest

from tiny_training import finished, largest_difference, tiny_job, weights

UNEVEN = 33


@pytest.fixture(scope="module")
def whole(root):
    return finished(
        tiny_job(
            root, strategy="single", global_batch_size=UNEVEN, micro_batch_size=UNEVEN,
            log_every_steps=1,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("processes", "strategy", "micro_batch_size"),
    [
        (1, "single", 5),
        (2, "ddp", 7),
        (3, "fsdp", 4),
        pytest.param(2, "fsdp", 16, marks=pytest.mark.full),
        pytest.param(4, "fsdp", 2, marks=pytest.mark.full),
    ],
)
def test_uneven_shares_and_passes_give_the_mean_of_the_whole_batch(
    root, whole, processes, strategy, micro_batch_size
):
    divided = finished(
        tiny_job(
            root, strategy=strategy, processes=processes, global_batch_size=UNEVEN,
            micro_batch_size=micro_batch_size, log_every_steps=1,
        )
    )  # fmt: skip
    assert largest_difference(weights(whole), weights(divided)) <= 1e-6
    for one, many in zip(whole.history, divided.history, strict=True):
        assert many.loss == pytest.approx(one.loss, rel=1e-5)
        assert many.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-5)


def test_a_rank_may_have_fewer_rows_than_passes(root):
    settings = {"global_batch_size": 5, "log_every_steps": 1}
    whole = finished(tiny_job(root, strategy="single", micro_batch_size=5, **settings))
    divided = finished(tiny_job(root, processes=3, micro_batch_size=1, **settings))
    assert largest_difference(weights(whole), weights(divided)) <= 1e-6


@pytest.mark.parametrize("mode", ["resident", pytest.param("streaming", marks=pytest.mark.full)])
def test_a_batch_may_have_fewer_rows_than_there_are_ranks(root, mode):
    def trained(**changes):
        job = tiny_job(root, steps=8, global_batch_size=2, loading={"mode": mode}, **changes)
        model = job.model.model_copy(update={"task": "tiny_training:SparseTask"})
        return weights(finished(job.model_copy(update={"model": model})))

    assert largest_difference(trained(strategy="single"), trained(processes=3)) <= 1e-6


@pytest.mark.parametrize("prefetch_batches", [pytest.param(1, marks=pytest.mark.full), 5])
def test_prefetching_changes_nothing(root, prefetch_batches):
    plain = finished(tiny_job(root, loading={"prefetch_batches": 0}))
    ahead = finished(tiny_job(root, loading={"prefetch_batches": prefetch_batches}))
    assert largest_difference(weights(plain), weights(ahead)) == 0.0


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
@pytest.mark.parametrize("mode", ["resident", "streaming"])
def test_a_batch_whose_rows_all_weigh_nothing_changes_nothing(root, strategy, mode):
    """As texts without a labelled word; plain descent, which has no momentum to go on by."""
    sgd = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "nesterov": False}
    job = tiny_job(
        root, strategy=strategy, steps=12, global_batch_size=4, micro_batch_size=1, optimizer=sgd,
        loading={"mode": mode}, evaluate_every_steps=1, log_every_steps=1,
        checkpoints={"keep_best": 12},
    )  # fmt: skip
    model = job.model.model_copy(update={"task": "tiny_training:SparseTask"})
    result = finished(job.model_copy(update={"model": model}))
    before = weights(result, 1)
    lengths = []
    for point in result.history[1:]:
        now = weights(result, point.step)
        assert (largest_difference(before, now) == 0.0) == (point.loss == 0.0)
        before = now
        lengths.append(point.gradient_norm)
    assert 0.0 in lengths
    assert max(lengths) > 0.0
    log = (job.logs / "rank-0.log").read_text()
    assert log.count("its rows all have weight 0") == [p.loss for p in result.history].count(0.0)
