"""Planted bugs of signals: dead, saturated, symmetric, squashed, or in the wrong mode."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.image_text import ImageTextContrastive
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, planted, require_caught
from workshop import results_of

BUGS: list[Bug] = []
PAIRS = {"material": "captions", "rows": 600}


class Rebuilt:
    """The task's own model, changed."""

    def build_model(self):
        return self.changed(super().build_model())


class Mended:
    """The task's own model, changed in place."""

    def build_model(self):
        model = super().build_model()
        self.changed(model)
        return model


class Behind(nn.Module):
    """A model with something behind it."""

    def __init__(self, model, then):
        super().__init__()
        self.model = model
        self.then = then

    def forward(self, **inputs):
        return self.then(self.model(**inputs))


class Ending(Rebuilt):
    """The task's own model with something behind it."""

    def changed(self, model):
        return Behind(model, self.then)


def with_activation(model, make):
    """The tabular model with another activation function."""
    model.hidden = nn.Sequential(
        *[make() if isinstance(layer, nn.ReLU) else layer for layer in model.hidden]
    )


# Activations


@planted(BUGS, "activations", r"hidden\.1 \(relu\): strongly negative", material="binary")
class DeadLayer(Mended, TabularClassification):
    """the first hidden layer's biases start at -10"""

    def changed(self, model):
        nn.init.constant_(model.hidden[0].bias, -10.0)


@planted(BUGS, "activations", r"stem\.2 \(relu\): strongly negative", material="digits")
class DeadStem(Mended, ImageClassification):
    """the first batch norm shifts everything below zero"""

    def changed(self, model):
        nn.init.constant_(model.stem[1].bias, -10.0)


@planted(
    BUGS, "activations", r"strongly negative", material="documents", options={"variant": "gpt2"}
)
class DeadPerceptron(Mended, CausalLanguageModel):
    """the biases in front of a block's GELU start at -10"""

    def changed(self, model):
        nn.init.constant_(model.blocks[1].feed_forward.up.bias, -10.0)


@planted(BUGS, "activations", r"of hidden\.0 are too large", material="binary", outcome="warned")
class HugeLayer(Mended, TabularClassification):
    """one hidden layer starts a hundred times too large"""

    def changed(self, model):
        model.hidden[0].weight.data.mul_(100.0)


@planted(
    BUGS, "activations", r"of blocks\.1\.attention\.value are too large",
    material="documents", outcome="warned",
)  # fmt: skip
class HugeValues(Mended, CausalLanguageModel):
    """the values of one attention start a hundred times too large"""

    def changed(self, model):
        model.blocks[1].attention.value.weight.data.mul_(100.0)


@planted(BUGS, "activations", r"are too large", outcome="warned", **PAIRS)
class HugeTower(Mended, ImageTextContrastive):
    """the text tower's projection starts two hundred times too large"""

    def changed(self, model):
        model.text.projection.weight.data.mul_(200.0)


@planted(BUGS, "activations", r"hidden\.1 \(tanh\): weights.*too large", material="multiclass")
class Saturated(Mended, TabularClassification):
    """tanh units behind weights that are a thousand times too large"""

    def changed(self, model):
        with_activation(model, nn.Tanh)
        model.hidden[0].weight.data.mul_(1000.0)


class Logarithm(nn.Module):
    def forward(self, values):
        return torch.log(values)


@planted(BUGS, "activations", r"in hidden\.1, look for a logarithm", material="regression")
class LogarithmOfNegatives(Mended, TabularRegression):
    """a hidden layer takes the logarithm of what may be negative"""

    def changed(self, model):
        with_activation(model, Logarithm)


@planted(
    BUGS, "activations", r"signal vanishes before hidden", outcome="warned",
    material="regression", options={"hidden": [32] * 8},
)  # fmt: skip
class DeepSigmoids(Mended, TabularRegression):
    """eight layers of sigmoids without normalisation"""

    def changed(self, model):
        with_activation(model, nn.Sigmoid)


@planted(BUGS, "activations", r"signal explodes", material="binary", options={"hidden": [128] * 6})
class UnitNormal(Mended, TabularClassification):
    """six layers whose weights start with variance one"""

    def changed(self, model):
        for layer in model.hidden:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight)


# Symmetry


@planted(BUGS, "symmetric_units", "constant or zero initialisation", material="binary")
class ConstantNetwork(Mended, TabularClassification):
    """every weight starts at 0.01, every bias at zero"""

    def changed(self, model):
        for layer in (*model.hidden, model.output):
            if isinstance(layer, nn.Linear):
                nn.init.constant_(layer.weight, 0.01)
                nn.init.zeros_(layer.bias)


@planted(BUGS, "symmetric_units", "constant or zero", material="documents")
class ConstantDecoder(Mended, CausalLanguageModel):
    """every matrix of a decoder starts at 0.02"""

    def changed(self, model):
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.constant_(parameter, 0.02)


@planted(BUGS, "symmetric_units", "a constant initialisation", material="binary", outcome="warned")
class ConstantLayer(Mended, TabularClassification):
    """one hidden layer starts constant among layers drawn at random"""

    def changed(self, model):
        nn.init.constant_(model.hidden[0].weight, 0.1)


@planted(BUGS, "symmetric_units", "a constant initialisation", material="digits", outcome="warned")
class ConstantFilters(Mended, ImageClassification):
    """the filters of the first convolution start constant"""

    def changed(self, model):
        nn.init.constant_(model.stem[0].weight, 0.1)


@planted(BUGS, "symmetric_units", "a constant or zero initialisation", **PAIRS)
class ConstantTower(Mended, ImageTextContrastive):
    """every matrix of the text tower starts at 0.02"""

    def changed(self, model):
        for parameter in model.text.parameters():
            if parameter.ndim > 1:
                nn.init.constant_(parameter, 0.02)


# The output's form


class Softmax(Ending):
    def then(self, output):
        return output.softmax(-1)


@planted(BUGS, "output_form", "ends in a softmax", material="multiclass")
class SoftmaxOfRows(Softmax, TabularClassification):
    """the model applies the softmax that its cross-entropy applies too"""


@planted(BUGS, "output_form", "ends in a softmax", material="digits")
class SoftmaxOfPictures(Softmax, ImageClassification):
    """a picture classifier applies softmax before cross-entropy"""


@planted(BUGS, "output_form", "ends in a softmax", material="documents")
class SoftmaxOfTokens(Softmax, CausalLanguageModel):
    """a language model returns the tokens' probabilities in place of logits"""


class Sigmoid(Ending):
    def then(self, output):
        return output.sigmoid()


@planted(BUGS, "output_form", "ends in a sigmoid", material="binary")
class SigmoidOfRows(Sigmoid, TabularClassification):
    """the model applies the sigmoid that its loss applies too"""


@planted(BUGS, "output_form", "ends in a sigmoid", material="digits")
class SigmoidOfPictures(Sigmoid, ImageClassification):
    """the model applies a sigmoid to each class before cross-entropy"""


@planted(BUGS, "output_form", "ends in a ReLU", material="binary")
class RectifiedLogit(Ending, TabularClassification):
    """a ReLU stands behind the last layer"""

    def then(self, output):
        return output.relu()


@planted(BUGS, "output_form", "ends in tanh", material="regression", outcome="warned")
class BoundedTarget(Ending, TabularRegression):
    """tanh bounds the answers of a regression whose targets are not bounded"""

    def then(self, output):
        return output.tanh()


@planted(BUGS, "output_form", "multiply them by a learned scale", **PAIRS)
class NoTemperature(Ending, ImageTextContrastive):
    """directions are compared without a temperature"""

    def then(self, output):
        return functional.normalize(output, dim=-1)


@planted(BUGS, "output_form", "too few outputs", material="digits")
class NineDigits(Mended, ImageClassification):
    """nine outputs for ten digits"""

    def changed(self, model):
        model.head = nn.Linear(model.head.in_features, 9)


@planted(BUGS, "output_form", "too few outputs", material="documents")
class SmallVocabulary(Mended, CausalLanguageModel):
    """a hundred outputs for tokens up to 256"""

    def changed(self, model):
        model.head = nn.Linear(model.head.in_features, 100, bias=False)


@planted(BUGS, "output_form", "too many outputs: count", material="digits", outcome="warned")
class SixteenDigits(Mended, ImageClassification):
    """sixteen outputs for ten digits"""

    def changed(self, model):
        model.head = nn.Linear(model.head.in_features, 16)


@planted(BUGS, "output_form", "uses the wrong ones", material="regression", outcome="warned")
class UnusedOutputs(Mended, TabularRegression):
    """three outputs of which the loss takes the first"""

    def changed(self, model):
        model.output = nn.Linear(model.output.in_features, 3)

    def losses(self, output, batch):
        return super().losses(output[:, :1], batch)

    def predict(self, output):
        return super().predict(output[:, :1])


class WithSigmoid(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.last = nn.Sequential(model.output, nn.Sigmoid())

    def forward(self, values):
        return self.last(values)


@planted(BUGS, "output_form", "ends in a sigmoid", material="binary", positive=0.04)
class SigmoidOfRareLabel(Mended, TabularClassification):
    """a sigmoid hides inside the last module, and the label is rare"""

    def changed(self, model):
        model.output = WithSigmoid(model)


# Modes


class Dropping(Ending):
    def then(self, output):
        return functional.dropout(output, 0.1)


@planted(BUGS, "modes", "training=self.training", material="binary")
class DropoutOfRows(Dropping, TabularClassification):
    """dropout stays on in evaluation: functional.dropout without its argument"""


@planted(BUGS, "modes", "training=self.training", material="documents")
class DropoutOfTokens(Dropping, CausalLanguageModel):
    """dropout of a language model stays on in evaluation"""


@planted(BUGS, "modes", "training=self.training", **PAIRS)
class DropoutOfPairs(Dropping, ImageTextContrastive):
    """dropout of two towers stays on in evaluation"""


class Dropped(nn.Module):
    def __init__(self, model, share):
        super().__init__()
        self.model, self.dropout = model, nn.Dropout(share)

    def forward(self, **inputs):
        return self.dropout(self.model(**inputs))


@planted(BUGS, "modes", "one minus the share", material="binary")
class KeepProbability(Rebuilt, TabularClassification):
    """dropout is given the share that is to be kept"""

    def changed(self, model):
        return Dropped(model, 0.9)


class StuckInEvaluation(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs)

    def train(self, mode=True):
        return super().train(False)


@planted(BUGS, "modes", r"train\(\) is overridden, or forward calls eval", material="binary")
class NeverTrains(Rebuilt, TabularClassification):
    """train() is overridden and leaves the model in evaluation mode"""

    def changed(self, model):
        return StuckInEvaluation(model)


class EvaluatesItself(StuckInEvaluation):
    def forward(self, **inputs):
        return self.eval().model(**inputs)

    def train(self, mode=True):
        return nn.Module.train(self, mode)


@planted(BUGS, "modes", "forward calls eval", material="digits")
class EvaluatesInForward(Rebuilt, ImageClassification):
    """forward calls eval(), so batch norm never learns its statistics"""

    def changed(self, model):
        return EvaluatesItself(model)


class StuckInTraining(StuckInEvaluation):
    def train(self, mode=True):
        return nn.Module.train(self, True)


@planted(BUGS, "modes", "eval.. is overridden", material="digits")
class NeverEvaluates(Rebuilt, ImageClassification):
    """eval() does not reach batch norm, which learns from evaluation data"""

    def changed(self, model):
        return StuckInTraining(model)


class OwnNormalisation(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, values):
        self.mean.lerp_(values.mean(0).detach(), 0.1)
        return values - self.mean


class AlwaysTraining(nn.BatchNorm2d):
    def forward(self, values):
        return functional.batch_norm(
            values, self.running_mean, self.running_var, self.weight, self.bias, training=True
        )


@planted(BUGS, "modes", "statistics are learned from evaluation data", material="digits")
class StatisticsOfEvaluation(Mended, ImageClassification):
    """batch norm updates its running statistics in evaluation too"""

    def changed(self, model):
        model.stem[1] = AlwaysTraining(8)


@planted(BUGS, "modes", "draws random numbers|learned from evaluation data", material="binary")
class MeanOfEvaluation(Mended, TabularClassification):
    """a normalisation of one's own moves its mean in evaluation"""

    def changed(self, model):
        model.hidden.insert(0, OwnNormalisation(model.hidden[0].in_features))


def batch_norms(model, **settings):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, value in settings.items():
                setattr(module, name, value)


@planted(BUGS, "modes", "track_running_stats=False", material="digits")
class NoStatistics(Mended, ImageClassification):
    """batch norm keeps no running statistics"""

    def changed(self, model):
        batch_norms(model, track_running_stats=False, running_mean=None, running_var=None)


@planted(BUGS, "modes", "that training never reaches", material="digits")
class StillStatistics(Mended, ImageClassification):
    """batch norm's momentum is 0"""

    def changed(self, model):
        batch_norms(model, momentum=0.0)


@planted(BUGS, "modes", "that training never reaches", material="digits")
class SlowStatistics(Mended, ImageClassification):
    """batch norm's momentum is so small that the statistics stay near their initial values"""

    def changed(self, model):
        batch_norms(model, momentum=0.001)


class BrightlySlow(Mended, ImageClassification):
    """The training is long enough for a small momentum where activations vary by about 1."""

    weight = 3.0

    def changed(self, model):
        batch_norms(model, momentum=0.01)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.mul_(self.weight)


@planted(BUGS, "modes", "that training never reaches", material="digits", training={"steps": 150})
class FaintlySlow(BrightlySlow):
    """less than half of the initial variance remains, and outweighs that of faint activations"""

    weight = 0.1


def test_a_small_momentum_passes_where_the_training_reaches_the_statistics(workshop):
    for task_type, steps in ((BrightlySlow, 150), (FaintlySlow, 2000)):
        subject = workshop.subject(task_type, "digits", training={"steps": steps})
        result = results_of(subject, "modes")["modes"]
        assert result.outcome == "passed", result


@planted(BUGS, "modes", "acts on the model's answer", material="digits")
class DroppedAnswers(ImageClassification):
    """dropout acts on the model's answer"""

    def build_model(self):
        return Behind(super().build_model(), nn.Dropout(0.3))


@planted(BUGS, "modes", "acts on the model's answer", material="digits", outcome="warned")
class FewDroppedScores(ImageClassification):
    """dropout takes few of the scores of classes, as in PyTorch's tutorial on names"""

    def build_model(self):
        return Behind(super().build_model(), nn.Dropout(0.1))


@planted(BUGS, "modes", "acts on the model's answer", material="regression")
class FewDroppedNumbers(TabularRegression):
    """dropout takes a few of the numbers that are predicted"""

    def build_model(self):
        return Behind(super().build_model(), nn.Dropout(0.1))


@planted(
    BUGS, "modes", "one minus the momentum of other libraries", material="digits", outcome="warned"
)
class HastyStatistics(Mended, ImageClassification):
    """batch norm's momentum is 0.99, as in another library"""

    def changed(self, model):
        batch_norms(model, momentum=0.99)


class FrozenStem(nn.Sequential):
    def train(self, mode=True):
        return super().train(False)


@planted(BUGS, "modes", "frozen batch norm of a pretrained", material="digits", outcome="warned")
class FrozenBatchNorm(Mended, ImageClassification):
    """the first batch norm stays in evaluation mode"""

    def changed(self, model):
        model.stem = FrozenStem(*model.stem)


@planted(BUGS, "modes", "forward does not call", material="binary", outcome="warned")
class ForgottenDropout(Mended, TabularClassification):
    """dropout is made and never called"""

    def changed(self, model):
        model.hidden = nn.Sequential(
            *[layer for layer in model.hidden if not isinstance(layer, nn.Dropout)]
        )
        model.dropout = nn.Dropout(0.5)


class SharperInEvaluation(StuckInEvaluation):
    def forward(self, **inputs):
        output = self.model(**inputs)
        return output if self.training else 3 * output

    train = nn.Module.train


@planted(BUGS, "modes", "depends on self.training", material="documents", outcome="warned")
class TwoModels(Rebuilt, CausalLanguageModel):
    """forward scales logits in evaluation only"""

    def changed(self, model):
        return SharperInEvaluation(model)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)
