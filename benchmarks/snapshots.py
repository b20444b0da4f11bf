"""Snapshots of many objects over the S3 protocol: cold, with nothing new, and with ten new ones.

    python -m benchmarks.snapshots --objects 100000 --write

The peers are boto3 alone, in 8 threads: its own paginator, and a GET and SHA-256 of each object.
The store is `tests/support/memory_s3.py`, a process of its own on this machine.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
from botocore.config import Config

from benchmarks.record import keep_page
from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.snapshot_data.manifest import take_indexed_snapshot

RESULTS = "snapshots.md"
THREADS = 8
NEW = 10
SERVER = Path(__file__).resolve().parents[1] / "tests" / "support" / "memory_s3.py"
DATA = DataSection(uri="s3://bucket/data", label="label", time="at", ids=("id",))


@dataclass(frozen=True)
class Cost:
    """What one way cost: seconds of the clock, of this process and its children, and requests."""

    name: str
    seconds: float
    cpu: float
    counts: dict[str, int]
    opened: int

    def line(self) -> str:
        """A row of the table."""
        requests = ", ".join(
            f"{self.counts[each]:,} {each.upper()}"
            for each in ("list", "head", "get", "put")
            if self.counts.get(each)
        )
        size = self.counts.get("bytes", 0) / 1e6
        return (
            f"| {self.name} | {self.opened:,} | {self.seconds:.1f} | {self.cpu:.1f} | {requests} "
            f"| {size:.1f} |"
        )


def ask(endpoint: str, path: str) -> dict[str, int]:
    """Ask the store itself."""
    with urllib.request.urlopen(f"{endpoint}/{path}") as answer:
        body = answer.read()
    return dict(json.loads(body)) if body else {}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(name: str, endpoint: str, work: Callable[[], int]) -> Cost:
    """Do something once; `work` returns how many objects it opened."""
    ask(endpoint, "counts")
    began, spent = time.perf_counter(), cpu_seconds()
    opened = work()
    took = time.perf_counter() - began, cpu_seconds() - spent
    return Cost(name, *took, ask(endpoint, "counts"), opened)


def list_by_hand() -> list[str]:
    """List every key with boto3's own paginator."""
    pages = (
        boto3.client("s3")
        .get_paginator("list_objects_v2")
        .paginate(Bucket="bucket", Prefix="data/")
    )
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


def hash_by_hand() -> int:
    """List, read and hash every object with boto3 alone."""
    client = boto3.client("s3", config=Config(max_pool_connections=THREADS))

    def digest(key: str) -> str:
        body = client.get_object(Bucket="bucket", Key=key)["Body"].read()
        return hashlib.sha256(body).hexdigest()

    with ThreadPoolExecutor(THREADS) as pool:
        return len(list(pool.map(digest, list_by_hand())))


def snapshot(cache: Path) -> tuple[str, int]:
    """Take a snapshot; return its digest and the number of partitions that it opened."""
    taken = take_indexed_snapshot(
        DATA, SplitSection(), cache, index_store=open_store("s3://bucket/store")
    )
    return taken.snapshot.digest(), taken.opened


def compare(objects: int, endpoint: str, cache: Path) -> list[Cost]:
    """Measure every way."""
    digests = []

    def take() -> int:
        digest, opened = snapshot(cache)
        digests.append(digest)
        return opened

    costs = [
        measure("snapshot, cold", endpoint, take),
        measure("boto3: list, GET and SHA-256 of each", endpoint, hash_by_hand),
        measure("snapshot, nothing new", endpoint, take),
        measure("boto3: list", endpoint, lambda: 0 * len(list_by_hand())),
    ]
    assert digests[0] == digests[1]
    ask(endpoint, f"add/{NEW}")
    costs.insert(3, measure(f"snapshot, {NEW} new", endpoint, take))
    assert [each.opened for each in costs if "snapshot" in each.name] == [objects, 0, NEW]
    return costs


def page(objects: int, costs: list[Cost]) -> str:
    """The table, and its ratios."""
    cost = {each.name: each for each in costs}
    cold, floor = cost["snapshot, cold"], cost["boto3: list, GET and SHA-256 of each"]
    grown, listing = cost[f"snapshot, {NEW} new"], cost["boto3: list"]
    return "\n".join([
        "# Snapshots of many objects", "",
        f"`python -m benchmarks.snapshots --objects {objects}`: {objects:,} partitions of 20 rows,",
        "50 in a folder, behind the S3 protocol on this machine, which other work shares: CPU",
        "seconds count. They are the client's, in one process.", "",
        "| way | opened | s | CPU s | requests | MB |", "|---|---|---|---|---|---|",
        *(each.line() for each in costs), "",
        f"- Cold, a snapshot takes {cold.cpu / floor.cpu:.1f} times the CPU of boto3's GET and",
        "  SHA-256 alone; it reads footers and rows besides.",
        f"- With {NEW} new, it takes {grown.cpu / cold.cpu:.1%} of the CPU of a cold one:",
        f"  {grown.cpu:.1f} s, of which boto3's listing alone is {listing.cpu:.1f} s.", "",
    ])  # fmt: skip


def main() -> None:
    """Print the page; with --write, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--port", type=int, default=9753)
    parser.add_argument("--write", action="store_true", help=f"keep it in {RESULTS}")
    options = parser.parse_args()
    endpoint = f"http://127.0.0.1:{options.port}"
    os.environ.update(
        AWS_ENDPOINT_URL_S3=endpoint, AWS_ACCESS_KEY_ID="nobody", AWS_SECRET_ACCESS_KEY="nothing",
        AWS_DEFAULT_REGION="us-east-1", KUBERNETES_SERVICE_HOST="none", PERENNIAL_CORES="1",
    )  # fmt: skip
    command = [sys.executable, str(SERVER), str(options.port), str(options.objects)]
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE) as server,
    ):
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            text = page(options.objects, compare(options.objects, endpoint, Path(folder)))
        finally:
            server.kill()
    if options.write:
        keep_page(RESULTS, text)
    print(text)


if __name__ == "__main__":
    main()
