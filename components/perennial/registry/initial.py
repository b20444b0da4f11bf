"""Initial weights: resolve `[model.initial]` once per run, and pin files in the store."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

import polars as pl
import yaml

from perennial.clients.object_store import ObjectStore, open_store, sha256_of_file
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.environment import Environment, data_cache
from perennial.contracts.errors import BadDataError, DamagedModelError, PerennialError
from perennial.contracts.initial import (
    ChampionWeights,
    HuggingFaceWeights,
    SafetensorsWeights,
    Scratch,
)
from perennial.contracts.initial_model import FOLDER, FormerTask, InitialModel, Origin
from perennial.contracts.lineage import LINEAGE_FILE, Lineage
from perennial.contracts.snapshot import Snapshot, as_utc
from perennial.contracts.training import ENSEMBLE, Challenger
from perennial.data.dataset import Dataset, count_seen_rows
from perennial.engine.adapters import write_merged
from perennial.engine.export import WEIGHTS_FILE, read_tensors
from perennial.engine.task import load_task
from perennial.tasks.ensemble import Ensemble

if TYPE_CHECKING:
    from perennial.registry.model_registry import ModelRegistry
    from perennial.registry.version_files import ModelVersion

INDEX, CARD = "model.safetensors.index.json", "README.md"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
DIGEST_LENGTH = 64
PART = "champion", ENSEMBLE
"""What is continued by a member, not as a whole: its source and its task."""
logger = logging.getLogger(__name__)


def resolve_initial(model: ModelSection, environment: Environment) -> InitialModel | None:
    """Return the weights to start with, pinned by digest; None for random ones.

    Their files are copied to the object store, where all processes, later attempts and later
    trainings find them under their digests.

    Raises:
        DamagedModelError: the champion's files, or a pinned file, are not what they were.
        PerennialError: there are no such weights, they are pickled, or they lack a licence.
    """
    asked = model.initial
    if isinstance(asked, Scratch):
        return None
    store = open_store(environment.store_uri)
    if isinstance(asked, ChampionWeights):
        found = _pin_champion(model.name, environment, store)
        if found is None:
            logger.info("model.initial: there is no champion yet, so training starts at random")
            return None
        unused = (*found.unused, *asked.unused)
        found = found.model_copy(update={"new": asked.new, "unused": unused})
    else:
        origin = (
            _pin_file(asked, store)
            if isinstance(asked, SafetensorsWeights)
            else _pin_snapshot(asked, store)
        )
        found = InitialModel(
            origin=origin.model_copy(update={"trained_until": asked.trained_until}),
            store_uri=store.uri,
            new=asked.new,
            unused=asked.unused,
            rename=asked.rename,
        )
    if asked.require_license and not found.origin.license:
        raise PerennialError(
            "the initial weights have no recorded licence, which model.initial.require_license "
            "demands",
            evidence=found.origin.describe(),
            action='set license = "…"  # in [model.initial], an SPDX identifier',
        )
    logger.info("initial=%s", found.origin.describe())
    return found


def _pin_champion(name: str, environment: Environment, store: ObjectStore) -> InitialModel | None:
    # Here, because MLflow takes seconds to import.
    from perennial.registry.champion_records import CHAMPION  # noqa: PLC0415
    from perennial.registry.model_registry import open_registry  # noqa: PLC0415

    registry = open_registry(environment)
    version = registry.version_by_alias(name, CHAMPION)
    if version is None:
        return None
    return pin_version(
        registry,
        version,
        store,
        source="champion",
        action='set source = "scratch"  # in [model.initial], for one training',
    )


def pin_version(
    registry: "ModelRegistry",
    version: "ModelVersion",
    store: ObjectStore,
    *,
    source: Literal["champion", "version"],
    action: str,
) -> InitialModel:
    """Pin a registered version: its weights by digest in the store, its task, what it has seen.

    As `champion`, of an ensemble only the first member: what was trained when it was registered.

    The version's files are verified. `source` is what the contract asked for, `action` what people
    can do where the version cannot be used.

    Raises:
        DamagedModelError: the version's files are not what they were.
        PerennialError: its record is incomplete, or its weights are shards.
    """
    needed = {Challenger.file_name, Snapshot.file_name, LINEAGE_FILE}
    kept = registry.read_files(version, needed)
    if needed - set(kept):
        raise PerennialError(
            f"{version.name} version {version.version} cannot be started from or learned from: its "
            "record is incomplete",
            evidence=f"{version.source} lacks {', '.join(sorted(needed - set(kept)))}",
            action=action,
        )
    challenger = Challenger.from_json(kept[Challenger.file_name])
    lineage = Lineage.from_json(kept[LINEAGE_FILE])
    before = lineage.initial
    former = [*lineage.teachers, *lineage.members, *([before] if before else [])]
    seen = tuple(chain.from_iterable(each.seen for each in former))
    digest = challenger.weights_sha256
    # An adapter is stored merged with its base, under the digest of the sum.
    if challenger.base is not None or not _is_stored(store, digest):
        digest = _store_weights(registry, version, store, challenger, action=action)
    pinned = InitialModel(
        origin=Origin(
            source=source,
            uri=version.source,
            model=version.name if source == "version" else "",
            version=version.version,
            license=before.license if before else "",
            files={WEIGHTS_FILE: digest},
            trained_until=max(filter(None, (each.trained_until for each in former)), default=None),
            seen=with_rule(seen, Snapshot.from_json(kept[Snapshot.file_name])),
        ),
        store_uri=store.uri,
        former=FormerTask(
            task=challenger.task,
            options=challenger.options,
            columns=challenger.columns,
            state=challenger.task_state,
        ),
    )
    return _first_member(pinned) if (source, challenger.task) == PART else pinned


def _store_weights(
    registry: "ModelRegistry",
    version: "ModelVersion",
    store: ObjectStore,
    challenger: Challenger,
    *,
    action: str,
) -> str:
    """Store a version's weights, those of an adapter merged with its base; return their digest."""
    digest = challenger.weights_sha256
    with TemporaryDirectory() as scratch:
        folder = registry.download(version, Path(scratch))
        if challenger.base is not None:
            folder, digest = write_merged(folder, folder / "merged")
        if not (folder / WEIGHTS_FILE).is_file():
            raise PerennialError(
                f"{version.name} version {version.version} cannot be started from or learned from",
                evidence=f"{version.source} has no {WEIGHTS_FILE}; above 5 GB there are shards",
                action=action,
            )
        _store(store, folder / WEIGHTS_FILE, digest)
    return digest


def _first_member(pinned: InitialModel) -> InitialModel:
    """Return the member of an ensemble that was trained when it was registered."""
    whole = pinned.former
    if whole is None:
        raise RuntimeError("pin_version() records the task of each version")
    ensemble = load_task(whole.task, whole.options, whole.columns)
    ensemble.load_state(whole.state)
    if not isinstance(ensemble, Ensemble):
        raise RuntimeError("a version with the task of an ensemble is one")
    first = ensemble.members[0]
    former = FormerTask(
        task=first.task,
        options=first.options,
        columns=first.columns,
        state=ensemble.tasks[0].state(),
    )
    parts = {"rename": {"members.0.": ""}, "unused": ("members.*",), "former": former}
    return pinned.model_copy(update=parts)


def with_rule(seen: tuple[Snapshot, ...], snapshot: Snapshot) -> tuple[Snapshot, ...]:
    """Return the snapshots without files that tell which rows were trained on, with one more.

    Of one split rule the newest suffices: no row changes its split.
    """
    kept = {snapshot.data.label, *snapshot.split_columns}
    # Without windows: a champion of a champion was trained on the rows of earlier windows, too.
    whole = snapshot.split.model_copy(update={"train_days": None, "test_days": None})
    own = snapshot.model_copy(
        update={
            "split": whole,
            "files": (),
            "columns": {n: kind for n, kind in snapshot.columns.items() if n in kept},
            "rows": 0,
            "split_rows": {},
        }
    )
    newest: list[Snapshot] = []
    by_time = sorted(
        (*seen, own), key=lambda one: as_utc(one.time_max).timestamp() if one.time_max else 0.0
    )
    for each in by_time:
        newest = [one for one in newest if one.data != each.data or not one.splits_as(each)]
        newest.append(each)
    return tuple(newest)


@dataclass(frozen=True)
class SeenTestRows:
    """What is known of test rows that pinned models were trained or selected on.

    Attributes:
        count: How many they certainly were, of the model that has seen most.
        lines: For people; empty if it is known that there are none.
    """

    count: int = 0
    lines: tuple[str, ...] = ()


def find_seen_test_rows(
    initial: InitialModel | None,
    dataset: Dataset,
    teachers: Sequence[Origin] = (),
    members: Sequence[Origin] = (),
) -> SeenTestRows:
    """Return which test rows initial weights, teachers and members of an ensemble have seen."""
    named = [] if initial is None else [("the initial weights", "were", initial.origin)]
    named += [
        (f"the teacher {each.model} version {each.version}", "was", each) for each in teachers
    ]
    named += [(f"the member version {each.version}", "was", each) for each in members]
    found = [_find_seen(who, was, origin, dataset) for who, was, origin in named]
    return SeenTestRows(
        max((each.count for each in found), default=0),
        tuple(chain.from_iterable(each.lines for each in found)),
    )


def _find_seen(who: str, was: str, origin: Origin, dataset: Dataset) -> SeenTestRows:
    rows = dataset.snapshot.split_rows[Split.TEST]
    until, time = origin.trained_until, dataset.snapshot.data.time
    if until is None and not origin.seen:
        return SeenTestRows(
            0,
            (
                f"it is not known what {who} {was} trained on, so test rows may have been seen "
                "(model.initial.trained_until)",
            ),
        )
    counts = [count_seen_rows(dataset, then) for then in origin.seen]
    lines = [
        f"{who} {was} trained or selected on {count:,} of {rows:,} test rows, under another split "
        "rule"
        for count in counts
        if count
    ]
    if None in counts:
        lines.append(
            f"{who} may have seen test rows: the split rule of that training cannot be applied to "
            "this data"
        )
    if until is not None:
        # Rows without a time may all be old.
        old = (pl.col(time).dt.date() <= until).sum() if time else pl.len()
        if number := dataset.scan(Split.TEST).select(old).collect().item():
            lines.append(
                f"{who} {was} trained until {until}, and {number:,} of {rows:,} test rows are not "
                "newer: they may have been seen"
            )
    return SeenTestRows(max((count or 0 for count in counts), default=0), tuple(lines))


def _pin_file(asked: SafetensorsWeights, store: ObjectStore) -> Origin:
    _refuse_pickle(asked.uri)
    place, _, name = asked.uri.rpartition("/")
    path = _fetched(open_store(place), name)
    found = sha256_of_file(path)
    if found != asked.sha256:
        raise DamagedModelError(
            f"model.initial.uri = {asked.uri!r} is not the pinned file",
            evidence=f"its SHA-256 is {found}, model.initial.sha256 is {asked.sha256}",
            action="find out who replaced it; name the digest of the file that you mean",
        )
    read_tensors(path)  # whose format is refused here, before anything is trained
    _store(store, path, found)
    return Origin(source="safetensors", uri=asked.uri, license=asked.license, files={name: found})


def _pin_snapshot(asked: HuggingFaceWeights, store: ObjectStore) -> Origin:
    base = asked.uri.rstrip("/")
    # The hub's cache keeps revisions in `snapshots`; a copy may have them beside each other.
    places = [f"{base}/snapshots/{asked.revision}", f"{base}/{asked.revision}"]
    folder = next((each for each in map(open_store, places) if _names(each)), None)
    if folder is None:
        raise PerennialError(
            f"model.initial: there is no snapshot {asked.revision} in {asked.uri}",
            evidence=f"looked in {' and '.join(places)}",
            action=f"huggingface-cli download REPOSITORY --revision {asked.revision} --cache-dir …",
        )
    names = _names(folder)
    if INDEX in names:
        index = json.loads(_fetched(folder, INDEX).read_bytes())
        files = sorted(set(index["weight_map"].values()))
    else:
        files = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    if not files:
        for name in names:
            _refuse_pickle(f"{folder.uri}/{name}")
        raise _absent(f"{folder.uri}/model.safetensors")
    digests = {}
    for name in files:
        path = _fetched(folder, name)
        digests[name] = sha256_of_file(path)
        _refuse_altered(path, digests[name])
        _store(store, path, digests[name])
    return Origin(
        source="huggingface",
        uri=asked.uri,
        revision=asked.revision,
        license=_license(asked, folder, names),
        files=digests,
    )


def _license(asked: HuggingFaceWeights, folder: ObjectStore, names: list[str]) -> str:
    """Return the licence of the contract, or else of the model card's front matter."""
    card = _fetched(folder, CARD).read_text() if CARD in names else ""
    parts = card.split("---", 2)
    matter = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    named = str(matter.get("license") or "") if isinstance(matter, Mapping) else ""
    if asked.license and named and asked.license != named:
        raise PerennialError(
            f"model.initial.license = {asked.license!r} contradicts the model card",
            evidence=f"{folder.uri}/{CARD} names {named!r}",
            action="find out which holds; leave model.initial.license out to take the card's",
        )
    return asked.license or named


def _names(store: ObjectStore) -> list[str]:
    return [item.key for item in store.list()]


def _fetched(store: ObjectStore, name: str) -> Path:
    try:
        return store.fetch(name, data_cache())
    except BadDataError as error:
        raise _absent(f"{store.uri}/{name}") from error


def _absent(uri: str) -> PerennialError:
    is_local = "://" not in uri
    hint = "; steps on a cluster read object stores only" if is_local else ""
    return PerennialError(
        f"model.initial: there is no {uri}",
        action=f"correct model.initial.uri{hint}",
    )


def _refuse_pickle(uri: str) -> None:
    if not uri.endswith(".safetensors") and uri.endswith(PICKLES):
        raise PerennialError(
            f"model.initial: {uri} is pickled, and loading a pickle can run any code",
            action="convert it once, where you trust its origin: "
            "`safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW_FILE)`",
        )


def _refuse_altered(path: Path, sha256: str) -> None:
    """Compare a file of the hub's cache with its name there, which is its SHA-256."""
    named = path.resolve().name
    if path.is_symlink() and len(named) == DIGEST_LENGTH and named != sha256:
        raise DamagedModelError(
            f"{path} is not the file that was downloaded",
            evidence=f"SHA-256 by its name {named}, found {sha256}",
            action="delete the snapshot and download it again",
        )


def _is_stored(store: ObjectStore, sha256: str) -> bool:
    try:
        store.find(_key(sha256))
    except BadDataError:
        return False
    return True


def _store(store: ObjectStore, file: Path, sha256: str) -> None:
    if not _is_stored(store, sha256):
        store.upload(_key(sha256), file)


def _key(sha256: str) -> str:
    return f"{FOLDER}/{sha256}.safetensors"
