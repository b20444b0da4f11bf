"""Clicks with a smooth network: the tabular task, SiLU in place of ReLU."""

from torch import nn

from perennial.tasks.tabular import TabularClassification


class SmoothClicks(TabularClassification):
    """Differs from `TabularClassification` in its activations alone."""

    def build_model(self) -> nn.Module:
        """The tabular network, every ReLU replaced."""
        model = super().build_model()
        for parent in list(model.modules()):
            for name, layer in parent.named_children():
                if isinstance(layer, nn.ReLU):
                    setattr(parent, name, nn.SiLU())
        return model
