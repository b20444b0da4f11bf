"""Contract of a checkpoint: the settings in which it differs from the current training."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.engine.checkpoints.folder import CheckpointManifest

SHOWN = 12
ABSENT = "(absent)"


def require_same_training(
    where: str, manifest: CheckpointManifest, fingerprint: str, contract: Mapping[str, JsonValue]
) -> None:
    """Check that a checkpoint belongs to this training.

    Args:
        where: Address of the checkpoint.
        manifest: The checkpoint's manifest.
        fingerprint: The training's fingerprint.
        contract: The settings whose digest is the fingerprint.

    Raises:
        PerennialError: it belongs to another training; the error names the settings that differ.
    """
    if manifest.fingerprint == fingerprint:
        return
    found = differences(manifest.contract, contract)
    lines = [f"{key}: {then} in the checkpoint, {now} now" for key, then, now in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    prints = f"its fingerprint is {manifest.fingerprint[:16]}, not {fingerprint[:16]}"
    raise PerennialError(
        f"the checkpoint {where} belongs to another training",
        evidence="\n".join([prints, *lines]),
        action="undo these changes to resume it, or remove its folder to start again; never use "
        "one folder for two trainings",
    )


def differences(
    stored: Mapping[str, JsonValue], current: Mapping[str, JsonValue]
) -> list[tuple[str, str, str]]:
    """Yield dotted key, stored value and current value of each setting that differs."""
    before, now = dict(_leaves(stored)), dict(_leaves(current))
    return [
        (key, before.get(key, ABSENT), now.get(key, ABSENT))
        for key in sorted(before.keys() | now.keys())
        if before.get(key, ABSENT) != now.get(key, ABSENT)
    ]


def _leaves(settings: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", repr(value)
