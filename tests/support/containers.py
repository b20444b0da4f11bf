"""Images and containers for tests: podman, the three images, and pods as a cluster would make them.

`PERENNIAL_BASE` names the base image by digest and `PERENNIAL_BUILD_OPTIONS` what `podman build`
needs beside it, such as the mounts of a private package index.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("data", "trainer", "control")
ARBITRARY_USER = "1234567:0"
"""A number without an entry in /etc/passwd, in root's group, as OpenShift gives one."""
BASE = "docker.io/library/python:3.11-slim-bookworm"


def podman(*arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    """One command of podman, whatever becomes of it."""
    return subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, check=False, timeout=timeout
    )


def base_image() -> str:
    """The base by digest; skips where there is no podman, or none that runs it."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    given = os.environ.get("PERENNIAL_BASE") or BASE
    found = podman("image", "inspect", "--format", "{{index .RepoDigests 0}}", given)
    if found.returncode:
        pytest.skip(f"there is no base image {given}: pull it, or run tests/images/make_base.sh")
    base = found.stdout.strip()
    started = podman("run", "--rm", "--network=none", base, "true")
    if started.returncode:
        pytest.skip(f"podman runs no container here: {started.stderr.strip()}")
    return base


def built_images() -> dict[str, str]:
    """Logical name → reference by digest of the images, built from this tree."""
    base = base_image()
    options = os.environ.get("PERENNIAL_BUILD_OPTIONS", "")
    subprocess.run(
        ["make", "images", f"BASE={base}", f"BUILD_OPTIONS={options}", "CONTAINERS=podman"],
        cwd=ROOT, check=True,
    )  # fmt: skip
    return {f"perennial-{name}": reference(f"perennial-{name}") for name in IMAGES}


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """The images of all tests."""
    return built_images()


def reference(name: str) -> str:
    """An image of this machine by digest."""
    found = podman("image", "inspect", "--format", "{{index .RepoDigests 0}}", name)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@dataclass(frozen=True)
class Pod:
    """What every container of ours gets on a cluster, and nothing else.

    Attributes:
        image: Its reference.
        variables: Its environment.
        mounts: Folder of this machine → where the container sees it.
        user: Number of user and group.
        options: Further ones of `podman run`.
    """

    image: str
    variables: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[Path, str] = field(default_factory=dict)
    user: str = ARBITRARY_USER
    options: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        """`podman run` with a read-only root, no rights and an emptyDir at /tmp."""
        scratch = () if "/tmp" in self.mounts.values() else ("--tmpfs", "/tmp:rw,mode=1777,size=2g")
        return [
            *("podman", "run", "--pull=never", "--read-only", "--read-only-tmpfs=false", *scratch),
            *("--user", self.user, "--cap-drop=ALL", "--security-opt=no-new-privileges"),
            *(f"--env={name}={value}" for name, value in self.variables.items()),
            *(f"--volume={here}:{there}" for here, there in self.mounts.items()),
            *self.options, self.image, *arguments,
        ]  # fmt: skip

    def run(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; the container is removed."""
        name = f"perennial-test-{uuid.uuid4().hex[:12]}"
        command = self.command(*arguments)
        command[2:2] = ["--rm", "--name", name]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=timeout
            )
        finally:
            podman("rm", "--force", "--ignore", name)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[str]:
        """A container that runs meanwhile; gives its id."""
        command = self.command(*arguments)
        command.insert(2, "--detach")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        container = done.stdout.strip()
        try:
            yield container
        finally:
            podman("rm", "--force", "--time=0", container)


@dataclass(frozen=True)
class Network:
    """A network of containers; this machine is its gateway.

    Attributes:
        name: As podman knows it.
        gateway: This machine's address in it.
    """

    name: str
    gateway: str

    def address(self, number: int) -> str:
        """The address of one of its hosts."""
        return f"{self.gateway.rpartition('.')[0]}.{number}"


@contextmanager
def new_network(image: str) -> Iterator[Network]:
    """A network that exists while a container of an image waits in it."""
    name = f"perennial-test-{uuid.uuid4().hex[:8]}"
    made = podman("network", "create", name)
    assert made.returncode == 0, made.stderr
    try:
        shape = "{{range .Subnets}}{{.Gateway}}{{end}}"
        gateway = podman("network", "inspect", "--format", shape, name).stdout.strip()
        with Pod(image, options=(f"--network={name}",)).started("sleep", "infinity"):
            yield Network(name, gateway)
    finally:
        podman("network", "rm", "--force", name)


@pytest.fixture(scope="session")
def network(images) -> Iterator[Network]:
    """The network of all tests."""
    with new_network(images["perennial-control"]) as found:
        yield found
