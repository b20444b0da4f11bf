"""A private PostgreSQL server for tests: its own folder, a unix socket, no port."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

BINARIES = Path("/usr/lib/postgresql")  # where Debian keeps them, by major version
LACKING = "no PostgreSQL: `apt-get install postgresql` brings initdb and pg_ctl"
DRIVER = "no driver: `pip install 'perennial[postgresql]'` brings psycopg"


@pytest.fixture
def postgresql():
    """The address of an empty database on a server that ends with the test."""
    pytest.importorskip("psycopg", reason=DRIVER)
    versions = sorted(BINARIES.glob("*/bin"), key=lambda path: int(path.parent.name))
    search = os.pathsep.join(map(str, [*reversed(versions), os.environ.get("PATH", "")]))
    initdb, pg_ctl = (shutil.which(name, path=search) for name in ("initdb", "pg_ctl"))
    if initdb is None or pg_ctl is None:
        pytest.skip(LACKING)
    # The server refuses to run as root, and a socket's path may have 107 characters at most.
    user = "nobody" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        if user:
            shutil.chown(folder, user)
        data = f"{folder}/data"

        def call(*command):
            with Path(f"{folder}.log").open("ab") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log, user=user, cwd=folder)

        try:
            call(initdb, "-D", data, "-A", "trust", "-U", "perennial", "--no-sync")
            options = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=300"
            call(pg_ctl, "-D", data, "-w", "-o", options, "start")
            try:
                yield f"postgresql://perennial@/postgres?host={folder}"
            finally:
                call(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop")
        finally:
            Path(f"{folder}.log").unlink()
