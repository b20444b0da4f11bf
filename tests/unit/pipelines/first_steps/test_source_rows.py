# ruff: noqa: RUF001 - Chinese punctuation
"""The layouts in which people keep their tables, texts and pictures: `perennial init` reads them."""

import csv
import json
import tomllib

import numpy as np
import polars as pl
import pytest
from PIL import Image

from perennial.cli import main

ROWS = 200
TEXTS = [f"my parcel number {row} has not yet arrived" for row in range(ROWS)]
CLASSES = [("spam", "ham")[row % 2] for row in range(ROWS)]


@pytest.fixture
def init(tmp_path, capsys):
    """Runs `init`; gives the contract, the rows as stored, and what was printed."""

    def run(kind, data, *arguments, code=0):
        out = tmp_path / "my own"
        assert main(["init", kind, str(data), "--out", str(out), *arguments]) == code
        printed = capsys.readouterr()
        if code:
            return {}, pl.DataFrame(), printed.err
        assert f"perennial run '{out}/contract.toml'" in printed.out
        contract = tomllib.loads((out / "contract.toml").read_text())
        return contract, pl.read_parquet(out / "data"), printed.out

    return run


@pytest.mark.parametrize("code", ["cp1252", "utf-16"])
def test_a_csv_of_a_spreadsheet_is_read_in_its_own_code(code, tmp_path, init):
    lines = [f"{kind},Café {text} £5" for kind, text in zip(CLASSES, TEXTS, strict=True)]
    (tmp_path / "x.csv").write_bytes("\n".join(["kind,message", *lines]).encode(code))
    _, rows, printed = init("table", tmp_path / "x.csv", "--label", "kind")
    assert rows["message"][0] == f"Café {TEXTS[0]} £5"
    assert "as it is not UTF-8" in printed


@pytest.mark.parametrize(
    "texts",
    [
        ['"Go" they said, and left', 'it was "fine" for all of us', '"what a day it has been'],
        ["I am so happy to be here!", 'it was "fine" for all of us', 'what a day it has been!"'],
    ],
)
def test_quotes_that_enclose_no_cell_are_text(texts, tmp_path, init):
    lines = [f"{texts[row % 3]}\t{row % 2}" for row in range(ROWS)]
    (tmp_path / "x.tsv").write_text("\n".join(["review\tliked", *lines]))
    _, rows, printed = init("text", tmp_path / "x.tsv", "--label", "liked")
    assert rows.height == ROWS
    assert set(rows["review"]) == set(texts)
    assert "quotes are taken for text" in printed


def test_columns_without_a_name_are_dropped_if_empty_and_named_if_not(tmp_path, init):
    lines = [f"{kind},{text},,{len(text)}," for kind, text in zip(CLASSES, TEXTS, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(["kind,text,,,", *lines]))
    contract, rows, _ = init("text", tmp_path / "x.csv", "--label", "kind")
    assert rows.columns == ["row_id", "kind", "text", "column_4"]
    assert contract["data"]["meta"] == ["column_4"]


def test_quotes_that_enclose_cells_are_none_of_the_text(tmp_path, init):
    texts = [f'{text}, "urgent"\nplease' if row % 2 else text for row, text in enumerate(TEXTS)]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "kind"), *zip(texts, CLASSES, strict=True)])
    _, rows, printed = init("text", tmp_path / "x.csv", "--label", "kind")
    assert rows["text"].to_list() == texts
    assert "quotes are taken" not in printed


def test_a_list_of_rows_in_json_is_read(tmp_path, init):
    pairs = zip(TEXTS, CLASSES, strict=True)
    rows = [{"text": text, "kind": kind} for text, kind in pairs]
    (tmp_path / "x.json").write_text(json.dumps(rows, indent=1))
    contract, _, _ = init("text", tmp_path / "x.json", "--label", "kind")
    assert contract["data"]["features"] == ["text"]


def test_texts_in_a_folder_for_each_class_are_classified(tmp_path, init):
    for row, (kind, text) in enumerate(zip(CLASSES, TEXTS, strict=True)):
        (tmp_path / "mails" / kind).mkdir(parents=True, exist_ok=True)
        (tmp_path / "mails" / kind / f"{row}.txt").write_text(text)
    contract, rows, _ = init("text", tmp_path / "mails")
    assert contract["model"]["task"].endswith("TextClassification")
    assert contract["data"]["label"] == "label"
    assert contract["data"]["features"] == ["text"]
    assert sorted(rows["text"]) == sorted(TEXTS)


def test_of_a_text_the_paragraphs_are_learned(tmp_path, init):
    (tmp_path / "book.txt").write_bytes("\r\n\r\n".join(TEXTS).encode())
    contract, rows, _ = init("text", tmp_path / "book.txt")
    assert contract["model"]["task"].endswith("CausalLanguageModel")
    assert rows["text"].to_list() == TEXTS


def test_a_class_named_beside_a_text_is_classified_though_other_columns_are_there(tmp_path, init):
    frame = pl.DataFrame({"kind": CLASSES, "text": TEXTS, "likes": range(ROWS)})
    frame.with_columns(user=pl.lit("ann")).write_csv(tmp_path / "x.csv")
    contract, _, _ = init("text", tmp_path / "x.csv", "--label", "kind")
    assert contract["model"]["task"].endswith("TextClassification")
    assert contract["data"]["features"] == ["text"]
    assert "user" in contract["data"]["meta"]


def test_a_text_that_is_named_is_what_the_model_learns_though_a_class_is_there(tmp_path, init):
    pl.DataFrame({"label": CLASSES, "text": TEXTS}).write_csv(tmp_path / "x.csv")
    contract, _, _ = init("text", tmp_path / "x.csv", "--label", "text")
    assert contract["model"]["task"].endswith("CausalLanguageModel")


def test_texts_without_spaces_are_texts_and_room_counts_their_bytes(tmp_path, init):
    texts = [f"很快，好吃，味道足，量大，送餐很及时{row}" for row in range(ROWS)]
    pl.DataFrame({"label": CLASSES, "review": texts}).write_csv(tmp_path / "x.csv")
    contract, _, _ = init("table", tmp_path / "x.csv")
    assert contract["data"]["features"] == ["review"]
    assert contract["model"]["options"]["context_length"] == 64


def test_names_without_spaces_stay_categories(tmp_path, init):
    cities = [("上海市", "北京市", "广州市")[row % 3] for row in range(ROWS)]
    pl.DataFrame({"label": CLASSES, "city": cities}).write_csv(tmp_path / "x.csv")
    contract, _, _ = init("table", tmp_path / "x.csv")
    assert contract["model"]["task"].endswith("TabularClassification")


def draw(row):
    """Return a picture that differs from those of other rows."""
    return Image.fromarray(np.full((8, 8, 3), row, dtype=np.uint8))


@pytest.mark.parametrize("ending", ["bmp", "webp", "tif", "JPG"])
@pytest.mark.parametrize("layout", ["{kind}", "train/{kind}", "{kind}/more"])
def test_pictures_are_found_at_any_depth_in_any_format(ending, layout, tmp_path, init):
    for row, kind in enumerate(CLASSES):
        deep = kind if "more" in layout else ""
        folder = tmp_path / "p" / layout.format(kind=kind) / deep
        folder.mkdir(parents=True, exist_ok=True)
        draw(row).save(folder / f"{row}.{ending}")
    contract, rows, _ = init("image", tmp_path / "p")
    assert contract["data"]["label"] == "label"
    assert set(rows["label"]) == {"spam", "ham"}
    assert rows.height == ROWS


def test_the_parts_of_a_split_data_set_are_read_together(tmp_path, init):
    for row, kind in enumerate(CLASSES):
        folder = tmp_path / "p" / ("train", "test")[row % 3 == 0] / kind
        folder.mkdir(parents=True, exist_ok=True)
        draw(row).save(folder / f"{row}.png")
    _, rows, printed = init("image", tmp_path / "p")
    assert rows.height == ROWS
    assert "test, train together" in printed


def test_the_first_word_of_a_name_is_a_class_where_no_folder_is(tmp_path, init):
    (tmp_path / "p").mkdir()
    for row, kind in enumerate(CLASSES):
        draw(row).save(tmp_path / "p" / f"{kind}.{row}.png")
    _, rows, printed = init("image", tmp_path / "p")
    assert sorted(rows["label"]) == sorted(CLASSES)
    assert "first word of each file's name" in printed


def test_names_that_tell_no_class_are_refused_with_what_to_do(tmp_path, init):
    (tmp_path / "p").mkdir()
    for row in range(ROWS):
        draw(row).save(tmp_path / "p" / f"{row}.png")
    _, _, error = init("image", tmp_path / "p", code=2)
    assert "in a folder for each class" in error


def test_a_table_names_pictures_without_folder_and_ending(tmp_path, init):
    (tmp_path / "train").mkdir()
    for row in range(ROWS):
        draw(row).save(tmp_path / "train" / f"p{row}.png")
    frame = pl.DataFrame({"id": [f"p{row}" for row in range(ROWS)], "breed": CLASSES})
    frame.write_csv(tmp_path / "train.csv")
    contract, rows, _ = init("image", tmp_path / "train.csv", "--label", "breed")
    assert contract["data"]["features"] == ["picture"]
    assert rows["picture"][3] == (tmp_path / "train" / "p3.png").read_bytes()


def test_columns_of_pixels_are_a_picture(tmp_path, init):
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 64))
    frame = pl.DataFrame(pixels, schema=[f"pixel{place}" for place in range(64)])
    frame.with_columns(label=pl.Series(CLASSES)).write_csv(tmp_path / "x.csv")
    contract, rows, _ = init("image", tmp_path / "x.csv")
    assert contract["model"]["options"]["shape"] == [8, 8]
    assert rows["picture"][5].to_list() == pixels[5].tolist()


def test_pictures_of_sixteen_bits_are_refused_before_a_run(tmp_path, init):
    for row, kind in enumerate(CLASSES):
        (tmp_path / "p" / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 300 * row, np.uint16)).save(
            tmp_path / "p" / kind / f"{row}.png"
        )
    _, _, error = init("image", tmp_path / "p", code=2)
    assert "eight bits" in error
    assert f"{tmp_path}/p/ham/1.png cannot be decoded" in error


def test_a_picture_that_is_none_is_named_by_its_file(tmp_path, init):
    for row, kind in enumerate(CLASSES):
        (tmp_path / "p" / kind).mkdir(parents=True, exist_ok=True)
        draw(row).save(tmp_path / "p" / kind / f"{row}.jpg")
    (tmp_path / "p" / "spam" / "10.jpg").write_bytes(b"<html>not found</html>")
    _, _, error = init("image", tmp_path / "p", code=2)
    assert f"{tmp_path}/p/spam/10.jpg cannot be decoded" in error
    assert "cannot identify image file" in error
    assert "BytesIO" not in error


def test_a_stray_picture_that_would_be_a_class_is_noted(tmp_path, init):
    for row, kind in enumerate(CLASSES):
        (tmp_path / "p" / kind).mkdir(parents=True, exist_ok=True)
        draw(row).save(tmp_path / "p" / kind / f"{row}.png")
    draw(3).save(tmp_path / "p" / "loose.png")
    _, _, printed = init("image", tmp_path / "p")
    assert "label: 'p' has 1 picture, such as" in printed
    assert "p/loose.png" in printed


def test_more_pictures_and_more_texts_are_imported_as_the_first_were(tmp_path, init):
    for row, (kind, text) in enumerate(zip(CLASSES, TEXTS, strict=True)):
        for part in ("first", "more"):
            folder = tmp_path / part / kind
            folder.mkdir(parents=True, exist_ok=True)
            draw(row).save(folder / f"{row}.png")
            (folder / f"{row}.txt").write_text(text)
    for kind in ("image", "text"):
        out = tmp_path / kind
        contract = str(out / "contract.toml")
        assert main(["init", kind, str(tmp_path / "first"), "--out", str(out)]) == 0
        assert main(["import", contract, str(tmp_path / "more")]) == 0
        first, more = (pl.read_parquet(out / f"data/{part}.parquet") for part in ("first", "more"))
        assert first.schema == more.schema
        value = "picture" if kind == "image" else "text"
        assert first.drop("row_id", strict=False)[value].equals(more[value])


@pytest.fixture
def pictures(tmp_path):
    """A dataset of spam and ham by folder; gives its contract, and a function that adds files."""
    for row, kind in enumerate(CLASSES):
        (tmp_path / "first" / kind).mkdir(parents=True, exist_ok=True)
        draw(row).save(tmp_path / "first" / kind / f"{row}.png")
    assert main(["init", "image", str(tmp_path / "first"), "--out", str(tmp_path / "own")]) == 0
    contract = str(tmp_path / "own" / "contract.toml")

    def add(*names, code=0, root="more"):
        for place, name in enumerate(names):
            path = tmp_path / "more" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(place).save(path)
        assert main(["import", contract, str(tmp_path / root), "--name", "more"]) == code
        if code:
            return []
        stored = pl.read_parquet(tmp_path / "own" / "data" / "more.parquet")
        return stored["label"].to_list()

    return add


@pytest.mark.parametrize("root", ["more", "more/ham"])
def test_new_pictures_of_one_class_get_the_name_of_their_folder(root, pictures):
    names = [f"ham/{('IMG', 'PXL')[row % 2]}_{row}.png" for row in range(24)]
    assert pictures(*names, root=root) == ["ham"] * 24


def test_new_pictures_are_named_by_the_word_that_is_a_class(pictures):
    assert pictures("ham.1.png", "ham.2.png", "ham.3.png") == ["ham"] * 3


def test_a_class_that_is_new_is_noted(pictures, capsys):
    assert pictures("ham/1.png", "eggs/2.png") == ["eggs", "ham"]
    assert "label: 'eggs' is new to the dataset, 1 picture" in capsys.readouterr().out


@pytest.mark.parametrize("names", [["eggs/1.png", "eggs/2.png"], ["IMG_1.png", "PXL_2.png"]])
def test_pictures_without_a_known_class_are_refused(names, pictures, capsys):
    pictures(*names, code=2)
    error = capsys.readouterr().err
    assert "neither folders nor names of the pictures are classes of the dataset" in error
    assert "'ham', 'spam'" in error
