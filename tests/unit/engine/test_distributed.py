from gathering_ranks import agree_to_stop
from tiny_training import run_ranks, tiny_job


def test_ranks_agree_to_stop_without_a_device(root):
    """What training on GPUs relies on, where the loop reads nothing else in most steps."""
    assert run_ranks(tiny_job(root), agree_to_stop) == [0, 0]
