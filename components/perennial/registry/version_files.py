"""Version files: record the digests of a model version's files, and verify them at each use.

A version's files are in the object store. Their SHA-256 digests are recorded twice at registration:
all of them in the object store beside the promotion record, and one digest of that record in a tag
of the MLflow version. So damage in one place is always detected by comparison with the others.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlparse

from perennial.clients.object_store import LocalObjectStore, ObjectStore, file_digests
from perennial.contracts.artifact import Artifact
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.lineage import CONTRACT_FILE
from perennial.contracts.section import Section
from perennial.contracts.training import Challenger

AnArtifact = TypeVar("AnArtifact", bound=Artifact)
FILES_TAG = "perennial.files"
"""Tag of a version: SHA-256 of its `RegisteredFiles`."""
FINGERPRINT_TAG = "perennial.fingerprint"
# MLflow's server reads such an address from its own storage only.
PASSED_ON = "mlflow-artifacts:/"


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model."""

    name: str
    version: str
    tags: dict[str, str]
    run_id: str
    source: str
    created_at: datetime
    description: str = ""


class RegisteredFiles(Section):
    """The files of a version as they were registered.

    Stored in the object store as `registry/<model>/<SHA-256 of the source>.json`.
    """

    source: str
    """Address of the uploaded files; MLflow's `source` of the version."""
    files: dict[str, str]
    """Path below the source → SHA-256."""


class VersionFiles:
    """Compares a version's files with the digests recorded at its registration."""

    def __init__(self, store: ObjectStore, *, proxied: bool) -> None:
        self._store = store
        self._proxied = proxied

    def record(self, name: str, registered: RegisteredFiles) -> dict[str, str]:
        """Store the digests of a version about to be registered; return its tags."""
        self._store.write(_key(name, registered.source), registered.to_json().encode())
        return {FILES_TAG: registered.digest()}

    def names_of(self, source: str) -> list[str]:
        """Return the models that a version with this source was registered for."""
        file = _key("", source).rpartition("/")[2]
        keys = (item.key.split("/") for item in self._store.list("registry/"))
        return [folders[1] for folders in keys if len(folders) == 3 and folders[2] == file]

    def expected(self, version: ModelVersion) -> RegisteredFiles | None:
        """Return the version's registered files; None if it was registered without digests.

        Reads nothing at the version's source.

        Raises:
            DamagedModelError: the recorded digests are missing or contradict each other.
            PerennialError: the version's source is outside the object store.
        """
        tag = version.tags.get(FILES_TAG, "")
        key = _key(version.name, version.source)
        content = self._store.read(key)
        place = f"{self._store.uri}/{key}"
        if content is None:
            # A source that was recorded at a registration is accepted wherever it lies.
            self._refuse_foreign(version)
            if not tag:
                return None
            for former in self.names_of(version.source):
                raise DamagedModelError(
                    f"{version.name} version {version.version} was registered as one of {former}",
                    evidence=f"the digests of its files are recorded under registry/{former}/",
                    action=rename_back(former, version.name),
                )
            raise _damaged(
                version,
                "the digests of its files",
                f"MLflow's tag {FILES_TAG} is {tag}, but there is no {place} for the source "
                f"{version.source}",
            )
        try:
            registered = RegisteredFiles.from_json(content)
        except ValueError as error:
            reason = f"{place} cannot be read: {str(error).splitlines()[0]}"
            raise _damaged(version, "the digests of its files", reason) from error
        if (registered.digest(), registered.source) != (tag, version.source):
            raise _damaged(
                version,
                "the digests of its files",
                f"SHA-256 of {place} is {registered.digest()}, MLflow's tag {FILES_TAG} is "
                f"{tag or 'missing'}",
            )
        return registered

    def verify_folder(
        self, version: ModelVersion, registered: RegisteredFiles | None, folder: Path
    ) -> None:
        """Compare every downloaded file of a version with its registered digest.

        Raises:
            DamagedModelError: a file is missing, altered, or was not registered.
        """
        found = file_digests(folder)
        if registered is None:
            _verify_by_tags(version, folder, found)
        else:
            _refuse_differences(version, registered.files, found)

    def verify_contents(
        self,
        version: ModelVersion,
        registered: RegisteredFiles | None,
        contents: Mapping[str, bytes | None],
    ) -> None:
        """Compare some files of a version with their registered digests.

        A content is None for a file that is not there.

        Raises:
            DamagedModelError: one of them is missing or altered.
        """
        if registered is not None:
            expected = {
                name: registered.files[name] for name in registered.files if name in contents
            }
            found = {
                name: hashlib.sha256(content).hexdigest()
                for name, content in contents.items()
                if content is not None
            }
            _refuse_differences(version, expected, found)

    def _refuse_foreign(self, version: ModelVersion) -> None:
        if not self._is_inside(version.source):
            raise PerennialError(
                f"the files of {version.name} version {version.version} lie outside the object "
                "store; nothing was read",
                evidence=f"its source in MLflow is {version.source!r}, which is not in "
                f"{self._store.uri} and was not recorded at a registration",
                action="find out who set it: MLflow needs no login. Delete the version in MLflow, "
                "or upload its files into the store and register it again",
            )

    def _is_inside(self, source: str) -> bool:
        """Whether a source is a place below the store's root, however it is written."""
        parts = urlparse(source)
        # A prefix alone would accept `s3://bucket/root/../other`, also with encoded dots.
        if {"..", "."} & set(unquote(source).split("/")) or parts.query or parts.fragment:
            return False
        if isinstance(self._store, LocalObjectStore) and parts.scheme in ("", "file"):
            path = Path(unquote(parts.path) if parts.scheme else source)
            root = self._store.root.resolve()
            # Links inside the folder can lead outside, as can links in the path to it.
            places = (path, *path.rglob("*")) if path.is_absolute() and not parts.netloc else ()
            return bool(places) and all(each.resolve().is_relative_to(root) for each in places)
        if parts.scheme == "s3":
            return source.startswith(f"{self._store.uri}/")
        return self._proxied and source.startswith(PASSED_ON) and not parts.netloc


def remove_loading_traces(folder: Path, registered: Collection[str]) -> None:
    """Delete from a downloaded copy what loading the version leaves in a store on this machine.

    MLflow notes the version's name beside its files, and Python the bytecode of its modules, which
    must not be executed in their place. Files that were registered stay.
    """
    traces = [*folder.glob("registered_model_meta"), *folder.rglob("__pycache__/*.pyc")]
    for file in traces:
        if file.relative_to(folder).as_posix() not in registered:
            file.unlink()


def damaged_file(version: ModelVersion, file: str, error: Exception) -> DamagedModelError:
    """Return the error for a file of a version that cannot be read."""
    evidence = error.evidence if isinstance(error, PerennialError) else str(error)
    first = evidence.splitlines()[0] if evidence else type(error).__name__
    return _damaged(version, file, first)


def read_artifact(kind: type[AnArtifact], version: ModelVersion, folder: Path) -> AnArtifact:
    """Read an artifact from a version's downloaded files."""
    try:
        return kind.read(folder)
    except PerennialError as error:
        raise damaged_file(version, kind.file_name, error) from error


def rename_back(former: str, name: str) -> str:
    """Return what a person does about a model that was renamed in MLflow."""
    return (
        "if the model was renamed in MLflow, rename it back: "
        f'`MlflowClient().rename_registered_model("{name}", "{former}")`'
    )


def ways_out(name: str, version: str) -> str:
    """Return a person's options for a version that must not be replaced automatically."""
    return (
        f"restore the files of version {version} from a backup of the object store; or change "
        f"the champion: `perennial rollback {name} --reason …`, or `perennial promote {name} N "
        "--force --reason …`"
    )


def _refuse_differences(
    version: ModelVersion, expected: Mapping[str, str], found: Mapping[str, str]
) -> None:
    for name in sorted({*expected, *found}):
        then, now = expected.get(name, "none"), found.get(name, "no such file")
        if then != now:
            reason = f"SHA-256 registered: {then}, found: {now}"
            raise _damaged(version, name, f"{version.source}/{name}: {reason}")


def _verify_by_tags(version: ModelVersion, folder: Path, found: Mapping[str, str]) -> None:
    """Verify a version without recorded digests by the digests in its tags."""
    tags = version.tags
    if "perennial.contract" not in tags:  # not registered by a pipeline
        return
    if tags["perennial.contract"] != found.get(CONTRACT_FILE):
        raise _damaged(version, CONTRACT_FILE, f"MLflow's tag has {tags['perennial.contract']}")
    fingerprint = read_artifact(Challenger, version, folder).version_fingerprint()
    if tags.get(FINGERPRINT_TAG) != fingerprint:
        reason = f"MLflow's tag {FINGERPRINT_TAG} is {tags.get(FINGERPRINT_TAG)}, not {fingerprint}"
        raise _damaged(version, Challenger.file_name, reason)


def _damaged(version: ModelVersion, what: str, evidence: str) -> DamagedModelError:
    return DamagedModelError(
        f"{version.name} version {version.version} is damaged: {what}",
        evidence=evidence,
        action=ways_out(version.name, version.version),
    )


def _key(name: str, source: str) -> str:
    # By source: the digests are stored before MLflow has given the version its number.
    return f"registry/{name}/{hashlib.sha256(source.encode()).hexdigest()}.json"
