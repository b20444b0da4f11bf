"""The moving average is that of the plain formula, on shards too, and leaves training alone."""

from pathlib import Path

import pytest
import torch

from made_trials import made_plan, made_trial
from perennial.clients.object_store import open_store
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model, load_checkpoint_models
from perennial.engine.evaluation.running_statistics import (
    recompute_statistics,
    sampled_rows,
    training_batches,
)
from perennial.engine.evaluation.scoring import score_split
from perennial.studies.judgement import measure_confirmations
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)

EVERY_STEP = {
    "steps": 6,
    "evaluate_every_steps": 1,
    "evaluation_rows": None,
    "checkpoints": {"keep_best": 6},
    "optimizer": {"learning_rate": 0.05},
}
AVERAGING = {"averaging": {"decay": 0.5}}


def job_of(root, **settings):
    """A job whose settings went through JSON, as a contract's do."""
    job = tiny_job(root, **settings)
    return type(job).from_json(job.to_json())


def averaged_weights(result, step):
    (record,) = [record for record in result.checkpoints if record.step == step]
    return load_checkpoint_model(Path(record.uri), result, averaged=True)[1].state_dict()


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("single", TinyOptions()),
        ("ddp", TinyOptions()),
        ("fsdp", TinyOptions(batch_norm=True)),
    ],
    ids=["single", "ddp", "fsdp with batch norm"],
)
def test_it_follows_the_plain_formula(root, strategy, options):
    result = finished(job_of(root, strategy=strategy, options=options, **EVERY_STEP, **AVERAGING))
    trained = {name for name, _ in load_checkpoint_model(Path(result.checkpoints[0].uri), result)[1].named_parameters()}  # fmt: skip
    before = {}
    for step in range(1, 7):
        now, averages = weights(result, step), averaged_weights(result, step)
        decay = min(0.5, step / (9 + step))
        for name, value in now.items():
            if name not in trained:
                assert torch.equal(averages[name], value), "buffers are the model's"
            elif step > 1:
                expected = decay * before[name] + (1.0 - decay) * value
                torch.testing.assert_close(averages[name], expected, rtol=1e-6, atol=1e-7)
        before = averages
        assert largest_difference(now, averages) > 1e-3


def test_sharded_replicated_and_single_average_the_same(root):
    single, replicated, sharded = (
        finished(job_of(root, strategy=strategy, **AVERAGING))
        for strategy in ("single", "ddp", "fsdp")
    )
    averages = [averaged_weights(result, 20) for result in (single, replicated, sharded)]
    assert largest_difference(averages[1], averages[2]) == 0.0
    assert largest_difference(averages[0], averages[2]) <= 1e-6
    require_same_evaluations(sharded, replicated)


def test_it_is_evaluated_with_its_own_weights(root):
    result = finished(job_of(root, **EVERY_STEP, **AVERAGING))
    dataset = Dataset(Snapshot.read(root / "snapshot"))
    for record in result.checkpoints:
        task, model = load_checkpoint_model(Path(record.uri), result, averaged=True)
        full = score_split(task, model, dataset, Split.VALIDATION).metrics(task)
        measured = {name: record.metrics[f"averaged_{name}"] for name in ("loss", "rmse")}
        assert measured == pytest.approx(full, rel=1e-6)
        assert record.metrics["averaged_loss"] != record.metrics["loss"]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("single", marks=pytest.mark.full),
        pytest.param("ddp", marks=pytest.mark.full),
        "fsdp",
    ],
)
def test_training_is_the_same_bit_for_bit_with_and_without_it(root, strategy):
    options = TinyOptions(dropout=0.2, batch_norm=True)
    plain = finished(job_of(root, strategy=strategy, options=options))
    averaged = finished(job_of(root, strategy=strategy, options=options, **AVERAGING))
    assert largest_difference(weights(plain), weights(averaged)) == 0.0
    assert [point.loss for point in plain.history] == [point.loss for point in averaged.history]
    assert not any(name.startswith("averaged") for name in plain.evaluations[-1].metrics)
    for record in plain.checkpoints:
        assert [average for average, *_ in load_checkpoint_models(record.uri, plain)] == [False]
    with pytest.raises(PerennialError, match="no averaged weights"):
        averaged_weights(plain, 20)


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.full), "fsdp"])
def test_a_resumed_average_is_bit_identical(root, strategy):
    straight = finished(job_of(root, strategy=strategy, **AVERAGING))
    job = job_of(root, strategy=strategy, **AVERAGING)
    stopping = TinyOptions(fault="terminate", fault_call=8)
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    resumed = finished(job)
    assert resumed.num_resumes == 1
    assert largest_difference(averaged_weights(straight, 20), averaged_weights(resumed, 20)) == 0.0
    assert resumed.evaluations == straight.evaluations


def test_a_study_scores_them_with_the_running_statistics_that_a_selection_gives_them(
    root, tmp_path
):
    job = job_of(
        root, strategy="single", options=TinyOptions(batch_norm=True), averaging={"decay": 0.9},
        optimizer={"learning_rate": 0.05}, schedule={"shape": "constant"},
        steps=50, evaluate_every_steps=50,
    )  # fmt: skip
    result, dataset = finished(job), Dataset(Snapshot.read(root / "snapshot"))
    (record,) = result.checkpoints
    assert record.metrics["averaged_rmse"] < record.metrics["rmse"]
    task, model = load_checkpoint_model(record.uri, result, averaged=True)
    stored = score_split(task, model, dataset, Split.TEST).metrics(task)["rmse"]
    recompute_statistics(model, training_batches(task, sampled_rows(dataset), torch.device("cpu")))
    expected = score_split(task, model, dataset, Split.TEST).metrics(task)["rmse"]
    assert abs(expected - stored) > 1e-3
    trial = made_trial(0, {}, [0.0])
    fingerprint = trial.trainings[0].fingerprint
    result.write(tmp_path / "store" / "training" / fingerprint[:16])
    plan = made_plan().model_copy(update={"metric": "rmse", "direction": "minimize"})
    store = open_store(str(tmp_path / "store"))
    judged = measure_confirmations(plan, {0: [trial]}, dataset, store, 50)
    assert judged.candidates[0].values.tolist() == [expected]
