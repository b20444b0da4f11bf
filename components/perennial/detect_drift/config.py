"""The sections of the contract that `detect_drift` reads."""

from perennial.contracts.section import Layout
from perennial.contracts.triggers import MonitoringConfig
from perennial.training_jobs.config import ResourcesSection


class DetectDriftConfig(MonitoringConfig):
    """Configuration of the step; `resources` are for a champion that is scored on machines."""

    resources: Layout[ResourcesSection] = ResourcesSection()
