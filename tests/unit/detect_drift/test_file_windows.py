"""Which files are compared where there is no time column, and which are skipped."""

import numpy as np
import pytest

from perennial.contracts.block import BlockFile
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import Reference
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.detect_drift import file_windows
from perennial.detect_drift.file_windows import choose_files, merge_sketches, performance_of
from perennial.detect_drift.two_sample import cumulative_shares

DEFAULT = TriggersSection()


def names(blocks):
    return ["+".join(file.path for file in block.files) for block in blocks]


class Files:
    """Sketched files; the digest is the name unless a test sets another."""

    def __init__(self, block):
        self._block = block
        self.sketches = {}

    def add(self, name, rows=400, sha256=None, columns=None):
        columns = columns or {"x": [1.0, 2.0], "t": ["a", "b"]}
        plain = self._block(0, columns, rows=rows, label_mean=0.5)
        file = BlockFile(path=name, sha256=sha256 or name)
        place = {"start": None, "end": None, "files": (file,)}
        self.sketches[name] = plain.model_copy(update=place)

    def snapshot(self):
        files = [sketch.files[0] for sketch in self.sketches.values()]
        return Snapshot(
            data=DataSection(uri="d", label="y"), split=SplitSection(), columns={}, rows=0,
            files=tuple(
                DataFile(uri=f"d/{file.path}", size_bytes=1, sha256=file.sha256, rows=1)
                for file in files
            ),
            split_rows={},
        )  # fmt: skip

    def train(self, sketched=None):
        self.known = self.snapshot()
        blocks = tuple(self.sketches.values())
        self.reference = Reference(
            snapshot_digest="", time_max=None, rows=0, performance=(),
            blocks=blocks if sketched is None else blocks[-sketched:],
        )  # fmt: skip

    def choose(self, size=1, sketched=None):
        blocks = tuple(self.sketches.values())
        shas = [*(f.sha256 for f in self.known.files), *(b.files[0].sha256 for b in blocks)]
        return choose_files(
            self.reference, self.known, blocks if sketched is None else blocks[-sketched:],
            self.snapshot(), files_in_a_block=size,
            arrivals={sha: place for place, sha in enumerate(dict.fromkeys(shas))},
        )  # fmt: skip


@pytest.fixture
def files(block):
    """Seven files that a champion was trained on."""
    made = Files(block)
    for number in range(7):
        made.add(f"p{number}")
    made.train()
    return made


def test_windows_are_the_files_whose_bytes_the_champion_never_saw(files):
    files.add("p7")
    files.add("renamed", sha256="p2")
    files.add("p0", sha256="other bytes")
    chosen = files.choose()
    assert names(chosen.reference) == [f"p{number}" for number in range(7)]
    assert names(chosen.windows) == ["p0", "p7"]
    assert chosen.notes == ("rewritten since the champion's training, and so compared as new: p0",)
    assert chosen.reason_to_skip(DEFAULT) == ""


def test_copies_of_one_file_count_once(block):
    made = Files(block)
    for number in range(6):
        made.add(f"p{number}", sha256="same")
    made.train()
    made.add("new")
    assert "1 block of files" in made.choose().reason_to_skip(DEFAULT)


def test_groups_of_files_follow_the_reference_without_a_gap(files):
    for number in range(7, 12):
        files.add(f"p{number}")
    chosen = files.choose(size=3)
    assert names(chosen.reference) == ["p1+p2+p3", "p4+p5+p6"]
    assert names(chosen.windows) == ["p7+p8+p9"]
    assert chosen.windows[0].title == "files p7 to p9"
    assert chosen.windows[0].rows == 1200
    assert any("it has 2 of 3 files" in note for note in chosen.notes)


def test_a_thin_file_neither_alarms_nor_breaks(files):
    files.add("thin", rows=3)
    files.add("huge", rows=4_000_000)
    chosen = files.choose()
    assert names(chosen.windows) == ["huge"]
    assert any("1 of 2 new blocks of files have less than 50%" in note for note in chosen.notes)
    assert names(files.choose(size=2).windows) == ["thin+huge"]


@pytest.mark.parametrize(
    ("count", "rows", "triggers", "message"),
    [
        (1, 400, {}, "1 block of files to compare with, minimum 5"),
        (1, 400, {}, "write new data to separate files"),
        (4, 400, {}, "set data.time"),
        (8, 400, {"files_in_a_block": 2}, "lower triggers.files_in_a_block"),
        (9, 8, {}, "8 rows in the median, minimum 20: raise triggers.files_in_a_block"),
        (9, 400, {"season_days": 365}, "triggers.season_days is set, but files have no dates"),
        (2, 400, {"files_in_a_block": 3}, "fewer files than triggers.files_in_a_block (3)"),
    ],
)
def test_skipped_windows_have_a_reason_and_an_action(block, count, rows, triggers, message):
    made, section = Files(block), TriggersSection(**triggers)
    for number in range(count):
        made.add(f"p{number}", rows=rows)
    made.train()
    for number in range(3):
        made.add(f"new{number}", rows=rows)
    assert message in made.choose(section.files_in_a_block).reason_to_skip(section)


def test_without_a_new_file_drift_is_skipped(files):
    assert files.choose().reason_to_skip(DEFAULT) == "no new file since the champion's training"


def test_a_champion_whose_reference_is_of_another_kind_is_reported(files, block):
    files.add("new")
    files.reference = files.reference.model_copy(update={"blocks": ()})
    assert "registered before files were compared" in files.choose().notes[0]
    files.reference = files.reference.model_copy(update={"time_max": block(0, {"x": [1.0]}).end})
    assert "data with a time column" in files.choose().notes[0]


def test_files_that_validation_did_not_sketch_are_neither_new_nor_forgotten(files):
    files.train(sketched=6)
    for number in range(7, 10):
        files.add(f"p{number}")
    chosen = files.choose(sketched=2)
    assert names(chosen.reference) == [f"p{number}" for number in range(1, 7)]
    assert names(chosen.windows) == ["p8", "p9"]
    assert any("1 of 3 new files were not compared" in note for note in chosen.notes)


def test_of_very_many_files_the_newest_are_compared(files, monkeypatch):
    monkeypatch.setattr(file_windows, "NEWEST_REFERENCE", 6)
    monkeypatch.setattr(file_windows, "NEWEST_WINDOWS", 2)
    for number in range(7, 10):
        files.add(f"p{number}")
    chosen = files.choose()
    assert names(chosen.reference) == [f"p{number}" for number in range(1, 7)]
    assert names(chosen.windows) == ["p8", "p9"]
    assert [note.split(":")[0] for note in chosen.notes] == [
        "the newest 6 of 7 reference blocks were compared",
        "the newest 2 of 3 new blocks were compared",
    ]


def test_a_merged_sketch_is_that_of_the_rows_together(files):
    random = np.random.default_rng(0)
    parts = [random.normal(size=900), 2 + random.normal(size=300), np.full(300, 1.0)]
    for number, numbers in enumerate(parts):
        texts = ["a"] * (len(numbers) - 100) + [f"b{number}"] * 90 + [None] * 10
        files.add(f"m{number}", rows=len(numbers), columns={"x": numbers, "t": texts})
    merged = merge_sketches([files.sketches[f"m{number}"] for number in range(3)])
    together = np.sort(np.concatenate(parts))
    quantiles = merged.numeric["x"].quantiles
    assert (quantiles[0], quantiles[-1]) == pytest.approx((together[0], together[-1]))
    grid = np.linspace(-2, 4, 50)
    shares = cumulative_shares(quantiles, grid, "right")
    assert shares == pytest.approx(np.searchsorted(together, grid, "right") / 1500, abs=0.02)
    text = merged.categorical["t"]
    assert (text.counts["a"], text.counts["b1"], text.nulls) == (1200, 90, 30)
    assert (merged.rows, merged.label_mean) == (1500, 0.5)


def test_a_block_without_any_known_value_merges(files):
    empty = {"x": [np.nan], "t": [None]}
    files.add("e0", columns=empty)
    files.add("e1", columns=empty)
    merged = merge_sketches([files.sketches["e0"], files.sketches["e1"]])
    assert merged.numeric["x"].quantiles == ()


def test_the_loss_of_a_group_is_the_mean_over_its_rows(files):
    part = [
        BlockPerformance(files=files.sketches[f"p{n}"].files, rows=rows, loss=loss)
        for n, rows, loss in ((4, 30, 1.0), (5, 10, 2.0))
    ]
    files.add("p7")
    chosen = files.choose(size=3)
    (found,) = performance_of(part, chosen.reference)
    assert (found.files, found.rows, found.loss) == (chosen.reference[1].files, 40, 1.25)
