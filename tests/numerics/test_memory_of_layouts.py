"""The memory plan knows every dimension: what it expects of a process is what the process holds.

Weights, gradients and optimizer state are counted in the shards of each rank; what passes keep is
counted by hooks of autograd, in an update of the real layout.
"""

import json

import pytest

from layout_memory import compare_memory
from small_decoder import SmallDecoderOptions, decoder_job
from tiny_training import finished, run_ranks

TOLERANCE = 0.1
"""Of what passes keep: hooks do not see the outputs that are sent on, nor the sum of the losses."""
full = pytest.mark.full
PIPELINE = {"pipeline": 2}
EXPERTS = {"experts": 4, "balance": 0.0}


def memory_job(root, processes, parallelism, *, model=None, **changes):
    options = SmallDecoderOptions(**({"layers": 5, "heads": 4, "width": 24} | (model or {})))
    settings = {"global_batch_size": 96, "micro_batch_size": 6, "parallelism": parallelism}
    return decoder_job(root, options, processes=processes, **(settings | changes))


def measured(job):
    assert run_ranks(job, compare_memory) == [0] * job.num_processes
    return [json.loads(path.read_text()) for path in sorted(job.root.glob("memory-*.json"))]


@pytest.mark.parametrize(
    ("processes", "parallelism", "model", "changes"),
    [
        pytest.param(4, {"pipeline": 2, "tensor": 2}, {}, {}, marks=full),
        (2, {"tensor": 2}, {}, {}),
        pytest.param(2, {"context": 2}, {}, {}, marks=full),
        pytest.param(4, {"expert": 2}, EXPERTS, {}, marks=full),
        pytest.param(4, {"tensor": 2, "sequence_parallel": True}, {}, {}, marks=full),
        pytest.param(4, {"replicas": 2}, {}, {"strategy": "hsdp"}, marks=full),
        pytest.param(2, {"pipeline": 2, "pipeline_schedule": "gpipe"}, {}, {}, marks=full),
        pytest.param(
            2, {"pipeline": 2, "pipeline_schedule": "interleaved_1f1b"}, {}, {}, marks=full
        ),
        pytest.param(4, {"pipeline": 4}, {}, {}, marks=full),
        pytest.param(4, PIPELINE | {"context": 2}, {}, {}, marks=full),
        pytest.param(4, PIPELINE | {"expert": 2}, EXPERTS, {}, marks=full),
        pytest.param(8, PIPELINE | {"tensor": 2, "context": 2}, {}, {}, marks=full),
        pytest.param(
            8, PIPELINE | {"tensor": 2, "replicas": 2}, {}, {"strategy": "hsdp"}, marks=full
        ),
        pytest.param(
            4, PIPELINE | {"tensor": 2, "sequence_parallel": True}, {}, {}, marks=full
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_expects_what_each_process_holds(root, processes, parallelism, model, changes):
    job = memory_job(root, processes, parallelism, model=model, **changes)
    for rank in measured(job):
        planned, found = rank["planned"], rank["measured"]
        for part in ("weights", "gradients", "optimizer"):
            assert found[part] <= planned[part], part
            if rank["shard"] == 0:  # the others may have a row less of a tensor
                assert found[part] == planned[part], part
        assert found["kept"] == pytest.approx(planned["kept"], rel=TOLERANCE)
        assert planned["weights"] <= rank["worst"]["weights"], "the process that needs most decides"


@pytest.mark.full
def test_auto_chooses_the_layout_of_chosen_dimensions(root):
    dimensions = {"pipeline": 2, "tensor": 2}
    training = finished(memory_job(root, 4, dimensions, strategy="auto", steps=2))
    assert training.memory_plan.chosen.name == "fsdp (ZeRO 2)"
    assert training.strategy == "fsdp"
