"""What `detect_drift` is told: the model and the `[triggers]` section of its contract."""

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.contracts.triggers import TriggersSection


class DetectDriftConfig(Section):
    """The part of the training contract that this step receives, as JSON."""

    model: ModelSection
    """Whose champion is the yardstick."""
    triggers: TriggersSection = TriggersSection()
    """What counts as a relevant difference, and how often it must be seen."""
