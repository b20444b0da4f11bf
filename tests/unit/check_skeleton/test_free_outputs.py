"""The best outputs that a loss allows, beside outputs that it does not read."""

import torch

from perennial.check_skeleton.free_outputs import fill_unread_outputs


def test_outputs_that_the_loss_does_not_read_are_the_models():
    """Beyond the end of a sound each output is as good, and decoded with the others."""
    used = torch.tensor([[True, True, False], [True, False, False]])
    ideal, output = torch.full((2, 3), 1.0), torch.full((2, 3), 9.0)

    def losses(outputs, batch):
        return ((outputs - batch["label"]).square() * used).sum(dim=1)

    filled = fill_unread_outputs(losses, ideal, output, {"label": torch.ones(2, 3)})
    assert filled.tolist() == torch.where(used, ideal, output).tolist()


def test_outputs_with_a_flat_loss_at_the_start_are_read_nevertheless():
    def losses(outputs, batch):
        return (1 - batch["label"] * outputs).clamp(0, 1).sum(dim=1)

    ideal, output = torch.tensor([[1.0, 1.0]]), torch.tensor([[-9.0, 0.5]])
    filled = fill_unread_outputs(losses, ideal, output, {"label": torch.ones(1, 2)})
    assert filled.tolist() == ideal.tolist()
