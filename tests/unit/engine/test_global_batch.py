from gathering_ranks import gather_beside_a_shared_gradient
from tiny_training import run_ranks, tiny_job


def test_gathering_leaves_the_gradients_of_others_alone(root):
    assert run_ranks(tiny_job(root), gather_beside_a_shared_gradient) == [0, 0]
