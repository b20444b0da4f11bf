import re
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from torch.distributed.pipelining import schedules

from perennial.contracts.errors import PerennialError
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.parallelism.pipeline import (
    check_passes,
    padded,
    passes_in_flight,
    stages_per_process,
)
from perennial.engine.task import LABEL, WEIGHT
from tiny_training import tiny_section


def section(schedule, pipeline, **changes):
    parallelism = {"pipeline": pipeline, "pipeline_schedule": schedule}
    return tiny_section(parallelism=parallelism, **changes)


@pytest.mark.parametrize(
    ("schedule", "pipeline", "micro_batch_size", "data_size", "passes"),
    [
        ("gpipe", 4, 32, 1, 1),
        ("1f1b", 2, 16, 1, 2),
        ("1f1b", 2, 5, 2, 4),
        ("1f1b", 4, 5, 1, 7),
        ("interleaved_1f1b", 2, 8, 1, 4),
        ("interleaved_1f1b", 4, 6, 1, 6),
    ],
)
def test_schedules_take_the_passes_of_a_batch(
    schedule, pipeline, micro_batch_size, data_size, passes
):
    training = section(schedule, pipeline, micro_batch_size=micro_batch_size)
    assert check_passes(training, data_size) == passes


@pytest.mark.parametrize(
    ("schedule", "pipeline", "changes", "data_size", "message"),
    [
        ("1f1b", 4, {}, 1, "needs 4 micro-batches or more.*has 2"),
        ("1f1b", 4, {}, 1, "micro_batch_size <= 8"),
        ("interleaved_1f1b", 2, {"micro_batch_size": 32}, 1, "needs 2 .*has 1"),
        ("1f1b", 4, {"global_batch_size": 6, "micro_batch_size": 1}, 2, "global_batch_size to 8"),
        ("interleaved_1f1b", 2, {"micro_batch_size": 7}, 1, "in 2 equal rounds.*has 5.*are 6"),
    ],
)
def test_too_few_or_uneven_passes_are_refused_with_numbers(
    schedule, pipeline, changes, data_size, message
):
    with pytest.raises(PerennialError) as refused:
        check_passes(section(schedule, pipeline, **changes), data_size)
    assert re.search(message, str(refused.value).replace("\n", " "))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("ddp", "needs strategy = 'fsdp' or 'hsdp', not 'ddp'"),
        ("single", "not 'single'"),
    ],
)
def test_a_strategy_without_stages_is_refused(strategy, message):
    with pytest.raises(ValidationError, match=message):
        tiny_section(strategy=strategy, parallelism={"pipeline": 2})


@pytest.mark.parametrize("weighted", [False, True])
def test_padding_counts_nothing(weighted):
    batch = {"x": torch.arange(6.0).view(3, 2), LABEL: torch.tensor([1, 2, 3])}
    if weighted:
        batch[WEIGHT] = torch.tensor([2.0, 3.0, 4.0])
    longer = padded(batch, 5)
    assert {len(tensor) for tensor in longer.values()} == {5}
    assert longer[WEIGHT].tolist() == ([2, 3, 4, 0, 0] if weighted else [1, 1, 1, 0, 0])
    assert torch.equal(longer["x"][:3], batch["x"])


def test_a_full_micro_batch_stays_as_it_is():
    batch = {"x": torch.zeros(3, 2), LABEL: torch.zeros(3)}
    assert padded(batch, 3) is batch


def library_order(schedule, processes, place, passes):
    """The same from the actions that torch plans for a process."""
    behave = SimpleNamespace(
        _num_stages=processes, pp_group_size=processes, _n_microbatches=passes, n_local_stages=2,
        microbatches_per_round=passes // max(1, passes // processes),
    )  # fmt: skip
    if schedule == "interleaved_1f1b":
        actions = schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(behave, place)
    else:
        kind = schedules.ScheduleGPipe if schedule == "gpipe" else schedules.Schedule1F1B
        actions = kind._get_pipeline_order(behave)[place]
    counts = [0] * (2 if schedule == "interleaved_1f1b" else 1)
    for action in filter(None, actions):
        stage = action.stage_index // processes
        if action.computation_type == schedules._ComputationType.FORWARD:
            counts[stage] += 1
        elif action.computation_type == schedules._ComputationType.FULL_BACKWARD:
            yield list(counts), stage
            counts[stage] -= 1


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b"])
@pytest.mark.parametrize(("processes", "passes"), [(2, 2), (2, 6), (4, 4), (4, 8), (3, 6)])
def test_what_is_in_flight_follows_the_schedules_of_torch(schedule, processes, passes):
    parallelism = Parallelism(pipeline=processes, pipeline_schedule=schedule)
    for place in range(processes):
        expected = list(library_order(schedule, processes, place, passes))
        assert list(passes_in_flight(parallelism, place, passes)) == expected
        assert len(expected) == passes * stages_per_process(parallelism)
