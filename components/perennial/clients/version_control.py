"""Version control: the commit of the sources, and checkouts of earlier ones."""

import os
import shutil
import subprocess
from pathlib import Path

from perennial.contracts.errors import PerennialError

DIRTY = "-dirty"
# A larger difference is data that was checked in, not a change of the code.
DIFF_BYTES = 1_000_000
SOURCES = ("*.py", "*.toml")
# Whatever the user has configured, the patch must fit the commit again, byte for byte.
PATCH = (
    "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--binary", "--full-index",
    "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip


def commit_of(folder: Path) -> str:
    """The version-control commit of a folder, `-dirty` when files differ; empty outside one."""
    commit = _text(folder, "rev-parse", "HEAD")
    return f"{commit}{DIRTY}" if commit and _text(folder, "status", "--porcelain") else commit


def place_in_repository(folder: Path) -> str:
    """A folder's path from the top of its repository, `.` at the top; empty outside one."""
    if not _text(folder, "rev-parse", "--show-toplevel"):
        return ""
    return _text(folder, "rev-parse", "--show-prefix").rstrip("/") or "."


def top_of(folder: Path) -> Path | None:
    """The top folder of the repository that a folder lies in; None outside one."""
    top = _text(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def uncommitted_diff(folder: Path) -> bytes:
    """Return the uncommitted changes as a patch; empty outside a repository.

    Of files that were never added, only sources and contracts: data and runs may lie beside them.
    Of a difference that is larger than code can be, only sources and contracts, too.
    """
    top = top_of(folder)
    if top is None or not commit_of(top).endswith(DIRTY):
        return b""
    listed = _git(top, "ls-files", "-z", "--others", "--exclude-standard", "--", *SOURCES)
    added = b"".join(
        _git(top, "diff", *PATCH, "--no-index", "--", os.devnull, os.fsdecode(name))
        for name in listed.split(b"\0")
        if name
    )
    whole = _git(top, "diff", *PATCH, "HEAD") + added
    if len(whole) <= DIFF_BYTES:
        return whole
    sources = _git(top, "diff", *PATCH, "HEAD", "--", *SOURCES) + added
    if len(sources) <= DIFF_BYTES:
        return sources
    return sources[:DIFF_BYTES] + f"\n(cut: {len(sources):,} bytes in all)\n".encode()


def check_out(repository: Path, commit: str, patch: bytes, target: Path) -> None:
    """Write the sources of a commit, and what was uncommitted then, into a new folder.

    The repository is read only: its working tree, its branches and its list of worktrees stay as
    they are, and none of its hooks runs.

    Args:
        repository: Any folder in it.
        commit: May end in `-dirty`.
        patch: Of `uncommitted_diff`.
        target: A folder that does not exist.

    Raises:
        PerennialError: this is not a repository, lacks the commit, or the patch does not fit.
    """
    top, wanted = top_of(repository), commit.removesuffix(DIRTY)
    if top is None:
        raise PerennialError(
            f"{repository} does not lie in a git repository",
            evidence=f"the original sources are commit {wanted}",
            action="--repository names a folder of the repository that holds it",
        )
    if not _text(top, "rev-parse", "--quiet", "--verify", f"{wanted}^{{commit}}"):
        raise PerennialError(
            f"{top} does not hold commit {wanted}",
            evidence="nobody fetched it, or it was rewritten and cleaned up",
            action="`git fetch` it, or name another clone with --repository",
        )
    # Its objects are borrowed, so that a commit that no branch holds any more is found, too.
    _demand(top, "clone", "--quiet", "--shared", "--no-checkout", "--", str(top), str(target))
    _demand(target, "checkout", "--quiet", "--detach", wanted)
    if patch:
        _demand(target, "apply", "--whitespace=nowarn", "-", given=patch)


def _demand(folder: Path, *arguments: str, given: bytes = b"") -> None:
    done = _run(folder, arguments, given)
    if done.returncode:
        raise PerennialError(
            f"`git {arguments[0]}` failed: the original sources cannot be checked out",
            evidence=done.stderr.decode(errors="replace").strip(),
            action="check them out by hand, and name their folder with --code",
        )


def _text(folder: Path, *arguments: str) -> str:
    return _git(folder, *arguments).decode(errors="replace").strip()


def _git(folder: Path, *arguments: str) -> bytes:
    if shutil.which("git") is None:
        return b""
    done = _run(folder, arguments)
    differs = 1 if "--no-index" in arguments else 0
    return done.stdout if done.returncode in (0, differs) else b""


def _run(
    folder: Path, arguments: tuple[str, ...], given: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False)
