"""The `[registry]` section: description and tags of the registered model."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.contracts.version_decisions import DESCRIPTION_CHARACTERS

TagKey = Annotated[str, StringConstraints(min_length=1, max_length=250, pattern=r"^[\w. /-]+$")]
TagValue = Annotated[str, StringConstraints(max_length=1000)]


class AdoptedStudy(Section):
    """Where values of this contract come from; written by `perennial study adopt`."""

    study_digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """Digest of the study."""
    trial: Annotated[int, Field(ge=0)]
    """The trial whose values were adopted."""
    decision: Literal["adopt", "reject", "inconclusive"]
    """The study's verdict; other than `adopt` if a person overrode it."""
    evidence: Annotated[str, StringConstraints(max_length=1000)]
    """The improvement on test rows, with its interval."""
    options: tuple[str, ...]
    """The options that were changed."""


class RegistrySection(Section):
    """Metadata of the registered model, in addition to Perennial's own records."""

    description: Annotated[str, StringConstraints(max_length=DESCRIPTION_CHARACTERS)] = ""
    """Purpose of the model and who is responsible for it; heads every model card. Set it before
    anybody else uses the model; if empty, the description in MLflow is kept."""
    tags: dict[TagKey, TagValue] = Field(default_factory=dict)
    """Tags of the registered model and of each version, such as `team` or `cost-centre`. Add those
    that your organisation searches by; the prefixes `perennial.` and `mlflow.` are reserved."""

    study: AdoptedStudy | None = None
    """The study that values of this contract were adopted from; each version's lineage names it.
    `perennial study adopt` writes it. Remove it when you change those values by hand."""

    @field_validator("tags")
    @classmethod
    def _leaves_reserved_names(cls, tags: dict[str, str]) -> dict[str, str]:
        taken = sorted(key for key in tags if key.startswith(("perennial.", "mlflow.")))
        if taken:
            raise ValueError(f"tags {taken} are reserved; choose names without that prefix")
        return tags


class RegisterModelConfig(Section):
    """Configuration of the step."""

    model: ModelSection
    registry: RegistrySection = RegistrySection()
