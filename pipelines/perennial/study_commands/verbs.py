"""Verbs of `perennial study` that train nothing on this machine."""

import shlex
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from perennial.arguments import (
    AsJson,
    AskedProfile,
    ContractFile,
    HomeFolder,
    ModelPlace,
    ProfileFile,
    Reason,
    StudyFile,
    asked_profile,
    flag,
    open_home,
    print_json,
    print_lines,
)
from perennial.deployment.verbs import Force, Wait, connect_to, follow_run

if TYPE_CHECKING:
    from perennial.clients.object_store import ObjectStore

StudyDigest: TypeAlias = Annotated[
    str, typer.Option("--digest", metavar="DIGEST", help="the beginning of the study's digest")
]


def submit(
    contract: ContractFile,
    profile: ProfileFile,
    reason: Reason,
    study: StudyFile = None,
    *,
    force: Force = False,
    wait: Wait = False,
) -> int:
    """Start a study on the cluster, with as many tasks as trials run at a time."""
    from perennial.deployment.operations import submit as submit_run
    from perennial.deployment.run_request import RunRequest
    from perennial.study_commands.definition import load_study

    cluster, checked = connect_to(profile), load_study(contract, study)
    run = submit_run(cluster, checked, RunRequest("study", reason, force=force))
    return follow_run(cluster, run, wait=wait)


def status(
    model: ModelPlace = "",
    home: HomeFolder = None,
    profile: AskedProfile = None,
    *,
    json: AsJson = False,
) -> int:
    """Print how far the studies are: of a model, or of all; with a profile, on a cluster."""
    from perennial.study_commands.stored import stored_studies

    store = open_records(home, profile)
    states = stored_studies(store, model)
    if json:
        return print_json([state.record() for state in states])
    if not states:
        return print_lines([f"no studies in {store.uri}"])
    return print_lines(line for state in states for line in state.lines())


def analyze(
    contract: ContractFile,
    study: StudyFile = None,
    digest: StudyDigest = "",
    home: HomeFolder = None,
    profile: AskedProfile = None,
    *,
    json: AsJson = False,
) -> int:
    """Analyse and judge a study again from its records, without training."""
    from perennial.studies.conclusion import PAGE_NAME
    from perennial.study_commands.stored import find_study

    checked, stored = find_study(open_records(home, profile, contract), contract, study, digest)
    found = stored.analyze(checked)
    if json:
        return print_json(
            {
                "judgement": found.judgement.model_dump(mode="json"),
                "result": found.findings.model_dump(mode="json"),
            }
        )
    lines = [f"{found.judgement.decision}: {found.judgement.summary}"]
    lines += [answer.text for answer in found.judgement.answers]
    lines += [each.text for each in found.findings.boundaries]
    lines += [each.text for each in found.findings.infeasible]
    lines += [found.findings.good_points.text, found.findings.effects.text]
    lines += [found.findings.noise.text, found.findings.length.text]
    lines.append(f"page: {stored.file(PAGE_NAME)}")
    if (next_study := stored.next_study()) is not None:
        command = ["perennial", "study", "run", str(contract), "--study", str(next_study)]
        lines.append(f"next: {shlex.join(command)}")
    return print_lines(lines)


def adopt(
    contract: ContractFile,
    study: StudyFile = None,
    digest: StudyDigest = "",
    home: HomeFolder = None,
    profile: AskedProfile = None,
    *,
    write: Annotated[
        bool, flag("--write", "change the contract; default: print the patch")
    ] = False,
    anyway: Annotated[
        bool, flag("--anyway", "adopt the best finalist of a study that did not decide `adopt`")
    ] = False,
) -> int:
    """Print the patch that writes a study's winning values into the contract, or apply it."""
    from perennial.study_commands.adoption import adopt_study
    from perennial.study_commands.stored import find_study

    _, stored = find_study(open_records(home, profile, contract), contract, study, digest)
    patch = adopt_study(contract, stored.plan, stored.judgement, stored.snapshot, anyway=anyway)
    print_lines(patch.lines())
    print_lines(f"# {note}" for note in patch.notes)
    if write and patch.after != patch.before:
        patch.write()
        print_lines([f"# {contract} is changed; the next training's lineage names the study"])
    return 0


def report(
    contract: ContractFile,
    study: StudyFile = None,
    digest: StudyDigest = "",
    home: HomeFolder = None,
    profile: AskedProfile = None,
    *,
    no_open: Annotated[bool, flag("--no-open", "print the path only")] = False,
) -> int:
    """Open a study's page in the browser, and print its path."""
    from perennial.studies.conclusion import PAGE_NAME
    from perennial.study_commands.stored import find_study

    _, stored = find_study(open_records(home, profile, contract), contract, study, digest)
    path = stored.file(PAGE_NAME)
    print_lines([str(path)])
    if not no_open:
        webbrowser.open(path.as_uri())
    return 0


def open_records(
    home: Path | None, profile: Path | None, contract: Path | None = None
) -> "ObjectStore":
    """Open the object store with the studies: of a cluster, or of a home on this machine."""
    from perennial.clients.object_store import open_store
    from perennial.deployment.profile import load_profile

    asked = asked_profile(profile, home)
    if asked:
        return open_store(load_profile(asked).stores.store_uri)
    return open_store(open_home(home, contract).store_uri)
