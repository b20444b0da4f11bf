"""Softmax classification: what tasks with one logit per class have in common."""

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from perennial.engine.task import LABEL, Batch, ParameterKeys, Task
from perennial.tasks.columns.class_labels import ClassLabels
from perennial.tasks.columns.tokenization import IGNORED

SCORED_LOGITS = 2**25
"""Logits of one forward pass of an evaluation of tokens: 128 MiB in float32."""


class ClassTask(Task):
    """Base: one logit for each of two or more classes; the last layer starts at their shares."""

    fitted: ClassLabels
    label_smoothing: float = 0.0
    """Share of each label spread over all classes, in the training loss only."""

    def expected_initial_loss(self) -> float:
        """Return the label's entropy: the last layer starts at the class prior."""
        return self.fitted.entropy

    def class_keys(self, layer: str) -> Mapping[str, ParameterKeys]:
        """Return the keys of the last layer's parameters: the classes."""
        classes = self.fitted.classes
        return {
            f"{layer}.weight": ParameterKeys("outputs", (classes, None)),
            f"{layer}.bias": ParameterKeys("output bias", (classes,)),
        }


class SoftmaxClassification(ClassTask):
    """Base: one class for each row, cross-entropy."""

    kind: Literal["multiclass"] = "multiclass"

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each example, shape [B]."""
        return cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss against smoothed labels; without smoothing, `losses`."""
        if not self.label_smoothing:
            return self.losses(output, batch)
        return cross_entropy(
            output, batch[LABEL], reduction="none", label_smoothing=self.label_smoothing
        )

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return one name per class."""
        return self.fitted.probability_names


def mean_token_losses(output: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return each row's mean cross-entropy over the tokens with a label; 0 without one.

    Args:
        output: Logits, shape [B, T, K].
        labels: Codes, shape [B, T]; `IGNORED` where a token has none.
        smoothing: Share of each label spread over all classes.
    """
    losses = cross_entropy(
        output.flatten(0, 1),
        labels.flatten().long(),
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )
    # Where processes share a sequence, one may have a part in which no label counts.
    counts = (labels != IGNORED).sum(dim=1).clamp_min(1)
    return losses.view(labels.shape).sum(dim=1) / counts
