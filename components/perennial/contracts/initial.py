"""The `[model.initial]` and `[model.ensemble]` options: what a model owes to earlier versions."""

from datetime import date
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from perennial.contracts.section import Advanced, Section, tag_of

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Address = Annotated[str, StringConstraints(min_length=1)]


class Scratch(Section):
    """Random weights, drawn under `training.seed`."""

    source: Literal["scratch"] = "scratch"


class StoredWeights(Section):
    """Options of all weights that come from elsewhere."""

    new: tuple[str, ...] = ()
    """Patterns of parameters that start at random although the rest is loaded, such as
    `"output.*"` for the head of another label. Any other parameter that the stored weights lack is
    an error."""
    unused: tuple[str, ...] = ()
    """Patterns of stored weights that the model does not have, such as the head of another label.
    Any other one is an error."""
    require_license: bool = False
    """Refuse weights without a recorded licence. Turn it on where models are audited."""


class ChampionWeights(StoredWeights):
    """Warm start: the weights of the current champion; random ones while there is none.

    Categories and classes keep their rows by name, whatever their place; new ones start at random.
    """

    source: Literal["champion"]


class PretrainedWeights(StoredWeights):
    """Options of weights that were trained elsewhere."""

    license: str = ""
    """Licence of the weights, as an SPDX identifier such as `apache-2.0`. It is recorded with every
    version. Empty takes the one of the model card, if there is a card."""
    trained_until: date | None = None
    """Newest day of the data that the weights were trained on. Name it if it is known: the gate
    then warns when test rows are not newer."""
    rename: Advanced[dict[str, str]] = Field(default_factory=dict)
    """Beginning of a stored name → the one that the model has in its place, such as
    `{"" = "model."}` for a model that the task wraps. The longest beginning counts."""


class SafetensorsWeights(PretrainedWeights):
    """One file in the format of `safetensors`, from a folder or an object store."""

    source: Literal["safetensors"]
    uri: Address
    """The file, or its address `s3://bucket/key.safetensors`; a relative path is taken from the
    contract's folder."""
    sha256: Sha256
    """SHA-256 of the file, as `sha256sum` prints it."""


class HuggingFaceWeights(PretrainedWeights):
    """A snapshot of a Hugging Face repository; nothing is downloaded from the hub.

    `huggingface-cli download REPOSITORY --revision HASH` makes one; copied to an object store, it
    serves a cluster.
    """

    source: Literal["huggingface"]
    uri: Address
    """Folder or address that holds the snapshot as `snapshots/REVISION` (the layout of the cache)
    or as `REVISION`; a relative path is taken from the contract's folder."""
    revision: Revision
    """The commit of the snapshot, 40 hexadecimal digits: a branch or tag may move."""


Initial: TypeAlias = Annotated[
    Annotated[Scratch, Tag("scratch")]
    | Annotated[ChampionWeights, Tag("champion")]
    | Annotated[SafetensorsWeights, Tag("safetensors")]
    | Annotated[HuggingFaceWeights, Tag("huggingface")],
    Discriminator(tag_of("source", "scratch")),
]


class EnsembleSection(Section):
    """Options of ensembles: the selected checkpoint and the last champions, averaged.

    On all validation rows the mean of their predictions is compared with the selected checkpoint
    alone. The better one is what the gate judges on test rows.
    """

    champions: Annotated[int, Field(ge=1, le=16)] = 2
    """Number of the last champions beside the selected checkpoint. Serving takes memory and time
    of each; the report names both."""
    gain_standard_errors: Annotated[float, Field(ge=0.0, le=10.0)] = 2.0
    """By how many standard errors of the paired difference the ensemble must be better. 2 is
    beyond chance at about 95%; raise it where serving is expensive."""
