"""Repair: makes MLflow's and the object store's record of a champion agree again, by hand."""

import getpass
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.contracts.version_decisions import REPLACED_TAG, VersionDecision, is_rolled_back
from perennial.registry.champion_records import ChampionRecords
from perennial.registry.version_files import FILES_TAG
from perennial.registry_commands.catalogue import Catalogue


class RepairEntry(Section):
    """One repair; stored in the object store as `registry/<model>/repaired-<moment>.json`."""

    at: str
    by: str
    problem: str
    before: tuple[str, ...]
    """Both records, as people read them."""
    champion: str
    """The version that both records name since; empty if both forgot the champion."""
    kept: str
    """Key of the object store's replaced record; empty if there was none."""


def repair(
    catalogue: Catalogue, name: str, confirm: Callable[[str], bool], show: Callable[[str], None]
) -> str:
    """Show both records of a champion, propose a repair and carry it out if it is confirmed.

    Returns:
        What was done, in a sentence.

    Raises:
        PerennialError: nothing is known of such a model.
    """
    records = catalogue.registry.champion_records(name)
    if not records.versions and not records.problem():
        catalogue.versions(name)  # explains which models there are
    for line in records.lines():
        show(line)
    problem = records.problem()
    if not problem:
        return f"the records of {name} agree: nothing to repair"
    show(f"problem: {problem}")
    number, passed_over = _propose(catalogue, records)
    for line in passed_over:
        show(f"not proposed: {line}")
    show(f"proposal: {_proposal(number)}")
    if not confirm("repair the records so?"):
        return "nothing was changed"
    if catalogue.registry.champion_records(name) != records:
        raise PerennialError(
            f"the records of {name} changed during the repair; nothing was changed",
            action=f"run `perennial models {name} --repair` again",
        )
    return _carry_out(catalogue, records, number)


def _propose(catalogue: Catalogue, records: ChampionRecords) -> tuple[str, list[str]]:
    """Return the number of the champion to restore, and why others are not proposed.

    The first version, by how sure its claim is, whose files are those that were registered; empty
    if none is: then both records forget the champion.
    """
    passed_over = []
    for number in _candidates(records):
        version = records.versions[number]
        if is_rolled_back(version.tags):
            passed_over.append(f"version {number} was taken out of production by a person")
            continue
        try:
            with TemporaryDirectory() as scratch:
                catalogue.registry.download(records.as_promoted(version), Path(scratch))
        except PerennialError as error:
            passed_over.append(f"version {number}: {error.problem}")
            continue
        return number, passed_over
    return "", passed_over


def _candidates(records: ChampionRecords) -> Iterator[str]:
    """The alias, the version in the store's record, what that replaced, then earlier champions."""
    change = records.change
    recorded = (change.champion, change.replaced) if change else ()
    for number in dict.fromkeys((records.alias, *recorded, *records.promoted_versions())):
        if number in records.versions:
            yield number


def _carry_out(catalogue: Catalogue, records: ChampionRecords, number: str) -> str:
    name, now = records.name, datetime.now(UTC)
    decision = VersionDecision.now(getpass.getuser(), f"repair of the records: {records.problem()}")
    tags = {}
    if number:
        version = records.as_promoted(records.versions[number])
        kept_tags = {
            tag: version.tags[tag] for tag in (REPLACED_TAG, FILES_TAG) if tag in version.tags
        }
        tags[number] = {**decision.as_tags("restored"), **kept_tags}
    kept = catalogue.registry.repair(name, number, tags)
    entry = RepairEntry(
        at=decision.at, by=decision.by, problem=records.problem(), before=tuple(records.lines()),
        champion=number, kept=kept,
    )  # fmt: skip
    store = open_store(catalogue.home.store_uri)
    key = f"registry/{name}/repaired-{now:%Y%m%dT%H%M%S.%f}.json"
    store.write(key, entry.to_json().encode())
    done = f"{name} version {number} is champion" if number else f"{name} has no champion now"
    aside = f"; the replaced record is kept in {kept}" if kept else ""
    return f"{done}; logged in {store.uri}/{key}{aside}"


def _proposal(number: str) -> str:
    if number:
        return f"set alias and promotion record to version {number}; the current record is kept"
    return (
        "forget the champion, since no version that was champion is left whole: the next "
        "challenger that passes the other conditions of the gate is promoted without a "
        "comparison. The present record is kept aside"
    )
