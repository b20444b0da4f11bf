"""Locked install: what one image needs, at the versions on record, into its virtual environment.

    python locked_install.py trainer --also text --torch cpu
    python locked_install.py --hashed hatchling setuptools

Run by the Dockerfile. Takes the image's extra from pyproject.toml, lets pip resolve it within
constraints.txt, and installs wheels only, each by its hash in hashes.txt. Fails before anything is
installed when a file is not one of those. The second form prints requirements with their hashes.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PYTHON = "/opt/perennial/bin/python"
WHEELS = "/wheels"  # built from source in the stage before

CPU_BUILDS = (
    "CPU builds of PyTorch are not on the default index: give pip a configuration that names the "
    "index of PyTorch's install page (images/README.md), or build with TORCH=cuda"
)


def main() -> None:
    """Install, compile, verify."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extra", choices=("data", "trainer", "control"), nargs="?")
    parser.add_argument("--hashed", nargs="+", help="print these requirements with their hashes")
    parser.add_argument("--also", nargs="*", default=[], help="further extras of pyproject.toml")
    parser.add_argument("--torch", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    known = hashes(Path("hashes.txt").read_text())
    if options.hashed:
        sys.stdout.writelines(f"{line}\n" for line in hashed(options.hashed, known))
        return
    pinned = dict(pins(Path("constraints.txt").read_text()))
    extras = [options.extra, *options.also]
    wanted = list(requirements(extras, torch_build(pinned["torch"], options.torch)))
    pip = (sys.executable, "-m", "pip", "--python", PYTHON)
    install = (*pip, "install", "--no-cache-dir", "--only-binary", ":all:", "--find-links", WHEELS)
    plan = ("--dry-run", "--quiet", "--report", "report.json", "--constraint", "constraints.txt")
    if subprocess.run([*install, *plan, *wanted], check=False).returncode:
        hint = CPU_BUILDS if any("+cpu" in each for each in wanted) else ""
        sys.exit(f"pip found no way to install {wanted}. {hint}")
    lines = locked(json.loads(Path("report.json").read_text())["install"], known)
    Path("locked.txt").write_text("\n".join(lines))
    # No bytecode by pip: it would carry times, which a copy between stages changes.
    exactly = ("--no-compile", "--no-deps", "--require-hashes", "--requirement", "locked.txt")
    subprocess.run([*install, *exactly], check=True)
    for path in list(tests_of_others(*Path(PYTHON).parents[1].glob("lib/python*/site-packages"))):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    packages = str(Path(PYTHON).parents[1] / "lib")
    compile_all = (PYTHON, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode")
    # Some packages carry files for other versions of Python; whoever imports them is told.
    subprocess.run([*compile_all, "unchecked-hash", packages], check=False)
    frozen = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    strangers = list(unpinned(dict(pins(frozen)), pinned))
    if strangers:
        sys.exit(f"constraints.txt does not name these, so they are not locked: {strangers}")


def hashes(text: str) -> dict[tuple[str, str], list[str]]:
    """(normalised name, version) → SHA-256 of each file that may be installed."""
    found = {}
    for name, version, block in re.findall(
        r"^([\w.-]+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", text, re.MULTILINE
    ):
        found[normalised(name), version] = re.findall(r"sha256:([0-9a-f]{64})", block)
    return found


def hashed(names: Sequence[str], known: Mapping[tuple[str, str], list[str]]) -> Iterator[str]:
    """Requirements by name, with version and every hash, as `pip --require-hashes` reads them."""
    for wanted in names:
        ((name, version),) = (each for each in known if each[0] == normalised(wanted))
        marks = " ".join(f"--hash=sha256:{each}" for each in known[name, version])
        yield f"{name}=={version} {marks}"


def locked(
    report: Sequence[Mapping[str, Any]], known: Mapping[tuple[str, str], list[str]]
) -> list[str]:
    """Requirements with the hash of the file that pip chose for each; ends when one is not known.

    Args:
        report: What pip would install, from its report.
        known: From hashes.txt.
    """
    lines, strangers = [], []
    for each in report:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        digest = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
        # Built in the stage before, from a source whose hash was compared there.
        is_own = each["download_info"]["url"].startswith(f"file://{WHEELS}/")
        if not digest or not (is_own or digest in known.get((normalised(name), version), ())):
            strangers.append(f"{name}=={version} sha256:{digest}")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    if strangers:
        sys.exit(f"hashes.txt does not name these files, so they are not installed: {strangers}")
    return lines


def normalised(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def tests_of_others(site_packages: Path) -> Iterator[Path]:
    """What packages bring to test themselves: a fifth of the files, which no step imports."""
    for folder in site_packages.iterdir():
        if folder.suffix != ".dist-info":  # licences lie there, some below a folder `test`
            found = (path for name in ("test", "tests") for path in folder.rglob(name))
            folders = {path for path in found if path.is_dir()}
            yield from (path for path in folders if folders.isdisjoint(path.parents))
    yield from site_packages.glob("torch/bin/test_*")


def torch_build(version: str, build: str) -> str:
    """The requirement that takes one build of a version of PyTorch, and no other."""
    # `===` compares texts: the plain version, and no local one that an index may add.
    return f"torch=={version}+cpu" if build == "cpu" else f"torch==={version}"


def requirements(extras: Sequence[str], torch: str) -> Iterator[str]:
    """What every image and these extras ask for, with the wanted build of PyTorch."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    yield from project["dependencies"]
    for requirement in (found for extra in extras for found in optional[extra]):
        own = re.fullmatch(r"perennial\[([\w,]+)\]", requirement)
        if own:
            yield from (found for extra in own[1].split(",") for found in optional[extra])
        else:
            yield torch if re.match(r"torch\b", requirement) else requirement


def pins(text: str) -> Iterator[tuple[str, str]]:
    """Normalised name and public version of every `name==version` line."""
    for name, version in re.findall(r"^([\w.-]+)==([^\s+]+)", text, re.MULTILINE):
        yield normalised(name), version


def unpinned(installed: Mapping[str, str], pinned: Mapping[str, str]) -> Iterator[str]:
    """What is installed at another version than the one on record, or without one."""
    for name, version in sorted(installed.items()):
        if pinned.get(name) != version:
            yield f"{name}=={version}"


if __name__ == "__main__":
    main()
