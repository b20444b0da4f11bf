"""Version control: the commit of the sources, and what was not committed."""

import os
import shutil
import subprocess
from pathlib import Path

DIRTY = "-dirty"
# A larger difference is data that was checked in, not a change of the code.
DIFF_BYTES = 1_000_000
SOURCES = ("*.py", "*.toml")
# Whatever the user has configured, the patch must fit the commit again, byte for byte.
PATCH = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--binary",
    "--full-index",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)


def commit_of(folder: Path) -> str:
    """Return the commit of a folder, `-dirty` when files differ; empty outside a repository."""
    commit = _text(folder, "rev-parse", "HEAD")
    return f"{commit}{DIRTY}" if commit and _text(folder, "status", "--porcelain") else commit


def place_in_repository(folder: Path) -> str:
    """Return a folder's path from the top of its repository, `.` at the top; empty outside one."""
    if not _text(folder, "rev-parse", "--show-toplevel"):
        return ""
    return _text(folder, "rev-parse", "--show-prefix").rstrip("/") or "."


def top_of(folder: Path) -> Path | None:
    """Return the top folder of the repository that a folder lies in; None outside one."""
    top = _text(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def uncommitted_diff(folder: Path) -> bytes:
    """Return the uncommitted changes as a patch; empty outside a repository.

    Files that were never added count if they are sources or contracts: data and runs may lie beside
    them. A difference that is larger than code can be is cut to sources and contracts, too.
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


def _text(folder: Path, *arguments: str) -> str:
    return _git(folder, *arguments).decode(errors="replace").strip()


def _git(folder: Path, *arguments: str) -> bytes:
    if shutil.which("git") is None:
        return b""
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    # `git diff --no-index` exits with 1 where files differ.
    differs = 1 if "--no-index" in arguments else 0
    return done.stdout if done.returncode in (0, differs) else b""
