"""Saving memory changes where a number lies and when it is computed, never its value."""

import pytest

from tiny_training import TinyOptions, finished, largest_difference, tiny_job, weights

OPTIONS = TinyOptions(dropout=0.3, batch_norm=True)


def trained(root, strategy, **changes):
    return finished(
        tiny_job(root, strategy=strategy, options=OPTIONS, micro_batch_size=8, **changes)
    )


@pytest.fixture(scope="module")
def plain(root):
    """One training per strategy without any option, made when first asked for."""
    found = {}

    def of(strategy):
        if strategy not in found:
            found[strategy] = trained(root, strategy)
        return found[strategy]

    return of


@pytest.mark.parametrize(
    ("strategy", "memory"),
    [
        pytest.param("single", {"activation_checkpointing": "full"}, marks=pytest.mark.full),
        ("single", {"activation_checkpointing": "selective"}),
        ("ddp", {"activation_checkpointing": "full"}),
        pytest.param("ddp", {"activation_checkpointing": "selective"}, marks=pytest.mark.full),
        pytest.param("fsdp", {"activation_checkpointing": "full"}, marks=pytest.mark.full),
        ("fsdp", {"activation_checkpointing": "selective"}),
        pytest.param("fsdp", {"parameter_offload": True}, marks=pytest.mark.full),
        ("fsdp", {"parameter_offload": True, "activation_checkpointing": "full"}),
    ],
    ids=str,
)
def test_saving_memory_changes_no_bit(root, plain, strategy, memory):
    """With dropout, whose masks must come again, and batch statistics, which must move once."""
    expected, saving = plain(strategy), trained(root, strategy, memory=memory)
    assert largest_difference(weights(expected), weights(saving)) == 0.0
    assert saving.evaluations == expected.evaluations


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_compiled_blocks_compute_the_same(root, strategy, checkpointing):
    """The compiler fuses and reorders float32 sums; without dropout, whose masks it draws again."""
    changes = {"strategy": strategy, "micro_batch_size": 16}
    eager = finished(tiny_job(root, **changes))
    compiled = finished(
        tiny_job(
            root,
            compile=True,
            memory={"activation_checkpointing": checkpointing},
            **changes,
        )
    )
    assert largest_difference(weights(eager), weights(compiled)) <= 1e-5
    assert compiled.evaluations[-1].metrics == pytest.approx(
        eager.evaluations[-1].metrics, rel=1e-4
    )
