"""What `detect_drift` is told: the model and the `[triggers]` section of its contract."""

from components.contracts.data import ModelSection
from components.contracts.section import Section
from components.contracts.triggers import TriggersSection


class DetectDriftConfig(Section):
    """The part of the training contract that this step receives, as JSON."""

    model: ModelSection
    """Whose champion is the yardstick."""
    triggers: TriggersSection = TriggersSection()
    """What counts as a relevant difference, and how often it must be seen."""
