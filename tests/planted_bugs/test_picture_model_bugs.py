"""Planted bugs in the models of picture classifiers: each caught by the check meant for it."""

import numpy as np
import pytest
import torch
from torch import nn

from perennial.tasks.image_classification import ImageClassification
from planted import Bug, planted, require_caught
from workshop import results_of

BUGS: list[Bug] = []
VIT = {"architecture": "vit", "resnet": {}, "vit": {"depth": 2, "width": 32}}


class Rebuilt(ImageClassification):
    def build_model(self):
        return self.changed(super().build_model())


def wrapped(model, forward):
    """The model behind another forward."""

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, image):
            return forward(self.model, image)

    return Wrapped()


@planted(BUGS, "initial_loss", "number of classes", material="digits")
class ThousandClasses(Rebuilt):
    """the head keeps the thousand classes of ImageNet"""

    def changed(self, model):
        model.head = nn.Linear(model.head.in_features, 1000)
        return model


@planted(BUGS, "output_form", "too many outputs", material="digits", outcome="warned")
class TwelveClasses(Rebuilt):
    """the head has two classes too many"""

    def changed(self, model):
        model.head = nn.Linear(model.head.in_features, 12)
        return model


@planted(BUGS, "parameter_gradients", "pretrained weights", material="digits")
class FrozenBackbone(Rebuilt):
    """the backbone is frozen"""

    def changed(self, model):
        model.stem.requires_grad_(False)
        model.blocks.requires_grad_(False)
        return model


@planted(BUGS, "parameter_gradients", "nn.ModuleList", material="digits")
class UnregisteredBlocks(Rebuilt):
    """the blocks are kept in a Python list"""

    def changed(self, model):
        blocks = list(model.blocks)
        del model.blocks
        model.blocks = blocks
        return model


@planted(BUGS, "parameter_gradients", "detach", material="digits")
class DetachedStem(Rebuilt):
    """the stem's output is detached"""

    def changed(self, model):
        model.stem.register_forward_hook(lambda _module, _inputs, output: output.detach())
        return model


@planted(BUGS, "parameter_gradients", "dead", material="digits")
class DeadRelu(Rebuilt):
    """the stem's ReLU never opens"""

    def changed(self, model):
        nn.init.constant_(model.stem[1].bias, -100)
        return model


@planted(BUGS, "initial_loss", "initial weights are too large", material="digits")
class HugeHead(Rebuilt):
    """the head starts at a thousand times its size"""

    def changed(self, model):
        model.head.weight.data.mul_(1000)
        return model


@planted(BUGS, "parameter_gradients", "zero weights", material="digits")
class AllZero(Rebuilt):
    """all weights start at zero"""

    def changed(self, model):
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model


@planted(BUGS, "example_independence", "mixes the batch", material="digits")
class BatchNormOfTheBatch(Rebuilt):
    """batch norm uses the batch's statistics in evaluation too"""

    def changed(self, model):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = module.running_var = None
        return model


@planted(BUGS, "example_independence", "view or reshape", material="digits")
class ReshapedOverBatch(Rebuilt):
    """features are turned with reshape in place of permute"""

    def changed(self, model):
        def turned(_module, _inputs, hidden):
            return hidden.permute(1, 0, 2, 3).reshape(hidden.shape)

        model.stem.register_forward_hook(turned)
        return model


@planted(BUGS, "input_use", "position", material="digits", options=VIT)
class NoPositions(Rebuilt):
    """the vision transformer adds no positions to its patches"""

    def changed(self, model):
        del model.positions
        model.register_buffer("positions", torch.zeros(16, 32))
        return model


class PartsInOrder(NoPositions):
    """Parts of pictures are sorted by their brightness: what is left to read is in them alone."""

    def encode(self, rows):
        batch = super().encode(rows)
        side = batch["image"].shape[-1] // 4
        tiles = nn.functional.unfold(batch["image"], side, stride=side)
        order = tiles.sum(dim=1, keepdim=True).argsort(dim=2).expand_as(tiles)
        size = batch["image"].shape[2:]
        image = nn.functional.fold(tiles.gather(2, order), size, side, stride=side)
        return {**batch, "image": image}


def test_a_bag_of_parts_is_only_doubted(workshop):
    subject = workshop.subject(PartsInOrder, "digits", options=VIT)
    result = results_of(subject, "input_use")["input_use"]
    assert result.outcome == "warned", (result.measured, result.hint)


@planted(BUGS, "input_use", "ignores", material="digits")
class PictureTimesZero(Rebuilt):
    """the picture is multiplied by a mask that is zero"""

    def changed(self, model):
        return wrapped(model, lambda inner, image: inner(image * torch.zeros_like(image)))


@planted(BUGS, "initial_bias", "bias", material="digits", outcome="warned", rare=True)
class NoPrior(Rebuilt):
    """the head's bias ignores that most pictures are of one class"""

    def changed(self, model):
        nn.init.zeros_(model.head.bias)
        return model


@planted(BUGS, "output_form", "softmax", material="digits")
class SoftmaxInModel(Rebuilt):
    """the model ends with a softmax"""

    def changed(self, model):
        return wrapped(model, lambda inner, image: inner(image).softmax(dim=-1))


@planted(BUGS, "modes", "evaluation mode", material="digits")
class DropoutWhenServed(Rebuilt):
    """dropout stays on in evaluation"""

    def changed(self, model):
        return wrapped(
            model, lambda inner, image: inner(nn.functional.dropout(image, 0.5, training=True))
        )


@planted(BUGS, "reproducibility", "global generator", material="digits")
class UnseededHead(Rebuilt):
    """the head is drawn from a generator without a seed"""

    def changed(self, model):
        noise = np.random.default_rng().normal(0, 0.01, model.head.weight.shape)
        model.head.weight.data.copy_(torch.from_numpy(noise))
        return model


MISSES = (
    "the head reads another token than the class token: attention makes all of them alike, and "
    "the model learns as well",
)
"""Bugs that no check can tell from a healthy task, with the reason."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)
