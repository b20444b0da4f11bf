import pytest
import torch
from torch import nn

from perennial.contracts.adapter import Adapter
from perennial.engine.config.training import TrainingSection
from perennial.engine.profiling.flops import flops_per_example, peak_flops
from perennial.engine.task import LABEL


class Linear:
    def build_model(self):
        return Model()

    def losses(self, output, batch):
        return (output.squeeze(-1) - batch[LABEL]).square()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(50, 30), nn.ReLU(), nn.Linear(30, 1))

    def forward(self, x):
        return self.layers(x)


class DependsOnContent(Linear):
    def losses(self, output, batch):
        return super().losses(output, batch) * float(output.mean())


BATCH = {"x": torch.ones(4, 50), LABEL: torch.ones(4)}


def test_products_of_forward_and_backward_are_counted():
    forward = 2 * (50 * 30 + 30 * 1)
    # Backward: once for the weights, once for the inputs, which the first layer's do not need.
    assert flops_per_example(Linear(), BATCH) == 3 * forward - 2 * 50 * 30


def test_gradients_of_frozen_weights_are_not_counted():
    forward = 2 * (50 * 30 + 30 * 1)
    frozen = TrainingSection(frozen=("layers.0.*",))
    # No gradient passes below the second layer, whose weights have one.
    assert flops_per_example(Linear(), BATCH, frozen) == forward + 2 * 30
    rank = 2
    adapted = TrainingSection(adapter=Adapter(targets=("layers.0",), rank=rank))
    matrices = 2 * rank * (50 + 30)
    # Backward: through the second layer, and through both matrices but for the first one's input.
    backward = 2 * 30 + 2 * matrices - 2 * rank * 50
    assert flops_per_example(Linear(), BATCH, adapted) == forward + matrices + backward


def test_batch_normalisation_takes_no_single_row():
    """The reason why the worker counts with two."""

    class Normalized(Linear):
        def build_model(self):
            model = super().build_model()
            model.layers.insert(1, nn.BatchNorm1d(30))
            return model

    one, two = ({name: rows[:count] for name, rows in BATCH.items()} for count in (1, 2))
    assert flops_per_example(Normalized(), one) is None
    assert flops_per_example(Normalized(), two) == flops_per_example(Linear(), BATCH)


def test_a_model_that_needs_content_has_an_unknown_number():
    assert flops_per_example(DependsOnContent(), BATCH) is None


@pytest.mark.parametrize(
    ("device", "precision", "tf32", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", False, 989.0),
        ("NVIDIA H100 PCIe", "bf16", False, 756.0),
        ("NVIDIA A100-SXM4-80GB", "fp32", True, 156.0),
        ("NVIDIA A100-SXM4-80GB", "fp32", False, 19.5),
        ("Tesla V100-SXM2-16GB", "bf16", False, None),
        ("NVIDIA H100 NVL", "bf16", False, 835.0),
        ("NVIDIA A10G", "bf16", False, None),
        ("NVIDIA L40", "bf16", False, None),
        ("NVIDIA RTX A1000 Laptop GPU", "bf16", False, None),
        ("Some Other Device", "bf16", False, None),
    ],
)
def test_the_peak_is_known_for_known_devices_only(device, precision, tf32, teraflops):
    expected = teraflops and teraflops * 1e12
    assert peak_flops(device, precision, allow_tf32=tf32) == expected
