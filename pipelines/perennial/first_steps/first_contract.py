"""First contract: `perennial init` writes one, and where needed a task, for the user's own data.

It looks at the columns, names what it took each of them for, and never overwrites a file.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from string import Template

import polars as pl
from PIL import Image
from pydantic import JsonValue

from perennial.clients.object_store import complete_file, open_store
from perennial.contract import Contract
from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.toml import toml_line
from perennial.data.partitions import find_partitions
from perennial.data.pictures import decode_picture
from perennial.first_steps.draft import ROW_ID, Column, Draft, Kind, count_words
from perennial.first_steps.first_task import CLASSIFICATION, FIRST_TASK, REGRESSION
from perennial.first_steps.series import HISTORY, choose_length, with_history
from perennial.first_steps.source_pictures import find_picture
from perennial.first_steps.source_rows import readable_source, scan_rows
from perennial.first_steps.written_dates import parse_written_dates, parse_written_values
from perennial.gate.config import GateSection
from perennial.reports.text import counted
from perennial.snapshot_data.roles import nearest
from perennial.tasks.columns.tabular_numbers import is_window
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.labels import MAX_CLASSES

CONTRACT_FILE, SCHEMA_FILE = "contract.toml", "contract.schema.json"
LABELS = ("label", "target", "y", "class", "outcome")
MODEL_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")  # as `ModelSection.name`
FEWEST_REPEATS = 20
FEWEST_ROWS = 150  # of which 15% choose the checkpoint; 16 are needed
# Rows of a category that the tabular tasks want, and the share of rows in such categories below
# which a column names rows rather than kinds of them.
ROWS_OF_A_CATEGORY, FREQUENT_SHARE = 20, 0.5
# Days of a stream below which a quarter of each month has too few test days for the gate (8).
FEWEST_DAYS = 45
# Below so many texts of so many bytes a bag of byte pairs beats an encoder of a training's own:
# log loss 0.53 and 0.67 on 1,000 reviews, in a twentieth of the time.
MANY_TEXTS, SENTENCE, PAIRS = 20_000, 40, 4000
LARGEST_SIDE = 64  # of pictures, to begin with: encoded ones take four bytes per pixel and channel
LARGEST_BATCH = {"table": 1024, "custom": 1024, "image": 128, "text": 32, "text classes": 64}
EPOCHS = {"table": 30, "custom": 30, "image": 15, "text": 3, "text classes": 20}
LEARNING_RATES = {"image": 3e-3, "text": 2e-3, "text classes": 1e-3}
TRAIN_SHARE, TEST_SHARE = 0.6, 0.25  # the defaults of [split]
PERIODS = {"month": 30.4, "quarter": 91.3, "year": 365.2}  # days
FEWEST_TIMES = 10  # of a period, of which 15% validate
TASKS = {
    "image": "perennial.tasks.image_classification:ImageClassification",
    "text": "perennial.tasks.language_modeling:CausalLanguageModel",
    "text classes": "perennial.tasks.text_classification:TextClassification",
}
SECTIONS_OF_TEXT = """
[skeleton] # one example is a hundred predictions, so few examples suffice
sample_rows = 96
batch_rows = 16
training_steps = 24
overfit_rows = 4
overfit_steps = 600
"""


def candidate_labels(kind: Kind, data: Path) -> list[str]:
    """Return the columns to choose a label from; none if one is named as labels usually are."""
    with readable_source(data):
        columns = scan_rows(kind, data)[0].collect_schema().names()
    return [] if any(name.lower() in LABELS for name in columns) else columns


def write_first_contract(
    kind: Kind,
    data: Path,
    folder: Path,
    *,
    label: str = "",
    time: str = "",
    ids: Sequence[str] = (),
    name: str = "",
) -> Iterator[str]:
    """Write contract, schema, and where needed the data as Parquet, and a task, into a folder.

    Columns and the model's name are guessed unless they are named. Yields what was taken for what.

    Raises:
        PerennialError: a file or other data are there already, or a named column does not fit.
        BadDataError: the data cannot be read or learned from.
    """
    name = name or _model_name(data)
    if not MODEL_NAME.fullmatch(name):
        near = _model_name(Path(name))
        raise PerennialError(
            f"{name!r} is not a model's name: lower-case letters, digits and inner hyphens",
            action=f"write --name {near}",
        )
    module = f"{name.replace('-', '_')}_task"  # `calendar.py` would hide Python's own module
    files = [folder / CONTRACT_FILE, *([folder / f"{module}.py"] if kind == "custom" else [])]
    _refuse_existing(files)
    with readable_source(data):
        table, notes = _scan_and_parse(kind, data)
        draft = _examine(kind, table, notes)
        _assign_roles(draft, label, time, ids)
        if kind == "image":
            _set_picture_form(draft, table, data)
        if draft.history:
            table = with_history(table, draft.time or "", draft.label, draft.history)
        uri = str(data.resolve())
        # Rows are split by a hash of their ids, or by time.
        if not (_is_folder_of_parquet(data) and (draft.ids or draft.time) and not draft.history):
            yield _write_rows(draft, table, folder / "data", data.stem)
            uri = "data"
    if data.is_dir() and data.resolve().is_relative_to(folder.resolve()):
        uri = data.resolve().relative_to(folder.resolve()).as_posix() if uri != "data" else uri
    if kind == "custom":
        parts = CLASSIFICATION if draft.columns[draft.label].is_class else REGRESSION
        write_atomically(files[1], Template(FIRST_TASK).substitute(parts).encode())
        yield f"wrote {files[1]}: the task, yours to change"
    if not (folder / SCHEMA_FILE).exists():
        write_atomically(folder / SCHEMA_FILE, schema_text().encode())
    write_atomically(files[0], _contract_text(draft, name, module, uri).encode())
    yield f"wrote {files[0]}"
    yield from (f"  {note}" for note in draft.notes)


def _scan_and_parse(kind: Kind, data: Path) -> tuple[pl.LazyFrame, list[str]]:
    """Return the rows with times and numbers in place of texts, but Parquet as it is, and notes."""
    table, notes = scan_rows(kind, data)
    if _is_folder_of_parquet(data):
        return table, notes
    parse = parse_written_values if kind in ("table", "custom") else parse_written_dates
    table, more = parse(table)
    return table, [*notes, *more]


def _write_rows(draft: Draft, table: pl.LazyFrame, folder: Path, stem: str) -> str:
    """Write the rows as Parquet, with an id if nothing identifies them; return what was written."""
    # Under a name that starts with . or _ no partition is read.
    target = folder / f"{stem.lstrip('._') or 'rows'}.parquet"
    _refuse_existing([target])
    if others := find_partitions(open_store(str(folder))).partitions:
        raise PerennialError(
            f"{folder} holds other data, which would be part of the dataset",
            evidence=f"such as {others[0].key}; nothing was written",
            action="choose another folder with --out FOLDER",
        )
    columns = counted(len(table.collect_schema()), "column")
    if not (draft.ids or draft.time):
        table = table.with_row_index(ROW_ID)
        draft.ids = [ROW_ID]
        draft.notes.append(f"ids: {ROW_ID!r}, added: no column identifies a row")
    # A run that begins meanwhile finds no half file.
    with complete_file(target) as partial:
        table.sink_parquet(partial)
    return f"wrote {target}: {counted(draft.rows, 'row')}, {columns}"


def schema_text() -> str:
    """Return the contract's JSON schema, with which editors complete and check it."""
    return json.dumps(Contract.model_json_schema(), indent=1, sort_keys=True) + "\n"


def _examine(kind: Kind, table: pl.LazyFrame, notes: list[str]) -> Draft:
    schema = table.collect_schema()
    # As the tabular tasks decide, which see the training split.
    enough = (pl.len() * TRAIN_SHARE / 200).clip(3, ROWS_OF_A_CATEGORY) / TRAIN_SHARE
    # One pass over the data for all columns, with a value for each fact of each column.
    counts = []
    for name, dtype in schema.items():
        column = pl.col(name)
        is_plain = not (dtype.is_nested() or dtype == pl.Binary)
        span = pl.lit(0.0)
        if dtype.is_integer():
            span = column.max().cast(pl.Float64) - column.min().cast(pl.Float64)
        elif dtype in (pl.Datetime, pl.Date):
            span = (column.max() - column.min()).dt.total_days().cast(pl.Float64)
        length = column.str.len_bytes().mean() if dtype == pl.String else pl.lit(0.0)
        words = count_words(column).mean() if dtype == pl.String else pl.lit(0.0)
        distinct = column.drop_nulls().n_unique() if is_plain else pl.lit(0)
        is_countable = dtype in (pl.String, pl.Categorical) or dtype.is_integer()
        rows_of_value = pl.len().over(name) if is_countable else pl.lit(0)
        counts += [
            distinct.alias(f"distinct {name}"),
            column.null_count().alias(f"nulls {name}"),
            (column.is_not_null() & (rows_of_value >= enough)).sum().alias(f"frequent {name}"),
            length.fill_null(0.0).alias(f"length {name}"),
            span.fill_null(0.0).alias(f"span {name}"),
            words.fill_null(0.0).alias(f"words {name}"),
        ]
    found = table.select(pl.len().alias("rows of all"), *counts).collect().row(0, named=True)
    rows = int(found["rows of all"])
    if rows < FEWEST_ROWS:
        raise BadDataError(
            f"{rows} rows are too few to train on and to judge by",
            evidence=f"a first contract needs {FEWEST_ROWS}",
            action="wait for more data",
        )
    facts = ("distinct", "nulls", "frequent", "length", "span", "words")
    columns = {
        name: Column(name, dtype, *(found[f"{fact} {name}"] for fact in facts))
        for name, dtype in schema.items()
    }
    return Draft(kind, columns, rows, notes=notes)


def _assign_roles(draft: Draft, label: str, time: str, ids: Sequence[str]) -> None:
    named = [("--label", label), ("--time", time if time != "none" else "")]
    for option, name in [*named, *(("--id", each) for each in ids)]:
        if name and name not in draft.columns:
            near = nearest(name, draft.columns)
            raise PerennialError(
                f"there is no column {name!r}",
                evidence=f"the columns are: {', '.join(draft.columns)}",
                action=f"write {shlex.join([option, *near])}" if near else "name one of them",
            )
    draft.label = _choose_label(draft, label)
    _choose_time(draft, time)
    draft.ids = list(ids) or _choose_ids(draft)
    taken = {draft.label, draft.time, *draft.ids, *draft.meta}
    others = [column for name, column in draft.columns.items() if name not in taken]
    if draft.kind == "image":
        _choose_picture(draft, others)
    elif draft.kind == "text" and draft.label_is_text:
        draft.features = [draft.label]
        draft.meta += [column.name for column in others]
        draft.notes.append(f"text: {draft.label!r}, {draft.columns[draft.label].length:.0f} "
                           "bytes on average; the model learns what comes next")  # fmt: skip
    elif draft.kind == "text":
        _choose_text(draft, others)
    else:
        for column in others:
            _judge_feature(draft, column)
        _choose_sentences(draft, others)
        if not set(draft.columns) - {draft.label, draft.time, *draft.ids, *draft.meta}:
            _learn_from_history(draft)


def _learn_from_history(draft: Draft) -> None:
    """Give the model the values before each row, if the rows are a series.

    Raises:
        BadDataError: they are not.
    """
    time, label = draft.columns.get(draft.time or ""), draft.columns[draft.label]
    is_series = time is not None and time.distinct == draft.rows
    if draft.kind != "table" or time is None or not is_series or label.is_class:
        raise BadDataError(
            "no column is left to learn from",
            evidence="; ".join(draft.notes),
            action="add columns that are known before the label, such as a list of the values "
            "before it",
        )
    if HISTORY in draft.columns:
        raise BadDataError(f"a column is named {HISTORY!r} already", action="rename it")
    draft.history = choose_length(draft.rows, time.span)
    draft.features = [HISTORY]
    draft.rows -= draft.history + label.nulls
    draft.options["relative_to"] = HISTORY
    draft.notes.append(f"feature: {HISTORY!r}, added: the {draft.history} values before each row")


def _choose_label(draft: Draft, wish: str) -> str:
    columns = draft.columns
    near = [name for name in columns if name.lower() in LABELS]
    label = columns[wish or near[0]] if wish or near else None
    if draft.kind == "text":
        texts = [column for column in columns.values() if column.dtype == pl.String]
        longest = max(texts, key=lambda column: column.length, default=None)
        if longest is None:
            raise PerennialError(
                "no column is a text",
                evidence=f"the columns are: {', '.join(columns)}",
                action="write the texts into a column of their own",
            )
        if label in (None, longest) or (wish and label.is_sentences):
            draft.label_is_text = True
            return wish or longest.name
    if label is None:
        raise PerennialError(
            "which column is to be predicted?",
            evidence=f"the columns are: {', '.join(columns)}",
            action="name it: --label COLUMN",
        )
    values, is_number = label.distinct, label.dtype.is_numeric() or label.dtype == pl.Boolean
    if values < 2 or not (is_number or label.is_text):
        raise BadDataError(
            f"the column {label.name!r} cannot be predicted",
            evidence=f"it is {label.dtype} with {values} different values",
            action="name another: --label COLUMN",
        )
    if label.is_text and values * ROWS_OF_A_CATEGORY > draft.rows:
        raise BadDataError(
            f"the column {label.name!r} has too many classes to learn",
            evidence=f"{values:,} different texts in {draft.rows:,} rows",
            action="name another: --label COLUMN; to learn what comes next in a text, "
            "`perennial init text`",
        )
    what = f"{values} classes" if label.is_class else "a number"
    missing = f", {label.nulls:,} rows without" if label.nulls else ""
    draft.notes.append(f"label: {label.name!r}, {what}{missing}")
    return label.name


def _choose_time(draft: Draft, wish: str) -> None:
    times = [c for c in draft.columns.values() if c.dtype in (pl.Datetime, pl.Date)]
    if wish and wish != "none":
        if draft.columns[wish] not in times:
            raise PerennialError(
                f"the column {wish!r} is not a time",
                evidence=f"it is {draft.columns[wish].dtype}",
                action="write it as a date such as 2025-01-31, or leave --time out",
            )
        draft.time = wish
    for column in times:
        if column.name == draft.time:
            continue
        is_candidate = draft.time is None and not wish and not column.is_birth
        if is_candidate and column.span >= FEWEST_DAYS and not column.nulls:
            draft.time = column.name
        else:
            why = "a date of birth" if column.is_birth else "another time"
            if is_candidate:
                few = f"its {column.span:.0f} days are too few to split by"
                why = f"{column.nulls:,} of {draft.rows:,} rows lack it" if column.nulls else few
            draft.leave_out(column.name, why)
    if draft.time:
        days = draft.columns[draft.time].span
        draft.notes.append(
            f"time: {draft.time!r}, {days:.0f} days: is it when the prediction is needed? "
            "--time names another, `--time none` none"
        )


def _choose_ids(draft: Draft) -> list[str]:
    """Return the first column that identifies a row."""
    for column in draft.columns.values():
        if column.name in (draft.label, draft.time, *draft.meta) or column.nulls:
            continue
        # Integers without a gap count rows.
        # So do those with gaps, where as many measurements in that range would repeat some: their
        # expected number of repeated pairs is half of rows² / range.
        counts = column.dtype.is_integer() and draft.rows**2 > FEWEST_REPEATS * 2 * column.span
        is_kind = column.is_identifier or column.name == ROW_ID or column.dtype == pl.String
        if column.distinct == draft.rows and (counts or is_kind) and not column.is_sentences:
            draft.notes.append(f"ids: {column.name!r}, another value in every row")
            return [column.name]
    return []


def _judge_feature(draft: Draft, column: Column) -> None:
    """Give a column of a table to the model, or say why not."""
    # An identifier with few rows each is memorised, not learned.
    few_rows_each = column.frequent < FREQUENT_SHARE * (draft.rows - column.nulls)
    if is_window(column.dtype) and draft.kind == "table":
        draft.notes.append(f"feature: {column.name!r}, windows of numbers")
    elif not (column.is_text or column.dtype.is_numeric() or column.dtype == pl.Boolean):
        draft.leave_out(column.name, f"{column.dtype} is neither a number nor a category")
    elif column.distinct < 2:
        draft.leave_out(column.name, "it has one value" if column.distinct else "it has no value")
    elif (column.is_text or column.is_identifier) and few_rows_each:
        draft.leave_out(column.name, f"{column.distinct:,} values are too many for a category")
    elif column.is_identifier and not column.is_text:
        coded = draft.options.setdefault("categorical", [])
        if isinstance(coded, list):
            coded.append(column.name)


def _choose_sentences(draft: Draft, others: Sequence[Column]) -> None:
    """Give the model the one column of texts, if classes are to be predicted and nothing else."""
    texts = [column for column in others if column.is_sentences]
    if draft.kind != "table" or len(texts) != 1 or not draft.columns[draft.label].is_class:
        return
    (text,) = texts
    if not {column.name for column in others} <= set(draft.meta):
        draft.notes.append(f"to learn from {text.name!r} alone: `perennial init text`")
        return
    draft.meta.remove(text.name)
    draft.notes = [note for note in draft.notes if not note.startswith(f"meta: {text.name!r},")]
    _learn_from_text(draft, text)


def _choose_text(draft: Draft, others: Sequence[Column]) -> None:
    """Give the model the longest text, and nothing else, to predict a class."""
    if not draft.columns[draft.label].is_class:
        raise BadDataError(
            f"the column {draft.label!r} cannot be predicted from a text",
            evidence=f"{draft.columns[draft.label].distinct:,} different numbers are amounts",
            action="name a column of classes: --label COLUMN; amounts are for `init table`",
        )
    texts = [column for column in others if column.dtype == pl.String]
    if not texts:
        raise BadDataError(
            "no column of texts is left to learn from",
            evidence=f"the columns are: {', '.join(draft.columns)}",
            action="add one beside the label",
        )
    text = max(texts, key=lambda column: column.length)
    if left := [column.name for column in others if column is not text]:
        draft.meta += left
        draft.notes.append(f"meta: {', '.join(map(repr, left))}, as the model learns from one text")
    _learn_from_text(draft, text)


def _learn_from_text(draft: Draft, text: Column) -> None:
    draft.text = text.name
    draft.features = [text.name]
    draft.notes.append(f"text: {text.name!r}, {text.length:.0f} bytes on average")
    # A byte is a token. Twice the mean, so that few texts are cut.
    room = 2 ** math.ceil(math.log2(2 * max(text.length, 1.0)))
    if draft.rows < MANY_TEXTS and text.length >= SENTENCE:
        if find_spec("tokenizers"):
            room //= 2  # a pair is two bytes or more
            draft.options |= {"layers": 0, "vocab_size": PAIRS}
            draft.notes.append("few texts: their words are read, not their order (layers = 0)")
        else:
            draft.notes.append(
                "few texts are learned better from byte pairs: pip install 'perennial[text]', and "
                "`perennial init` again"
            )
    draft.options["context_length"] = min(max(room, 32), 512)


def _choose_picture(draft: Draft, others: Sequence[Column]) -> None:
    pictures = [
        c for c in others if c.dtype == pl.Binary or isinstance(c.dtype, pl.List | pl.Array)
    ]
    if not pictures:
        raise BadDataError(
            "no column holds pictures",
            evidence=", ".join(f"{c.name} is {c.dtype}" for c in others),
            action="write bytes of pictures, lists of numbers, or paths that end in .png or .jpg",
        )
    picture = pictures[0]
    draft.features = [picture.name]
    draft.meta += [column.name for column in others if column is not picture]
    draft.notes.append(f"picture: {picture.name!r}")


def _set_picture_form(draft: Draft, table: pl.LazyFrame, data: Path) -> None:
    """Note the form of pictures: of lists their shape, of files of several sizes one size."""
    # A sample: reading every picture of a large folder would take minutes.
    values = table.select(draft.features[0]).drop_nulls().head(256).collect().to_series()
    if values.dtype != pl.Binary:
        length = len(values[0])
        # Three times a square is never a square, so the number of values decides.
        channels = 1 if math.isqrt(length) ** 2 == length else 3
        side = math.isqrt(length // channels)
        if side * side * channels != length:
            raise BadDataError(
                f"the pictures in {draft.features[0]!r} are not square",
                evidence=f"{length} numbers",
                action="write [model.options] shape = [HEIGHT, WIDTH] by hand, or PNG bytes",
            )
        draft.options["shape"] = [side, side, *([3] if channels == 3 else [])]
        return
    sizes = set()
    for row, content in enumerate(values):
        try:
            with Image.open(BytesIO(content)) as picture:
                sizes.add(picture.size)
                if picture.mode in ("L", "RGB"):
                    continue
            decode_picture(content)  # refuses those of more than eight bits
        except (OSError, BadDataError):
            place = find_picture(data, content) or f"picture {row} in {draft.features[0]!r}"
            decode_picture(content, place)
            raise
    largest = max(max(size) for size in sizes)
    if len(sizes) > 1 or largest > LARGEST_SIDE:
        side = min(LARGEST_SIDE, largest)
        draft.options["size"] = [side, side]
        draft.notes.append(f"pictures are scaled to {side} x {side} pixels")


def _is_folder_of_parquet(data: Path) -> bool:
    """Whether the data can be used where they are."""
    return data.is_dir() and any(data.rglob("*.p*q*"))


def _refuse_existing(files: Sequence[Path]) -> None:
    if found := [file for file in files if file.exists()]:
        raise PerennialError(
            f"{found[0]} exists already",
            evidence="nothing was written",
            action="choose another folder with --out FOLDER, or move the file away",
        )


def _model_name(data: Path) -> str:
    """Return a model's name made of a file's: a letter, then letters, digits, hyphens."""
    stem = data.resolve().stem
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"model-{name}".strip("-")


def _contract_text(draft: Draft, name: str, module: str, uri: str) -> str:
    is_class = draft.columns[draft.label].is_class
    table = "TabularClassification" if is_class else "TabularRegression"
    tasks = TASKS | {"table": f"perennial.tasks.tabular:{table}", "custom": f"{module}:FirstTask"}
    options = {} if draft.kind == "custom" else draft.options
    if draft.label_is_text:
        options = {"context_length": 128, "width": 96, "layers": 3, "heads": 3}
    model: dict[str, JsonValue] = {"name": name, "task": tasks[draft.recipe]}
    model |= {"options": options} if options else {}
    data: dict[str, JsonValue] = {"uri": uri, "label": draft.label}
    roles = {"time": draft.time, "ids": draft.ids, "features": draft.features, "meta": draft.meta}
    data |= {role: value for role, value in roles.items() if value}  # type: ignore[misc]
    if draft.label_is_text or draft.text:
        data["text"] = list(draft.features)
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        f"# Written by `perennial init {draft.kind}`; `perennial options` explains every option.",
        "",
        "[model]",
        *(toml_line(key, value) for key, value in model.items()),
        "",
        "[data]",
        *(toml_line(key, value) for key, value in data.items()),
        *(SECTIONS_OF_TEXT.splitlines() if draft.label_is_text else []),
        *_split_lines(draft),
        "",
        "[training]",
        *_training_lines(draft),
    ]
    if draft.kind == "image":
        lines += ["", "[selection] # evaluations of small splits often share one accuracy"]
        lines += [toml_line("metric", "log_loss")]
    return "\n".join([*lines, *_limit_lines(draft)]) + "\n"


def _split_lines(draft: Draft) -> list[str]:
    """Return the period that is cut, if a month holds too few times to be: monthly, weekly data."""
    if not draft.time:
        return []
    column = draft.columns[draft.time]
    times = {name: column.distinct / column.span * days for name, days in PERIODS.items()}
    period = next((name for name in PERIODS if times[name] >= FEWEST_TIMES), "month")
    return (
        []
        if period == "month"
        else ["", "[split]", f'period = "{period}"  # a month holds {times["month"]:.0f} times']
    )


def _limit_lines(draft: Draft) -> list[str]:
    """Return limits for data that the defaults would refuse; each states why."""
    lines = []
    gate, expectations = GateSection(), ExpectationsSection()
    label = draft.columns.get(draft.label)
    if label and not label.is_class and label.dtype.is_numeric() and label.distinct <= MAX_CLASSES:
        guess = f"up to {MAX_CLASSES} whole numbers are taken for classes"
        lines.append(f'label_kind = "number"  # {guess}')
    if draft.rows < expectations.min_rows:
        few = f"fewer than the usual {expectations.min_rows}"
        lines.append(f"min_rows = {draft.rows}  # {few}")
    if lines:
        lines = ["", "[expectations]", *lines]
    # A share by hash or by days is not exact, and one of twelve months still less so.
    test_rows = int(draft.rows * TEST_SHARE * (0.6 if _split_lines(draft) else 0.8))
    if test_rows < gate.min_test_rows:
        few = f"intervals are wide below the usual {gate.min_test_rows}"
        lines += ["", "[gate]", f"min_test_rows = {test_rows}  # {few}"]
    return lines


def _training_lines(draft: Draft) -> list[str]:
    train = draft.rows * TRAIN_SHARE
    largest = LARGEST_BATCH[draft.recipe]
    # A power of two of which an epoch has eight or more, and 200 to 2,000 updates of it.
    batch = min(max(2 ** int(math.log2(train / 8)), 16), largest)
    steps = round(min(max(EPOCHS[draft.recipe] * train / batch, 200), 2000), -1)
    options: dict[str, JsonValue] = {
        "steps": int(steps),
        "evaluate_every_steps": int(steps) // 10,
        "global_batch_size": batch,
        "micro_batch_size": batch // 2,
    }
    if draft.kind == "image":
        options["normalization"] = {"batch_norm": "sync"}
    if draft.recipe in LEARNING_RATES:
        options["optimizer"] = {"learning_rate": LEARNING_RATES[draft.recipe]}
    return [toml_line(key, value) for key, value in options.items()]
