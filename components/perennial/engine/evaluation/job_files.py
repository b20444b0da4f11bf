"""Job files: inputs and results of a scoring on several machines, in the object store.

The job and its result name every file with its SHA-256: what arrives damaged is refused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from perennial.clients.object_store import ObjectStore, file_digests, open_store, sha256_of_file
from perennial.contracts.errors import PerennialError
from perennial.engine.job import ScoringJob, ScoringResult

INPUTS, RESULTS, TARGET = "inputs", "results", "target"
FOLDER = "scoring"
"""Folder of the store in which each run has one for its scorings."""


def upload_inputs(job: ScoringJob, places: Mapping[str, Path]) -> None:
    """Upload each input that the store does not have yet."""
    store = open_store(job.store_uri)
    known = {each.key: each.size_bytes for each in store.list(f"{INPUTS}/")}
    for name, files in job.inputs.items():
        for path, digest in files.items():
            file, key = places[name] / path, f"{INPUTS}/{digest}"
            if known.get(key) != file.stat().st_size:
                store.upload(key, file)


def fetch_inputs(job: ScoringJob) -> None:
    """Download all inputs into the folder `inputs` of the job.

    Raises:
        PerennialError: one is gone or damaged.
    """
    store = open_store(job.store_uri)
    for name, files in job.inputs.items():
        for path, digest in files.items():
            _fetch(store, f"{INPUTS}/{digest}", job.root / INPUTS, f"{name}/{path}", digest)


def delete_inputs(job: ScoringJob) -> None:
    """Delete the inputs from the store; the weights are a copy of what the step has."""
    store = open_store(job.store_uri)
    for found in store.list(f"{INPUTS}/"):
        store.delete(found.key)


def upload_results(job: ScoringJob, place: Path, found: Sequence[str]) -> None:
    """Upload the first rank's files below a folder, then what it has found."""
    store = open_store(job.attempt_uri)
    own = ("0", TARGET)
    digests = file_digests(place)
    files = {path: each for path, each in digests.items() if path.partition("/")[0] in own}
    for path in files:
        store.upload(f"{RESULTS}/{path}", place / path)
    result = ScoringResult(attempt=job.attempt, place=str(place), found=tuple(found), files=files)
    open_store(job.store_uri).write(result.file_name, result.to_json().encode())


def fetch_results(job: ScoringJob, scratch: Path, target: str) -> tuple[str, ...]:
    """Download the files of a finished scoring; return what it has found, with their new paths.

    Files of the request's `target` go there, all others to `scratch`.

    Raises:
        PerennialError: a file is gone or damaged.
    """
    result = ScoringResult.read(job.root)
    store = open_store(f"{job.store_uri}/attempts/{result.attempt}")
    for path, digest in result.files.items():
        top, _, rest = path.partition("/")
        folder, below = (Path(target), rest) if top == TARGET else (scratch, path)
        try:
            _fetch(store, f"{RESULTS}/{path}", folder, below, digest)
        except PerennialError:
            # Or each repetition would find the same result.
            open_store(job.store_uri).delete(result.file_name)
            raise
    # The attempt's random name is part of the path, so no other text contains it.
    old, new = (json.dumps(each)[1:-1] for each in (result.place, str(scratch)))
    return tuple(each.replace(old, new) for each in result.found)


def forget_scorings(store: ObjectStore, run_id: str) -> None:
    """Delete inputs and results of all scorings of a run; logs and errors stay as evidence."""
    for found in store.list(f"{FOLDER}/{run_id}/"):
        parts = found.key.split("/")
        if parts[-1] == ScoringResult.file_name or {INPUTS, RESULTS} & set(parts):
            store.delete(found.key)


def _fetch(store: ObjectStore, key: str, folder: Path, path: str, digest: str) -> None:
    file = folder / path
    if not file.resolve().is_relative_to(folder.resolve()):
        raise PerennialError(f"{store.uri}/{key} does not name a file below {folder}")
    file.parent.mkdir(parents=True, exist_ok=True)
    store.download(key, file)
    if sha256_of_file(file) != digest:
        raise PerennialError(
            f"{store.uri}/{key} has changed or arrived damaged",
            evidence=f"its SHA-256 is not {digest}",
            action="run the step again to score again",
        )
