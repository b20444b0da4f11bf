"""A file that is written appears whole, whoever else writes it."""

from concurrent.futures import ThreadPoolExecutor

from perennial.contracts.artifact import write_atomically


def test_threads_may_write_the_same_file_at_once(tmp_path):
    contents = [bytes([number]) * 10_000 for number in range(8)]

    def write(content):
        for _ in range(50):
            write_atomically(tmp_path / "file", content)
            assert (tmp_path / "file").read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as threads:
        list(threads.map(write, contents))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
