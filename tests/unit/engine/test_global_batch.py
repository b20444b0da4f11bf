from gathering_ranks import compare_a_batch_of_all_ranks, gather_beside_a_shared_gradient
from tiny_training import run_ranks, tiny_job


def test_gathering_leaves_the_gradients_of_others_alone(root):
    assert run_ranks(tiny_job(root), gather_beside_a_shared_gradient) == [0, 0]


def test_losses_that_compare_rows_get_those_of_all_processes(root):
    assert run_ranks(tiny_job(root), compare_a_batch_of_all_ranks) == [0, 0]
