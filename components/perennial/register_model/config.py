"""The `[registry]` section: what is written on the registered model."""

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from perennial.contracts.alias_decisions import DESCRIPTION_CHARACTERS
from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.gate.config import GateSection

TagKey = Annotated[str, StringConstraints(min_length=1, max_length=250, pattern=r"^[\w. /-]+$")]
TagValue = Annotated[str, StringConstraints(max_length=1000)]


class RegistrySection(Section):
    """The registered model, beside what Perennial records by itself."""

    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_CHARACTERS)] = ""
    """What the model is for and who answers for it; heads every model card. Fill it in before
    anybody else uses the model; left empty, what people wrote in MLflow stays."""
    tags: dict[TagKey, TagValue] = Field(default_factory=dict)
    """Set on the registered model and on each version, such as `team` or `cost-centre`. Add what
    your organisation searches by; names under `perennial.` and `mlflow.` are taken."""

    @field_validator("tags")
    @classmethod
    def _leaves_reserved_names(cls, tags: dict[str, str]) -> dict[str, str]:
        taken = sorted(key for key in tags if key.startswith(("perennial.", "mlflow.")))
        if taken:
            raise ValueError(f"tags {taken} are reserved; choose names without that prefix")
        return tags


class RegisterModelConfig(Section):
    """What the step receives."""

    model: ModelSection
    registry: RegistrySection
    gate: GateSection
    """By which the challenger is judged again when the champion moved meanwhile."""
