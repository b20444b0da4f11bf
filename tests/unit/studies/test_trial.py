"""Trial: what a failed training says about its hyperparameters, and what trials share."""

import pytest

from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import TrainingFailedError
from perennial.engine.job import RankFailure
from perennial.studies.trial import SharedData, classify, encoding_key, read_curves
from tiny_training import tiny_job


@pytest.mark.parametrize(
    ("fields", "problem", "state"),
    [
        ({"type": "TrainingFailedError"}, "rank 0 failed: not finite at step 7", "infeasible"),
        ({"type": "ValueError"}, "rank 0 failed: 8 heads do not divide 12", "infeasible"),
        ({"type": "OutOfMemoryError"}, "rank 0 failed: CUDA out of memory", "infeasible"),
        ({"type": "RuntimeError"}, "DefaultCPUAllocator: not enough memory", "infeasible"),
        (None, "the pod was OOMKilled", "infeasible"),
        (None, "a process was killed; no attempt is left after 3 restarts", "failed"),
        ({"type": "OSError"}, "rank 0 failed: no space left on device", "failed"),
        ({"type": "RuntimeError", "is_consequence": True}, "lost connection", "failed"),
        ({"type": "HangError", "is_hang": True}, "the training hangs", "failed"),
        ({"type": "OutageError", "is_outage": True}, "a service did not answer", "failed"),
    ],
)
def test_only_what_a_trial_changed_makes_it_infeasible(tmp_path, fields, problem, state):
    job = tiny_job(tmp_path)
    if fields is not None:
        failure = RankFailure(
            rank=0, step=7, message=problem, traceback="", time=0.0,
            **{"is_consequence": False, **fields},
        )  # fmt: skip
        write_atomically(job.errors / "rank-0.json", failure.to_json().encode())
    found, reason = classify(job, TrainingFailedError(problem))
    assert found == state
    assert problem in reason


def test_trials_share_what_they_encode_alike(tmp_path):
    contract = {"snapshot": "s", "model": {"task": "a:B", "options": {}}, "code": "c"}
    job = tiny_job(tmp_path)
    one, other, encoded_otherwise = (
        job.model_copy(update={"contract": {**contract, **more}})
        for more in (
            {"training": {"seed": 1}},
            {"training": {"seed": 2}},
            {"model": {"task": "a:B", "options": {"bins": 3}}},
        )
    )
    assert encoding_key(one) == encoding_key(other) != encoding_key(encoded_otherwise)


def test_an_encoding_that_no_trial_uses_is_removed_but_the_first(tmp_path):
    shared = SharedData(tmp_path)
    with shared.used("first"):
        shared.folder("first").mkdir()
    with shared.used("other"):
        shared.folder("other").mkdir()
        with shared.used("other"):
            pass
        assert shared.folder("other").exists()
    assert not shared.folder("other").exists()
    assert shared.folder("first").exists()


def test_curves_are_read_while_they_grow(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert read_curves(file) == ((), ())
    point = '{"kind":"evaluation","step":8,"train_loss":null,"metrics":{"loss":%s}}'
    file.write_text(f"{point % 0.5}\n{point % 0.25}\n{point % 0.1}"[:-9])
    (evaluation,), _ = read_curves(file)
    assert evaluation.metrics == {"loss": 0.25}
