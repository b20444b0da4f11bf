"""Streamed batches over real Parquet: the resident rows in the same order, whatever encodes them."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from dask_cluster import dask_cluster
from encoding_processes import wait_with_workers
from perennial.clients.object_store import LocalObjectStore, open_store
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.environment import DASK_SCHEDULER
from perennial.contracts.errors import BadDataError, BadTaskError, PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.data.row_groups import RowGroupReader, index_partitions, select_groups
from perennial.engine.config.training import Loading
from perennial.engine.data import block_workers, blocks, streamed
from perennial.engine.data.batching import BatchPlan
from perennial.engine.data.block_workers import BlockWorkers
from perennial.engine.data.blocks import BlockEncoder, EncoderRecipe, join_groups
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.data.preparation import (
    encode_ahead,
    encode_shard,
    encoding_identity,
    fit_streamed,
)
from perennial.engine.data.streamed import StreamedLoader, StreamedSplit
from perennial.engine.job import TrainingJob
from perennial.engine.task import WEIGHT
from tiny_training import TinyTask, tiny_section, write_partitions

SIZE = 48


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 60)


@pytest.fixture
def snapshot(tmp_path):
    return Snapshot.read(write_partitions(tmp_path / "data", [300, 7, 500], group_rows=50))


class Streaming:
    """What a rank builds its loader from."""

    def __init__(
        self, snapshot, folder: Path, *, workers=0, cache_bytes=2**30, worker_state=None, shards=""
    ):
        self.snapshot, self.folder = snapshot, folder
        self.task = TinyTask(TinyTask.Options(), snapshot.task_columns)
        self.task.fit(Dataset(snapshot).scan(Split.TRAIN))
        store = LocalObjectStore(folder / "store")
        self.groups = select_groups(snapshot, index_partitions(snapshot, store), Split.TRAIN)
        recipe = EncoderRecipe(
            snapshot=snapshot,
            model=ModelSection(name="tiny", task="tiny_training:TinyTask"),
            state=worker_state or self.task.state(),
            split=Split.TRAIN,
            cache=(folder / "cache", cache_bytes),
            identity="identity",
            shards=shards,
        )
        self.encoder = BlockEncoder(recipe, self.task)
        self.recipe = recipe
        self.workers = BlockWorkers(recipe, workers) if workers else None
        if self.workers:
            assert self.workers.processes  # before, the training encodes by itself
        self.blocks = join_groups(self.groups)
        self.split = StreamedSplit(self.blocks, self.encoder, self.workers)

    def loader(self, rank=0, ranks=1, *, ahead=0, total=float):
        loading = Loading(prefetch_batches=ahead, shuffle_rows=1).on("cpu")
        plan = BatchPlan(SIZE, SIZE, ranks)
        return StreamedLoader(
            self.task, self.split, plan, rank, seed=1, loading=loading, total=total
        )


def resident(streaming: Streaming) -> EncodedSplit:
    rows = Dataset(streaming.snapshot).scan(Split.TRAIN).collect()
    return EncodedSplit(streaming.task.encode(rows))


def joined(batches) -> dict[str, torch.Tensor]:
    parts = [part for batch in batches for part in batch.micro_batches]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize(
    ("ranks", "workers"),
    [
        (1, 0),
        (3, 0),
        (2, 1),
        *(
            pytest.param(ranks, workers, marks=pytest.mark.full)
            for ranks in (1, 2, 3, 4)
            for workers in (0, 1, 4)
        ),
    ],
)
def test_ranks_and_workers_change_no_batch(snapshot, tmp_path, ranks, workers):
    """Every batch of two epochs, against rows encoded at once and gathered in the same order."""
    machines = [Streaming(snapshot, tmp_path / "shared", workers=workers) for _ in range(ranks)]
    loaders = [each.loader(rank, ranks, ahead=rank) for rank, each in enumerate(machines)]
    whole, order = resident(machines[0]), loaders[0]._stream
    try:
        for position in range(2 * order.rows // SIZE):
            found = joined([loader.batch(position) for loader in loaders])
            expected = whole.gather(order.indices(position * SIZE, SIZE))
            for name, tensor in expected.items():
                assert torch.equal(found[name], tensor), (position, name)
    finally:
        for machine, loader in zip(machines, loaders, strict=True):
            loader.close()
            machine.split.close()


@pytest.fixture(
    params=[(0, 0), (2**20, 0), (2**20, 2**30)],
    ids=["one batch", "several batches", "several batches, from blocks in the order of use"],
)
def gathered(request, monkeypatch):
    """What is gathered at once, of larger blocks."""
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 400)
    monkeypatch.setattr(streamed, "_TURN_BYTES", request.param[0])
    monkeypatch.setattr(streamed, "_ORDERED_BYTES", request.param[1])


@pytest.mark.usefixtures("gathered")
@pytest.mark.parametrize(("ranks", "ahead"), [(1, 0), (3, 0), (1, 3)])
def test_what_is_gathered_at_once_changes_no_batch(tmp_path, ranks, ahead):
    """Three epochs, the second of them in jumps, as after batches that are left out."""
    snapshot = Snapshot.read(write_partitions(tmp_path / "data", [3_000], group_rows=400))
    machines = [Streaming(snapshot, tmp_path) for _ in range(ranks)]
    loaders = [each.loader(rank, ranks, ahead=ahead) for rank, each in enumerate(machines)]
    whole, order = resident(machines[0]), loaders[0]._stream
    epoch = order.rows // SIZE
    assert order.turns(0, 16) > 4
    for position in [*range(epoch), *range(epoch, 2 * epoch, 5), *range(2 * epoch, 3 * epoch)]:
        found = joined([loader.batch(position) for loader in loaders])
        rows = order.indices(position * SIZE, SIZE)
        for name, tensor in whole.gather(rows).items():
            assert torch.equal(found[name], tensor), (position, name)
        assert all(len(each._gathered) <= 2 * streamed._MOST_TURNS for each in loaders)
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_the_next_stage_streams_the_rows_of_the_same_split(tmp_path, workers):
    """Each stage has a loader of its own, whose blocks the same processes encode."""
    snapshot = Snapshot.read(write_partitions(tmp_path / "data", [3000], group_rows=60))
    streaming = Streaming(snapshot, tmp_path, workers=workers)
    whole, epoch = resident(streaming), streaming.split.rows // SIZE
    try:
        for position in (0, epoch // 3, 2 * epoch // 3):
            loader = streaming.loader(ahead=1)
            batch = loader.batch(position)
            assert torch.equal(joined([batch])["x"], whole.gather(batch.rows)["x"])
            loader.close()
    finally:
        streaming.split.close()


@pytest.mark.parametrize("position", [0, 9, 40])
def test_a_resumed_loader_opens_only_the_blocks_of_its_batch(snapshot, tmp_path, position):
    streaming = Streaming(snapshot, tmp_path)
    batch = streaming.loader(1, 4).batch(position)
    ends = np.cumsum([block.rows for block in streaming.blocks])
    needed = np.unique(np.searchsorted(ends, batch.rows, "right"))
    assert len(list((tmp_path / "cache").iterdir())) == len(needed) < len(streaming.blocks)


def test_the_cache_stays_within_its_limit_and_evicts_what_was_used_longest_ago(snapshot, tmp_path):
    streaming = Streaming(snapshot, tmp_path)
    streaming.loader().batch(0)
    sizes = [each.stat().st_size for each in (tmp_path / "cache").iterdir()]
    bounded = Streaming(snapshot, tmp_path / "bounded", cache_bytes=3 * max(sizes))
    loader, whole = bounded.loader(), resident(bounded)
    for position in range(30):
        batch = loader.batch(position)
        assert torch.equal(joined([batch])["x"], whole.gather(batch.rows)["x"])
        kept = [each.stat().st_size for each in (tmp_path / "bounded" / "cache").iterdir()]
        assert sum(kept) <= 3 * max(sizes)
        assert len(bounded.split._open) <= bounded.loader()._stream.lanes + streamed._KEPT_OPEN


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: content[:-1] + b"!"]
)
def test_a_damaged_block_of_the_cache_is_encoded_again(snapshot, tmp_path, damage, caplog):
    before = joined([Streaming(snapshot, tmp_path).loader().batch(0)])
    for each in (tmp_path / "cache").iterdir():
        each.write_bytes(damage(each.read_bytes()))
    after = joined([Streaming(snapshot, tmp_path).loader().batch(0)])
    assert "is damaged and will be encoded again" in caplog.text
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_more_ranks_than_blocks_at_hand_are_reported(snapshot, tmp_path, caplog):
    streaming = Streaming(snapshot, tmp_path)
    streaming.loader(0, 2)
    assert not caplog.text
    streaming.loader(0, 40)
    assert "raise training.loading.shuffle_rows" in caplog.text


def test_what_encoding_costs_is_measured(snapshot, tmp_path):
    loader = Streaming(snapshot, tmp_path).loader(0, 2)
    assert loader.encoding() is None
    loader.batch(0)
    cost = loader.encoding()
    assert (cost.rows_per_step, cost.workers) == (SIZE / 2, 0)
    assert 0.0 < cost.seconds_per_row < 1.0


def test_rows_of_the_next_block_are_read_while_one_is_encoded(snapshot, tmp_path, monkeypatch):
    """Encoding stays in the thread that asks: a task need not be safe to call from several."""
    streaming = Streaming(snapshot, tmp_path)
    threads = {"read": [], "encode": []}

    def record(name, function):
        def recorded(*arguments):
            threads[name].append(threading.current_thread().name.split("_")[0])
            return function(*arguments)

        return recorded

    monkeypatch.setattr(
        streaming.encoder._reader, "read", record("read", streaming.encoder._reader.read)
    )
    monkeypatch.setattr(streaming.task, "encode", record("encode", streaming.task.encode))
    loader = streaming.loader()
    loader.gather(0)
    ahead = ["row-reader"] * (loader._stream.lanes - 1)
    assert sorted(threads["read"]) == ["MainThread", *ahead]
    assert set(threads["encode"]) == {"MainThread"}


@pytest.mark.parametrize("ranks", [3, SIZE + 2], ids=["few", "more than rows"])
def test_weights_are_added_up_over_the_ranks(snapshot, tmp_path, monkeypatch, ranks):
    encode = TinyTask.encode
    monkeypatch.setattr(
        TinyTask, "encode", lambda self, rows: encode(self, rows) | {WEIGHT: rows_weight(rows)}
    )
    local = []
    streaming = Streaming(snapshot, tmp_path)
    for rank in range(ranks):
        loader = streaming.loader(rank, ranks, total=lambda own: local.append(own) or own)
        loader.batch(4)
    whole = joined([streaming.loader(total=float).batch(4)])
    assert sum(local) == float(whole[WEIGHT].sum(dtype=torch.float64))


def rows_weight(rows: pl.DataFrame) -> torch.Tensor:
    return torch.from_numpy((rows["id"].to_numpy() % 5 + 1).astype(np.float32))


@pytest.mark.parametrize(
    ("damage", "is_encoded"),
    [
        (lambda content: content, False),
        (lambda content: content[: len(content) // 2], True),
        (lambda content: content[:-1] + b"!", True),
    ],
)
def test_what_was_encoded_ahead_is_only_read_unless_it_is_damaged(
    snapshot, tmp_path, damage, is_encoded, caplog
):
    store = str(tmp_path / "shards")
    writer = Streaming(snapshot, tmp_path / "ahead", shards=store)
    for block in writer.blocks:
        encode_shard(writer.recipe, block)
    for each in (tmp_path / "shards").glob("encoded/identity/*"):
        each.write_bytes(damage(each.read_bytes()))

    expected = joined([Streaming(snapshot, tmp_path / "plain").loader().batch(0)])
    reader = Streaming(snapshot, tmp_path / "reader", shards=store)
    found = joined([reader.loader().batch(0)])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (reader.split.encoded_rows > 0, "damaged" in caplog.text) == (is_encoded, is_encoded)


def damage_pages(file: Path) -> None:
    """Change bytes in the middle, where the pages are; size and footer stay."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    file.write_bytes(content)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_damaged_row_group_is_named(snapshot, tmp_path, workers):
    streaming = Streaming(snapshot, tmp_path, workers=workers)
    damage_pages(Path(snapshot.files[2].uri))
    with pytest.raises(BadDataError, match=r"part-2.parquet changed .* or is damaged") as caught:
        joined([streaming.loader().batch(position) for position in range(20)])
    assert "row group" in str(caught.value)
    streaming.split.close()


def uploaded(snapshot: Snapshot, bucket: str) -> Snapshot:
    """The same snapshot of partitions in a store."""
    store = open_store(bucket)
    for file in snapshot.files:
        store.upload(Path(file.uri).name, Path(file.uri))
    files = tuple(
        file.model_copy(update={"uri": f"{bucket}/{Path(file.uri).name}"})
        for file in snapshot.files
    )
    data = snapshot.data.model_copy(update={"uri": bucket})
    return snapshot.model_copy(update={"files": files, "data": data})


def test_of_a_remote_partition_only_the_row_groups_in_use_are_read(
    snapshot, tmp_path, bucket, monkeypatch
):
    """Over the S3 protocol; the batch equals the one from local files."""
    local = Streaming(snapshot, tmp_path / "local").loader(1, 4).batch(3)
    remote = uploaded(snapshot, bucket)
    store, root, files = open_store(bucket), Path(snapshot.data.uri), remote.files
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "copies"))
    streaming = Streaming(remote, tmp_path / "remote")
    monkeypatch.setattr(Dataset, "fetch", lambda *_: pytest.fail("read a whole partition"))
    found = streaming.loader(1, 4).batch(3)
    assert torch.equal(joined([found])["x"], joined([local])["x"])

    (root / "part-2.parquet").write_bytes(b"x" * files[2].size_bytes)
    store.upload("part-2.parquet", root / "part-2.parquet")
    with pytest.raises(BadDataError, match=r"part-2.parquet changed"):
        joined([streaming.loader().batch(position) for position in range(20)])


def trial(folder: Path, name: str, **loading: int | None) -> TrainingJob:
    """Return one of the trainings that share a folder of encoded data and a store."""
    return TrainingJob(
        fingerprint=name,
        snapshot="",
        model=ModelSection(name="tiny", task="tiny_training:TinyTask"),
        training=tiny_section(loading=Loading(**loading)),
        num_processes=1,
        folder=str(folder / name),
        shared=str(folder / "shared"),
        common=str(folder / "common"),
    )


def test_trials_with_other_rows_to_fit_on_have_their_own_state(snapshot, tmp_path):
    reader = RowGroupReader(snapshot)
    indexes = index_partitions(snapshot, LocalObjectStore(tmp_path / "store"))
    whole, part, again = (
        fit_streamed(
            trial(tmp_path, name, fit_rows=rows),
            TinyTask(TinyTask.Options(), snapshot.task_columns),
            reader,
            indexes,
        )
        for name, rows in (("whole", None), ("part", 50), ("again", None))
    )
    assert whole == again != part


def test_trainings_that_fit_together_on_one_machine_keep_their_copies_of_rows(
    snapshot, tmp_path, bucket, monkeypatch
):
    """As trials of a study: the second fits and ends while the first has its rows yet to read."""
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "copies"))
    remote = uploaded(snapshot, bucket)
    reader = RowGroupReader(remote)
    indexes = index_partitions(remote, LocalObjectStore(tmp_path / "store"))
    first, second = (trial(tmp_path, name) for name in ("first", "second"))

    class Slow(TinyTask):
        def fit(self, train):
            other = TinyTask(TinyTask.Options(), remote.task_columns)
            fit_streamed(second, other, reader, indexes)
            super().fit(train)

    task = Slow(TinyTask.Options(), remote.task_columns)
    assert fit_streamed(first, task, reader, indexes) == {"mean": pytest.approx(task.mean)}


def test_a_partition_rewritten_before_it_is_indexed_is_named(snapshot, tmp_path):
    file = Path(snapshot.files[1].uri)
    pl.read_parquet(file).with_columns(pl.col("y") + 1).write_parquet(file)
    with pytest.raises(BadDataError, match=r"part-1.parquet changed after the snapshot"):
        index_partitions(snapshot, LocalObjectStore(tmp_path / "store"))


def test_what_is_known_of_a_partition_is_kept(snapshot, tmp_path, monkeypatch):
    store = LocalObjectStore(tmp_path / "store")
    found = index_partitions(snapshot, store)
    monkeypatch.setattr(Dataset, "fetch", lambda *_: pytest.fail("read again"))
    assert index_partitions(snapshot, store) == found


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_encode_names_the_row_group(snapshot, tmp_path, monkeypatch, workers):
    bad = {"mean": "not a number"}
    streaming = Streaming(snapshot, tmp_path, workers=workers, worker_state=bad)
    if not workers:
        monkeypatch.setattr(streaming.task, "encode", lambda rows: 1 / 0)
    try:
        with pytest.raises(BadTaskError, match=r"encode failed on row group \d+ of .*parquet"):
            streaming.loader().batch(0)
    finally:
        streaming.split.close()


def test_tensors_of_another_shape_in_another_block_are_named(snapshot, tmp_path, monkeypatch):
    streaming = Streaming(snapshot, tmp_path)
    encode = streaming.task.encode

    def by_first_row(rows):
        batch = encode(rows)
        return batch | {"x": batch["x"][:, : 1 + rows["id"][0] % 3]}

    monkeypatch.setattr(streaming.task, "encode", by_first_row)
    with pytest.raises(BadTaskError, match="changes the shape or type"):
        streaming.loader().batch(0)


@pytest.mark.parametrize("name", [WEIGHT, "x"])
def test_tensors_of_another_form_in_later_rows_of_a_block_are_an_error(
    snapshot, tmp_path, monkeypatch, name
):
    """A weight that the first rows lack, and inputs of another type."""
    streaming = Streaming(snapshot, tmp_path)
    encode, calls = streaming.task.encode, []

    def other_later(rows):
        calls.append(rows)
        batch = encode(rows)
        other = {name: batch.get(name, torch.ones(rows.height)).double()}
        return batch | (other if len(calls) > 1 else {})

    monkeypatch.setattr(blocks, "ENCODE_ROWS", 10)
    monkeypatch.setattr(streaming.task, "encode", other_later)
    with pytest.raises(BadTaskError, match=f"changes the shape or type of '{name}'"):
        streaming.encoder(streaming.blocks[0])


def kill(workers: BlockWorkers) -> None:
    for process in workers.processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_killed_workers_are_replaced_and_then_an_error(snapshot, tmp_path, monkeypatch):
    monkeypatch.setattr(block_workers, "MAX_RESTARTS", 1)
    streaming = Streaming(snapshot, tmp_path, workers=1)
    workers, block = streaming.workers, streaming.blocks[0]
    whole, loader = resident(streaming), streaming.loader()
    try:
        kill(workers)
        batch = loader.batch(0)
        assert torch.equal(joined([batch])["x"], whole.gather(batch.rows)["x"])
        assert workers.processes
        kill(workers)
        with pytest.raises(PerennialError, match="killed again and again"):
            workers.finish(block, workers.submit(block), "a block")
    finally:
        streaming.split.close()


def test_encoding_processes_end_with_a_training_that_is_killed(snapshot, tmp_path):
    pids = tmp_path / "pids"
    recipe = Streaming(snapshot, tmp_path).recipe
    training = multiprocessing.get_context("forkserver").Process(
        target=wait_with_workers, args=(recipe, pids)
    )
    training.start()
    wait_for(pids.exists)
    workers = [Path("/proc") / line for line in pids.read_text().splitlines()]
    assert len(workers) == 2
    assert all(each.exists() for each in workers)
    training.kill()
    wait_for(lambda: not any(each.exists() for each in workers))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("section", "changes", "is_shared"),
    [
        ("data", {"label": "x0"}, False),
        ("data", {"features": ("x0",)}, False),
        ("split", {"test_fraction": 0.3}, False),
        ("split", {"salt": "other"}, False),
        ("split", {"train_days": 7}, True),
        ("data", {"uri": "s3://elsewhere"}, True),
    ],
)
def test_encoded_rows_are_shared_under_equal_columns_and_split_rules(
    snapshot, section, changes, is_shared
):
    """Of a task without fitted state, which reads whatever columns the contract names."""
    job = TrainingJob(
        fingerprint="one",
        snapshot="",
        model=ModelSection(name="tiny", task="tiny_training:TinyTask"),
        training=tiny_section(),
        num_processes=1,
        folder="",
        contract={"code": "one"},
    )
    changed = getattr(snapshot, section).model_copy(update=changes)
    other = encoding_identity(job, snapshot.model_copy(update={section: changed}), {})
    assert (other == encoding_identity(job, snapshot, {})) is is_shared


def ahead(snapshot, folder: Path, name: str, task: str = "tiny_training:TinyTask") -> TrainingJob:
    """Return a training whose rows are encoded ahead into a store of its own."""
    return TrainingJob(
        fingerprint=name,
        snapshot=str(Path(snapshot.data.uri) / "snapshot"),
        model=ModelSection(name="tiny", task=task),
        training=tiny_section(loading={"mode": "streaming", "encode_ahead": True}),
        num_processes=1,
        folder=str(folder / name),
        common=str(folder / name / "store"),
        contract={"code": "one"},
    )


OWN_SCALE = """
from own_number import SCALE
from tiny_training import TinyTask

class Own(TinyTask):
    scale = SCALE
"""


def write_own_task(folder, scale):
    """A task, and in a module of its own a number that it imports."""
    folder.mkdir(exist_ok=True)
    (folder / "own_scale.py").write_text(OWN_SCALE)
    (folder / "own_number.py").write_text(f"SCALE = {scale}\n")


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    """A scheduler and two workers, which have a task of their own."""
    folder = tmp_path_factory.mktemp("dask")
    write_own_task(folder, 2)
    with dask_cluster(folder) as cluster:
        yield cluster


def test_dask_encodes_ahead_the_same_bytes(snapshot, tmp_path, monkeypatch, dask):
    """Through a real scheduler and two worker processes, against processes of this machine."""
    jobs = [ahead(snapshot, tmp_path, name) for name in ("here", "dask")]
    encode_ahead(jobs[0])
    # Sums over the same rows may differ in the last bit, so both take one fitted state.
    shutil.copytree(tmp_path / "here/store/fitted", tmp_path / "dask/store/fitted")
    monkeypatch.setenv(DASK_SCHEDULER, dask.address)
    encode_ahead(jobs[1])
    here, there = (
        {each.name: each.read_bytes() for each in (tmp_path / name / "store").glob("encoded/*/*")}
        for name in ("here", "dask")
    )
    assert len(here) > 5
    assert here == there


def test_a_dask_worker_with_another_task_encodes_nothing(snapshot, tmp_path, monkeypatch, dask):
    """Its blocks would be stored as those of the training's task."""
    write_own_task(tmp_path / "mine", 1)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    monkeypatch.setenv(DASK_SCHEDULER, dask.address)
    with pytest.raises(PerennialError, match="other sources of the task"):
        encode_ahead(ahead(snapshot, tmp_path, "dask", "own_scale:Own"))
    assert not [*(tmp_path / "dask" / "store").glob("encoded/*/*")]
