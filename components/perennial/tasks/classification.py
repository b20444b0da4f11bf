"""Softmax classification: what tasks with one logit per class have in common."""

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from perennial.engine.task import LABEL, Batch, ParameterKeys, Task
from perennial.tasks.columns.class_labels import ClassLabels


class SoftmaxClassification(Task):
    """Base: one of two or more classes, cross-entropy, a last layer that starts at their shares."""

    kind: Literal["multiclass"] = "multiclass"
    fitted: ClassLabels
    label_smoothing: float = 0.0
    """Share of each label spread over all classes, in the training loss only."""

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

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return one name per class."""
        return self.fitted.probability_names
