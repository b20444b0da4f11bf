"""The report page: advice, waivers and severities, examples, figures, baselines."""

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from perennial.check_skeleton.checks.data.augmentation import augment_copy, is_augmenting
from perennial.check_skeleton.subject import Subject
from perennial.check_skeleton.verdict import (
    CURVES,
    DEPENDENCIES,
    PREDICTION_PATHS,
    format_verdict,
    list_contract_changes,
)
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.engine.task import LABEL, Batch, Task, inputs_of
from perennial.reports.charts import gauge_chart, line_chart
from perennial.reports.heat_map import heat_map
from perennial.reports.page import Outcome, Page

_WORST_FIRST: Sequence[Outcome] = ("failed", "warned", "passed", "neutral")
GAUGED = MappingProxyType(
    {"theory": "theory", "initial_loss": "measured", "best_constant": "best constant"}
)
"""Key of evidence about the first loss → its name on the scale."""
# Checks that compare whole examples; all others with a map compare positions in a sequence.
COMPARES_EXAMPLES = "example_independence"

Rows: TypeAlias = Sequence[Sequence[JsonValue]]

NOTHING = "not measured"
EXAMPLES = 8
PICTURE_PIXELS = 96


@dataclass(frozen=True)
class Preview:
    """The examples that the report shows.

    Attributes:
        header: `describe`'s keys.
        rows: One example each.
        tensors: Name, type, shape, smallest, mean and largest value of each tensor.
        pictures: An inline SVG of the task's pictures, or of an input that looks like them; else
            empty.
        augmented_rows: The same examples once augmented; empty for tasks that do not augment.
        augmented_pictures: Their pictures.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tensors: tuple[tuple[str, ...], ...]
    pictures: str = ""
    augmented_rows: tuple[tuple[str, ...], ...] = ()
    augmented_pictures: str = ""


def build_page(
    report: SkeletonReport, preview: Preview, notes: Sequence[str], tolerance: float
) -> Page:
    """Build the page.

    Args:
        report: The results.
        preview: The examples right before the model.
        notes: About the baselines.
        tolerance: How far from theory the first loss may lie, as a share of it.
    """
    results = sorted(report.results, key=lambda r: _WORST_FIRST.index(_weight(r)))
    page = Page("Sanity checks", outcome=_weight_of_all(report), summary=format_verdict(report))
    _show_findings(page, results)
    _show_agreements(page, results)
    _show_examples(page, preview)
    _show_first_loss(page, results, tolerance)
    _show_figures(page, results)
    _show_baselines(page, report, notes)
    page.heading("Passed and skipped checks")
    passed = [r for r in results if r.outcome == "passed"]
    page.folded_table(
        f"Passed checks ({len(passed)})",
        ("check", "measured", "expected", "seconds"),
        [(r.check, r.measured, _expectation(r), f"{r.seconds:.2f}") for r in passed],
    )
    skipped = [r for r in results if r.outcome == "skipped" and not r.is_unmeasured]
    if skipped:
        page.folded_table(
            f"Skipped checks ({len(skipped)})",
            ("check", "why"),
            [(r.check, r.hint) for r in skipped],
        )
    sources = [(r.check, r.source) for r in report.results if r.source]
    page.folded_table("Sources of the checks", ("check", "source"), sources)
    return page


def _show_findings(page: Page, results: Sequence[CheckResult]) -> None:
    """Show advice for each finding, worst first."""
    page.heading("What to do")
    findings = [r for r in results if r.outcome in ("failed", "warned") or r.is_unmeasured]
    if not findings:
        page.text("Nothing: every applicable check passed.")
        return
    page.table(
        ("check", "what to look at"),
        # One cell of three lines: side by side they would not fit a narrow screen.
        [
            (r.check, f"{r.hint}\nmeasured: {r.measured or NOTHING}\nexpected: {_expectation(r)}")
            for r in findings
        ],
        outcomes=[_weight(result) for result in findings],
    )


def _show_agreements(page: Page, results: Sequence[CheckResult]) -> None:
    rows = [(result.check, each) for result in results for each in list_contract_changes(result)]
    if rows:
        page.table(("check", "set by the contract"), rows, caption="Waivers and severities")


def _show_examples(page: Page, preview: Preview) -> None:
    page.heading("Inputs right before the model")
    if preview.pictures:
        page.figure(preview.pictures, "The first examples as the model receives them")
    if preview.augmented_pictures:
        page.figure(preview.augmented_pictures, "The same examples after augmentation")
    page.table(preview.header, preview.rows, caption="Examples decoded from their tensors")
    if preview.augmented_rows and not preview.augmented_pictures:
        page.table(preview.header, preview.augmented_rows, caption="The same after augmentation")
    page.table(
        ("tensor", "type", "shape", "min", "mean", "max"), preview.tensors, caption="Tensors"
    )


def _show_first_loss(page: Page, results: Sequence[CheckResult], tolerance: float) -> None:
    """Show the first loss between theory and the best loss of a constant output."""
    evidence = {key: value for result in results for key, value in result.evidence.items()}
    values = {name: _number(evidence[key]) for key, name in GAUGED.items() if key in evidence}
    if "measured" not in values:
        return
    theory = values.get("theory", math.nan)
    band = (theory * (1 - tolerance), theory * (1 + tolerance))
    page.heading("The first loss")
    page.figure(
        gauge_chart(values, x_label="loss before the first update", band=band),
        "Shaded: theory and its tolerance. A good start lies there, or at the best constant.",
    )


def _show_figures(page: Page, results: Sequence[CheckResult]) -> None:
    figures = [figure for result in results for figure in _figures(result)]
    if figures:
        page.heading("Figures of the checks")
    for drawing, caption in figures:
        page.figure(drawing, caption)


def _figures(result: CheckResult) -> Iterator[tuple[str, str]]:
    caption = f"{result.check}: {result.measured}"
    for key, label in ((CURVES, "loss"), (PREDICTION_PATHS, "prediction")):
        if key in result.evidence:
            curves = cast("Mapping[str, Rows]", result.evidence[key])
            lines = {
                name: [(_number(x), _number(y)) for x, y in points]
                for name, points in curves.items()
            }
            yield line_chart(lines, x_label="step", y_label=label), caption
    if DEPENDENCIES in result.evidence:
        rows = cast("Rows", result.evidence[DEPENDENCIES])
        cells = [[_number(value) for value in row] for row in rows]
        unit = "example" if result.check == COMPARES_EXAMPLES else "position"
        yield heat_map(cells, x_label=f"input {unit}", y_label=f"output {unit}"), caption


def _number(value: JsonValue) -> float:
    """Return a number of the evidence; null, which stands for a non-finite one, becomes NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def _show_baselines(page: Page, report: SkeletonReport, notes: Sequence[str]) -> None:
    page.heading("Baselines on the test split")
    metrics = sorted({name for scores in report.baselines.values() for name in scores})
    if report.baselines:
        page.table(
            ("baseline", *metrics),
            [
                (name, *(f"{scores[m]:.4g}" if m in scores else "" for m in metrics))
                for name, scores in report.baselines.items()
            ],
            caption="A model that does not beat these has learned nothing from its inputs",
        )
    for note in notes:
        page.text(note)


def _expectation(result: CheckResult) -> str:
    return f"{result.expected} ({result.tolerance})" if result.tolerance else result.expected


def _weight(result: CheckResult) -> Outcome:
    if result.outcome == "skipped":
        return "warned" if result.is_unmeasured else "neutral"
    return "warned" if result.outcome == "failed" and result.waived else result.outcome


def _weight_of_all(report: SkeletonReport) -> Outcome:
    weights = {_weight(result) for result in report.results}
    return next((each for each in ("failed", "warned") if each in weights), "passed")


def preview(subject: Subject) -> Preview:
    """Decode the examples of the overfitting check: different inputs, alternating labels."""
    batch = subject.balanced(EXAMPLES)
    examples = _decoded(subject.task, batch)
    # The label first: wide tables hide their last columns.
    keys = dict.fromkeys(key for example in examples for key in example)
    header = tuple(sorted(keys, key=lambda key: key not in (LABEL, subject.task.columns.label)))
    changed = _augmented(subject, batch)
    return Preview(
        header,
        _rows(examples, header),
        _tensor_table(subject.train),
        _pictures(subject.task, batch, "Images as the model receives them, with labels"),
        _rows(_decoded(subject.task, changed), header) if changed else (),
        _pictures(subject.task, changed, "The same images augmented, with labels"),
    )


def _augmented(subject: Subject, batch: Batch) -> Batch:
    """Return the examples after augmentation; empty where there is nothing to show."""
    if not is_augmenting(subject.task):
        return {}
    try:
        changed = augment_copy(subject.task, batch, subject.seed)
        is_usable = {len(tensor) for tensor in changed.values()} == {_count(batch)}
    except Exception:  # user code may raise anything, and the report must be written
        return {}
    is_same = all(name in batch and torch.equal(t, batch[name]) for name, t in changed.items())
    return changed if is_usable and LABEL in changed and not is_same else {}


def _count(batch: Batch) -> int:
    return len(batch[LABEL])


def _decoded(task: Task, batch: Batch) -> list[dict[str, str]]:
    return [_described(task, batch, index) for index in range(_count(batch))]


def _rows(examples: Sequence[dict[str, str]], header: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(example.get(key, "")[:60] for key in header) for example in examples)


def _described(task: Task, batch: Batch, index: int) -> dict[str, str]:
    try:
        return task.describe(batch, index)
    except Exception as error:  # user code may raise anything, and the report must be written
        return {"describe failed": f"{type(error).__name__}: {error}"}


def _tensor_table(batch: Batch) -> tuple[tuple[str, ...], ...]:
    table = []
    for name, tensor in batch.items():
        form = (name, str(tensor.dtype).removeprefix("torch."), str(list(tensor.shape)))
        values = tensor.double()
        numbers = (values.min(), values.mean(), values.max()) if values.numel() else ()
        table.append(form + (tuple(f"{float(n):.4g}" for n in numbers) or ("", "", "")))
    return tuple(table)


def _pixels(task: Task, batch: Batch) -> list[NDArray[np.uint8] | None]:
    """Return the task's own pictures of the examples, or any input that looks like pictures."""
    try:
        own = [task.picture(batch, index) for index in range(_count(batch))]
    except Exception:  # user code may raise anything, and the report must be written
        own = []
    if any(picture is not None for picture in own):
        return own
    images = next((t for t in inputs_of(batch).values() if _looks_like_images(t)), None)
    if images is None:
        return []
    pixels = images.float()
    pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels
    low, high = float(pixels.min()), float(pixels.max())
    shown = ((pixels - low) / max(high - low, 1e-12) * 255).byte().permute(0, 2, 3, 1)
    return list(shown.numpy())


def _pictures(task: Task, batch: Batch, title: str) -> str:
    """Return the examples' pictures with labels as SVG; missing pictures leave a gap."""
    shown = _pixels(task, batch) if batch else []
    if not shown:
        return ""
    labels = batch[LABEL]
    parts = [
        _picture(image, f"{labels[column].item():.6g}" if labels.ndim == 1 else "", column)
        for column, image in enumerate(shown)
        if image is not None
    ]
    width, height = len(shown) * (PICTURE_PIXELS + 8), PICTURE_PIXELS + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _looks_like_images(tensor: Tensor) -> bool:
    channels_first = tensor.ndim == 4 and tensor.shape[1] in (1, 3)
    grey = tensor.ndim == 3
    return tensor.is_floating_point() and (channels_first or grey) and min(tensor.shape[-2:]) >= 4


def _picture(image: NDArray[np.uint8], caption: str, column: int) -> str:
    left = column * (PICTURE_PIXELS + 8)
    # Repeated pixels stay sharp; a browser would blur an image of 8 by 8. Large ones are thinned.
    image = image if image.ndim == 3 else image[:, :, None]
    step = -(-max(image.shape[:2]) // (2 * PICTURE_PIXELS))
    image = image[::step, ::step]
    factor = max(PICTURE_PIXELS // max(image.shape[:2]), 1)
    content = base64.b64encode(png(image.repeat(factor, axis=0).repeat(factor, axis=1))).decode()
    return (
        f'<image x="{left}" y="0" width="{PICTURE_PIXELS}" height="{PICTURE_PIXELS}" '
        f'href="data:image/png;base64,{content}"/>'
        f'<text x="{left + PICTURE_PIXELS / 2}" y="{PICTURE_PIXELS + 16}" font-size="13" '
        f'text-anchor="middle" fill="currentColor">{escape(caption)}</text>'
    )


def png(image: NDArray[np.uint8]) -> bytes:
    """Encode an image [H, W, 1] or [H, W, 3] as PNG, without an imaging library."""
    height, width, channels = image.shape
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    colour = 0 if channels == 1 else 2
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0),
        b"IDAT": zlib.compress(lines),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
