"""A file that is written appears whole, whoever else writes it, and is read no further than needed."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from perennial.contracts.artifact import Artifact, hand_on, own_document, write_atomically


class Found(Artifact):
    """What a step found."""

    file_name = "found.json"
    text: str


class Judged(Found):
    """What the next step made of it."""

    file_name = "judged.json"


def test_threads_may_write_the_same_file_at_once(tmp_path):
    contents = [bytes([number]) * 10_000 for number in range(8)]

    def write(content):
        for _ in range(50):
            write_atomically(tmp_path / "file", content)
            assert (tmp_path / "file").read_bytes() in contents

    with ThreadPoolExecutor(len(contents)) as threads:
        list(threads.map(write, contents))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_steps_own_document_is_read_without_those_before_it(tmp_path):
    first, second = tmp_path / "found", tmp_path / "judged"
    hand_on(first, Found(text='},\n "judged": {'))
    hand_on(second, Judged(text="näher"), first)
    assert Found.from_json(own_document(first, "found")) == Found(text='},\n "judged": {')
    own, _, before = second.read_text().partition("\n")
    assert "found" in before
    second.write_text(own + "\n" + before[: len(before) // 2])
    assert Judged.from_json(own_document(second, "judged")) == Judged(text="näher")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_in_another_layout_is_read_whole(tmp_path, indent):
    file = tmp_path / "file"
    file.write_text(json.dumps({"found": {"text": "a"}, "judged": {"text": "b"}}, indent=indent))
    assert json.loads(own_document(file, "found")) == {"text": "a"}
    assert json.loads(own_document(file, "judged")) == {"text": "b"}
    with pytest.raises(KeyError):
        own_document(file, "other")


def test_a_folder_of_single_documents_is_read_too(tmp_path):
    Found(text="a").write(tmp_path)
    assert Found.from_json(own_document(tmp_path, "found")) == Found(text="a")


def test_a_torn_document_is_an_error(tmp_path):
    file = tmp_path / "file"
    hand_on(file, Found(text="a"))
    file.write_text(file.read_text()[:20])
    with pytest.raises(ValueError, match=r"char|line"):
        own_document(file, "found")
