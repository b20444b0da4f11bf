"""Signals of unusual but sound models: what looks like a dead, squashed or idle layer and is none."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from perennial.check_skeleton.checks.loss.output_form import check_output_form
from perennial.check_skeleton.checks.model.activations import (
    check_activations,
    check_symmetric_units,
)
from perennial.check_skeleton.checks.model.modes import check_modes
from perennial.engine.task import LABEL
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.image_text import ImageTextContrastive
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from perennial.tasks.transformers_models import TransformersCausalLM
from workshop import Workshop, results_of

SIGNALS = ("activations", "symmetric_units", "modes", "output_form")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


def outcomes(subject):
    results = {name: results_of(subject, name)[name] for name in SIGNALS}
    return {
        name: (result.outcome, result.measured, result.hint)
        for name, result in results.items()
        if result.outcome not in ("passed", "skipped")
    }


class Behind(nn.Module):
    def __init__(self, model, then):
        super().__init__()
        self.model = model
        self.then = then

    def forward(self, **inputs):
        return self.then(self.model(**inputs))


class LogSoftmax(TabularClassification):
    """Applies a logarithm of softmax that the loss repeats to no effect."""

    def build_model(self):
        return Behind(super().build_model(), lambda output: output.log_softmax(-1))


class LogSoftmaxAndItsLoss(LogSoftmax):
    def losses(self, output, batch):
        return functional.nll_loss(output, batch[LABEL], reduction="none")


class SoftmaxAndItsLoss(TabularClassification):
    def build_model(self):
        return Behind(super().build_model(), lambda output: output.softmax(-1))

    def losses(self, output, batch):
        return functional.nll_loss(output.clamp_min(1e-12).log(), batch[LABEL], reduction="none")

    def predict(self, output):
        return output


class SigmoidAndItsLoss(TabularClassification):
    def build_model(self):
        return Behind(super().build_model(), lambda output: output.sigmoid())

    def losses(self, output, batch):
        target = batch[LABEL].float() * 0.9 + 0.05
        return functional.binary_cross_entropy(output.squeeze(-1), target, reduction="none")

    def predict(self, output):
        return output.squeeze(-1)


class PositiveAmounts(TabularRegression):
    """Amounts that are 0 or more, and a model that gives no others."""

    def build_model(self):
        return Behind(super().build_model(), functional.softplus)

    def losses(self, output, batch):
        return (output.squeeze(-1) - batch[LABEL]).square()

    def predict(self, output):
        return output.squeeze(-1)


class Likelihood(PositiveAmounts):
    """Takes the logarithm of the answer: free outputs would not be finite."""

    def losses(self, output, batch):
        mean = output.squeeze(-1) + 1e-6
        return mean - batch[LABEL] * mean.log()


class Ordinal(TabularClassification):
    """Three thresholds for four classes."""

    def _initial_output(self):
        return torch.tensor([1.0, 0.0, -1.0])

    def losses(self, output, batch):
        above = (batch[LABEL][:, None] > torch.arange(3)).float()
        return functional.binary_cross_entropy_with_logits(
            output, above, reduction="none"
        ).sum(dim=1)  # fmt: skip

    def predict(self, output):
        above = output.sigmoid().cummin(dim=1).values
        whole = torch.cat([torch.ones(len(output), 1), above, torch.zeros(len(output), 1)], dim=1)
        return whole[:, :-1] - whole[:, 1:]


class ZeroLastLayer(TabularClassification):
    def build_model(self):
        model = super().build_model()
        nn.init.zeros_(model.output.weight)
        return model


class ManyEmptyBranches(TabularClassification):
    """Residual branches that start at zero, one hidden unit among them, and scales of one."""

    def build_model(self):
        model = super().build_model()
        layers = [Branch(6) for _ in range(2)]
        model.hidden = nn.Sequential(model.hidden[0], *layers)
        model.output = nn.Linear(6, 1)
        return model


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, width))
        self.inner = nn.Linear(width, 1)
        self.outer = nn.Linear(1, width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, values):
        return values * self.scale + self.outer(functional.relu(self.inner(values)))


class RareProbability(TabularClassification):
    """A sigmoid near its end, because the label is rare."""

    def build_model(self):
        model = super().build_model()
        nn.init.constant_(model.output.bias, -9.0)
        return Behind(model, torch.sigmoid)


class FewDeadUnits(TabularClassification):
    """Two dead units in front of many that live, as a squeeze may have."""

    def build_model(self):
        model = super().build_model()
        nn.init.constant_(model.hidden[0].bias, -10.0)
        return model


HEALTHY = {
    "mlp": (TabularClassification, "binary", {}),
    "bins": (TabularClassification, "binary", {"options": {"numeric_bins": 8}}),
    "linear": (TabularClassification, "multiclass", {"options": {"hidden": []}}),
    "deep": (TabularRegression, "regression", {"options": {"hidden": [128] * 4}}),
    "rare label": (TabularClassification, "binary", {"positive": 0.02}),
    "log softmax": (LogSoftmax, "multiclass", {}),
    "log softmax and its loss": (LogSoftmaxAndItsLoss, "multiclass", {}),
    "softmax and its loss": (SoftmaxAndItsLoss, "multiclass", {}),
    "sigmoid and its smoothed loss": (SigmoidAndItsLoss, "binary", {}),
    "amounts": (PositiveAmounts, "zero-inflated", {}),
    "likelihood": (Likelihood, "zero-inflated", {}),
    "ordinal": (Ordinal, "multiclass", {}),
    "zero last layer": (ZeroLastLayer, "multiclass", {}),
    "empty branches": (ManyEmptyBranches, "binary", {"options": {"hidden": [6]}}),
    "resnet": (ImageClassification, "digits", {"options": {"dropout": 0.3}}),
    "vit": (
        ImageClassification, "digits",
        {"options": {"resnet": {}, "architecture": "vit", "vit": {"pooling": "token", "depth": 2}}},
    ),
    "llama": (CausalLanguageModel, "documents", {}),
    "gpt2": (
        CausalLanguageModel, "documents",
        {"options": {"variant": "gpt2", "dropout": 0.1, "tie_embeddings": True}},
    ),
    "experts": (CausalLanguageModel, "documents", {"options": {"experts": 4}}),
    "two towers": (ImageTextContrastive, "captions", {"rows": 600}),
}  # fmt: skip
FAMILIES = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 24},
    "bloom": {"n_layer": 2, "n_head": 2, "hidden_size": 32},
    "opt": {
        "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "word_embed_proj_dim": 32, "max_position_embeddings": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_pass(name, workshop):
    task_type, material, how = HEALTHY[name]
    assert outcomes(workshop.subject(task_type, material, **how)) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_models_pass(family, workshop):
    pytest.importorskip("transformers")

    class Family(TransformersCausalLM):
        class Options(TransformersCausalLM.Options):
            width: int = 0
            layers: int = 0
            heads: int = 0

    options = {"model_type": family, "config": FAMILIES[family]}
    assert outcomes(workshop.subject(Family, "documents", options=options)) == {}


def test_a_sigmoid_near_its_end_at_the_output_is_a_rare_label(workshop):
    result = check_activations(workshop.subject(RareProbability, "binary"))
    assert result.outcome == "passed", result.measured


@pytest.mark.parametrize(("width", "outcome"), [(4, "warned"), (32, "failed")])
def test_few_units_may_be_dead_by_chance(width, outcome, workshop):
    subject = workshop.subject(FewDeadUnits, "binary", options={"hidden": [width]})
    result = check_activations(subject)
    assert (result.outcome, f"100% of {width}" in result.measured) == (outcome, True)


@pytest.mark.parametrize("kind", [functional.relu, torch.relu, functional.relu_, nn.ReLU()])
def test_an_activation_is_seen_wherever_it_is_called(kind, workshop):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 32)
            self.last = nn.Linear(32, 10)
            nn.init.constant_(self.layer.bias, -10.0)
            self.kind = kind

        def forward(self, image):
            return self.last(self.kind(self.layer(image[:, 0, 0])))

    class Task(ImageClassification):
        def build_model(self):
            return Calls()

    result = check_activations(workshop.subject(Task, "digits"))
    place = "kind" if isinstance(kind, nn.Module) else "the model"
    assert (result.outcome, result.measured.startswith(f"{place} (relu)")) == ("failed", True)


class Layers(nn.Module):
    """Layers in a row, of which each may read what all before it returned."""

    def __init__(self, *layers, adds=False):
        super().__init__()
        self.layers, self.adds = nn.ModuleList(layers), adds

    def forward(self, image):
        found = image[:, 0].flatten(1)
        for layer in self.layers:
            after = layer(found)
            found = found + after if self.adds and found.shape == after.shape else after
        return found


def straight(*layers, **how):
    """A task of digits whose model consists of these layers."""

    class Task(ImageClassification):
        def build_model(self):
            return Layers(*(each() for each in layers), **how)

    return Task


def linear(inputs, units):
    return lambda: nn.Linear(inputs, units)


@pytest.mark.parametrize(
    "between", [(), (nn.Dropout,), (lambda: nn.BatchNorm1d(128),)], ids=["none", "dropout", "norm"]
)
def test_hidden_units_without_an_activation_fail(between, workshop):
    task = straight(linear(64, 128), *between, linear(128, 10))
    result = check_activations(workshop.subject(task, "digits"))
    assert (result.outcome, "no activation between them" in result.measured) == ("failed", True)


@pytest.mark.parametrize(
    "layers",
    [
        (linear(64, 128), nn.ReLU, linear(128, 10)),
        (linear(64, 128), lambda: nn.LayerNorm(128), linear(128, 10)),
        (linear(64, 8), linear(8, 10)),
        (linear(64, 64), linear(64, 10)),
    ],
    ids=["relu", "layer norm", "low rank", "repeated projection"],
)
def test_linear_layers_in_a_row_that_make_sense_pass(layers, workshop):
    result = check_activations(workshop.subject(straight(*layers), "digits"))
    assert result.outcome != "failed", (result.measured, result.hint)


def test_a_projection_that_a_shortcut_reads_too_passes(workshop):
    branch = (linear(128, 128), nn.ReLU, linear(128, 10))
    result = check_activations(
        workshop.subject(straight(linear(64, 128), *branch, adds=True), "digits")
    )
    assert result.outcome != "failed", (result.measured, result.hint)


def test_symmetric_layers_that_never_move_pass(workshop):
    class Zeros(TabularClassification):
        def build_model(self):
            model = super().build_model()
            for layer in (*model.hidden, model.output):
                if isinstance(layer, nn.Linear):
                    nn.init.zeros_(layer.weight)
                    nn.init.zeros_(layer.bias)
            return model

    subject = workshop.subject(Zeros, "binary")
    assert check_symmetric_units(subject).outcome == "passed"
    assert results_of(subject, "parameter_gradients")["parameter_gradients"].outcome == "failed"


def test_a_class_that_the_model_knows_to_be_rare_may_be_missing_from_the_sample(workshop):
    class ElevenClasses(ImageClassification):
        bias = -12.0

        def build_model(self):
            model = super().build_model()
            prior = torch.cat([model.head.bias.detach(), torch.tensor([self.bias])])
            model.head = nn.Linear(model.head.in_features, 11)
            with torch.no_grad():
                model.head.weight.mul_(0.1)
                model.head.bias.copy_(prior)
            return model

    assert check_output_form(workshop.subject(ElevenClasses, "digits")).outcome == "passed"
    ElevenClasses.bias = 0.0
    assert check_output_form(workshop.subject(ElevenClasses, "digits")).outcome == "warned"


def test_the_model_and_its_statistics_are_as_before(workshop):
    subject = workshop.subject(ImageClassification, "digits")
    state = torch.get_rng_state()
    first, again = check_modes(subject), check_modes(subject)
    assert first == again
    assert torch.equal(torch.get_rng_state(), state)
