"""One rule selects the files of the dataset; files that may hold rows are never ignored silently."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from perennial.clients.object_store import open_store
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.data.partitions import find_partitions, refuse_hidden_parquet

pytestmark = pytest.mark.hostile

PARQUET = b"PAR1 rows PAR1"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A healthy dataset of one partition, with a place beside it for what links point to."""
    root = tmp_path / "data"
    (tmp_path / "elsewhere").mkdir()
    put(root / "month=1" / "a.parquet")
    return root


def put(path: Path, content: bytes = PARQUET) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def keys(root) -> list[str]:
    store = open_store(str(root))
    listing = find_partitions(store)
    refuse_hidden_parquet(store, listing)
    return [item.key for item in listing.partitions]


class TestTaken:
    @pytest.mark.parametrize(
        "name",
        ["b.PARQUET", "b.Parquet", "b.parq", "b.pq", "_year=2024/b.parquet", "x.parquet/part-0.parquet",
         "a b%20+#?[1]{2}*.parquet", "ä.parquet", "a\u0308.parquet", "a\nb.parquet", "-b.parquet",
         "k=v=w/b.parquet", "x" * 240 + ".parquet", "b.snappy.parquet"],
    )  # fmt: skip
    def test_partitions_are_recognised_by_any_spelling_of_their_ending(self, folder, name):
        put(folder / name)
        assert keys(folder) == sorted(["month=1/a.parquet", name])

    def test_what_links_point_to(self, folder, tmp_path):
        put(tmp_path / "elsewhere" / "b.parquet")
        put(tmp_path / "elsewhere" / "month" / "c.parquet")
        (folder / "b.parquet").symlink_to(tmp_path / "elsewhere" / "b.parquet")
        (folder / "month=2").symlink_to(tmp_path / "elsewhere" / "month")
        assert keys(folder) == ["b.parquet", "month=1/a.parquet", "month=2/c.parquet"]

    def test_a_dataset_that_is_a_link_itself(self, folder, tmp_path):
        (tmp_path / "link").symlink_to(folder)
        assert keys(tmp_path / "link") == ["month=1/a.parquet"]

    def test_links_that_hold_each_other_are_not_followed_round_and_round(self, folder):
        (folder / "month=1" / "up").symlink_to(folder)
        for number in range(30):  # each of them leads to the next one on two ways
            (folder / f"d{number}").mkdir()
            for way in "ab":
                (folder / f"d{number}" / way).symlink_to(folder / f"d{(number + 1) % 30}")
        assert keys(folder) == ["month=1/a.parquet"]

    @pytest.mark.parametrize("name", ["latest", "zz"])
    def test_a_link_beside_what_it_leads_to_counts_once(self, folder, name):
        (folder / name).symlink_to("month=1")
        (folder / f"{name}.parquet").symlink_to("month=1/a.parquet")
        assert keys(folder) == ["month=1/a.parquet"]
        assert find_partitions(open_store(str(folder))).ignored == {
            "a link to a folder that is listed already": [name],
            "a link to a file that is listed already": [f"{name}.parquet"],
        }

    @pytest.mark.parametrize("link", ["month=2", "aaa"])
    def test_what_lies_in_a_hidden_folder_counts_under_the_link_to_it(self, folder, link):
        """So do git-annex, and Kubernetes with mounted objects."""
        put(folder / "..2024" / "b.parquet")
        put(folder / ".store" / "month" / "c.parquet")
        (folder / "..data").symlink_to("..2024")
        (folder / "b.parquet").symlink_to("..data/b.parquet")
        (folder / link).symlink_to(".store/month")
        assert keys(folder) == sorted(["b.parquet", f"{link}/c.parquet", "month=1/a.parquet"])


class TestIgnored:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("_SUCCESS", "starts with . or _"),
            ("_metadata", "starts with . or _"),
            (".a.parquet.crc", "starts with . or _"),
            ("_temporary/0/b.parquet", "in a folder whose name starts with . or _"),
            (".cache/b.parquet", "in a folder whose name starts with . or _"),
            ("_delta_log/00.json", "log of a Delta table"),
            ("b.parquet.crc", "a checksum"),
            ("b.parquet.tmp", "a temporary file"),
            ("notes.txt", "does not end in .parquet"),
        ],
    )
    def test_it_is_counted_with_the_reason_and_a_sample(self, folder, name, reason):
        put(folder / name)
        listing = find_partitions(open_store(str(folder)))
        assert [item.key for item in listing.partitions] == ["month=1/a.parquet"]
        (line,) = listing.ignored_lines()
        assert line.startswith("1 ignored")
        assert reason in line
        assert repr(name) in line

    def test_an_empty_folder_and_a_socket_are_counted(self, folder):
        (folder / "month=2").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir(folder)  # the address of a socket is short
            listener.bind("socket")
            os.chdir(here)
        reasons = find_partitions(open_store(str(folder))).ignored
        assert reasons == {
            "an empty folder": ["month=2"],
            "neither a file nor a folder": ["socket"],
        }


def dangling(folder):
    (folder / "month=2").symlink_to("../.git/annex/objects/lost")


def own_loop(folder):
    (folder / "b.parquet").symlink_to("b.parquet")


def pipe(folder):
    os.mkfifo(folder / "b.parquet")


def hard_link(folder):
    (folder / "b.parquet").hardlink_to(folder / "month=1" / "a.parquet")


def two_links(folder):
    put(folder.parent / "elsewhere" / "b.parquet")
    for name in ("b.parquet", "c.parquet"):
        (folder / name).symlink_to(folder.parent / "elsewhere" / "b.parquet")


def as_bytes(folder):
    Path(os.fsdecode(os.fsencode(folder) + b"/b\xff.parquet")).write_bytes(PARQUET)


REFUSED = {
    "a dangling link": (dangling, "'month=2' is a link to '../.git/annex/objects/lost'"),
    "a link to itself": (own_loop, "'b.parquet' is a link"),
    "a pipe": (pipe, "'b.parquet' is neither a file nor a folder"),
    "a hard link": (hard_link, "'b.parquet' and 'month=1/a.parquet' are links to one file"),
    "two links to one file": (two_links, "'b.parquet' and 'c.parquet' are links to one file"),
    "an empty folder called x.parquet": (lambda f: (f / "x.parquet").mkdir(), "is an empty folder"),
    "a name that is not UTF-8": (as_bytes, r"b'b\xff.parquet' is not valid UTF-8"),
    "a compressed file": (lambda f: put(f / "b.parquet.gz"), "is compressed as a whole"),
    "a DVC pointer": (lambda f: put(f / "month=2.dvc", b"outs:"), "was not fetched (`dvc pull`)"),
}


class TestRefused:
    @pytest.mark.parametrize("case", REFUSED)
    def test_what_may_hold_rows_but_cannot_be_read_is_named(self, folder, case):
        spoil, message = REFUSED[case]
        spoil(folder)
        with pytest.raises(BadDataError, match=r"below data\.uri") as caught:
            keys(folder)
        assert message in caught.value.evidence

    @pytest.mark.parametrize("name", ["000000_0", "part-0", "b.parquet_1", "b.parquet "])
    def test_parquet_under_another_name_is_named(self, folder, name):
        put(folder / name)
        with pytest.raises(BadDataError, match="are Parquet under another name") as caught:
            keys(folder)
        assert repr(name) in caught.value.evidence

    def test_a_folder_that_may_not_be_read(self, as_nobody):
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)
            put(Path(place) / "a.parquet")
            (Path(place) / "month=2").mkdir(mode=0o700)
            with as_nobody, pytest.raises(BadDataError) as caught:
                keys(place)
        assert "'month=2' cannot be read: [Errno 13]" in caught.value.evidence

    def test_a_dataset_that_may_not_be_read(self, folder, as_nobody):
        folder.parent.chmod(0o700)
        with as_nobody, pytest.raises(PerennialError, match="cannot read the folder"):
            keys(folder)

    def test_a_file_in_the_datasets_place(self, folder):
        with pytest.raises(PerennialError, match="is not a folder"):
            keys(folder / "month=1" / "a.parquet")

    def test_a_link_to_nothing_in_the_datasets_place(self, tmp_path):
        (tmp_path / "data").symlink_to(tmp_path / "lost")
        with pytest.raises(PerennialError, match="is not a folder"):
            keys(tmp_path / "data")


class TestBucket:
    def test_the_rule_is_that_of_folders(self, bucket):
        store = open_store(f"{bucket}/data")
        taken = ["a b%20+#?[1]{2}*.parquet", "b.PARQUET", "k=ä=1/c.parq"]
        other = ["_SUCCESS", "_delta_log/0.json", "_x/y.parquet", "folder/", "notes.txt"]
        for key in (*taken, *other):
            store.write(key, b"" if key.endswith("/") else PARQUET[: 3 if key in other else None])
        listing = find_partitions(store)
        assert [item.key for item in listing.partitions] == sorted(taken)
        assert sorted(key for keys in listing.ignored.values() for key in keys) == sorted(other)
        refuse_hidden_parquet(store, listing)
        store.write("000000_0", PARQUET)
        with pytest.raises(BadDataError, match="are Parquet under another name"):
            refuse_hidden_parquet(store, find_partitions(store))

    @pytest.mark.parametrize("key", ["a//b.parquet", "x.parquet/"])
    def test_keys_that_are_not_paths_are_named(self, bucket, key):
        store = open_store(bucket)
        store._client.put_object(Bucket=store.bucket, Key=key, Body=PARQUET)
        with pytest.raises(BadDataError, match=r"below data\.uri") as caught:
            find_partitions(store)
        assert f"{key!r} is not a path" in caught.value.evidence
