"""Contract sections that each later step gets: its own and the model's."""

import json
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import JsonValue

from perennial.contracts.data import DataSection, ModelSection, SplitSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json

# A step gets what it reads and no more: another gate leaves the training's fingerprint as it is.
SECTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "expectations": (),
        "skeleton": ("training",),
        "training": ("resources",),
        "selection": (),
        "gate": (),
        "registry": ("gate",),
        "triggers": (),
    }
)
"""Output of the step → the sections that travel with it, beside `model`."""


class SnapshotDataConfig(Section):
    """Sections that `snapshot_data` itself reads."""

    model: ModelSection
    data: DataSection
    split: SplitSection


def parse_contract(text: str) -> dict[str, JsonValue]:
    """The contract's sections by name.

    Raises:
        PerennialError: the text is not a JSON object or lacks a section.
    """
    try:
        contract = json.loads(text)
    except ValueError as error:
        raise PerennialError(
            "the pipeline's parameter `contract` is not valid JSON",
            evidence=str(error),
            action="start the pipeline with `perennial run`, or pass the contract's JSON text",
        ) from error
    companions = {name for names in SECTIONS.values() for name in names}
    needed = {"model", "data", "split", *SECTIONS, *companions}
    missing = sorted(needed - set(contract)) if isinstance(contract, dict) else sorted(needed)
    if missing:
        raise PerennialError(
            f"the pipeline's parameter `contract` lacks the sections {', '.join(missing)}",
            action="start the pipeline with `perennial run`, which writes out every default",
        )
    return dict(contract)


def own_config(contract: Mapping[str, JsonValue]) -> SnapshotDataConfig:
    """The sections that this step reads itself."""
    own = {name: contract[name] for name in ("model", "data", "split")}
    return SnapshotDataConfig.from_json(canonical_json(own))


def cut_sections(contract: Mapping[str, JsonValue]) -> dict[str, str]:
    """Each later step's `config`: its section, the model's and the companions as canonical JSON."""
    return {
        name: canonical_json({key: contract[key] for key in ("model", name, *companions)})
        for name, companions in SECTIONS.items()
    }
