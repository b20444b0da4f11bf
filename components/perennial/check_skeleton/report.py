"""The report page: advice, waivers and severities, examples, figures, baselines."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue

from perennial.check_skeleton.checks.data.augmentation.augmentation import is_augmenting
from perennial.check_skeleton.checks.data.augmentation.mixing import augment_copy
from perennial.check_skeleton.subject import Subject
from perennial.check_skeleton.verdict import (
    CURVES,
    DEPENDENCIES,
    PREDICTION_PATHS,
    format_verdict,
    list_contract_changes,
)
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.data.pictures import encode_png
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

EXAMPLES = 8
PICTURE_PIXELS = 96


@dataclass(frozen=True)
class Preview:
    """The examples that the report shows."""

    header: tuple[str, ...]  # `describe`'s keys
    rows: tuple[tuple[str, ...], ...]  # one example each
    # Name, type, shape, smallest, mean and largest value of each tensor.
    tensors: tuple[tuple[str, ...], ...]
    # An inline SVG of the task's pictures, or of an input that looks like them; else empty.
    pictures: str = ""
    # These examples once augmented; empty for tasks that do not augment.
    augmented_rows: tuple[tuple[str, ...], ...] = ()
    augmented_pictures: str = ""  # their pictures


def build_page(
    report: SkeletonReport, preview: Preview, notes: Sequence[str], tolerance: float
) -> Page:
    """Build the page of the results, the examples right before the model and the baselines.

    The first loss may lie this far from theory, as a share of it.
    """
    results = sorted(report.results, key=lambda r: _WORST_FIRST.index(_choose_outcome(r)))
    worst = _choose_outcome(results[0]) if results else "passed"
    outcome: Outcome = "passed" if worst == "neutral" else worst
    page = Page("Sanity checks", outcome=outcome, summary=format_verdict(report))
    _show_findings(page, results)
    rows = [(result.check, each) for result in results for each in list_contract_changes(result)]
    if rows:
        page.table(("check", "set by the contract"), rows, caption="Waivers and severities")
    _show_examples(page, preview)
    _show_first_loss(page, results, tolerance)
    if figures := [figure for result in results for figure in _draw_figures(result)]:
        page.heading("Figures of the checks")
        for drawing, caption in figures:
            page.figure(drawing, caption)
    _show_baselines(page, report, notes)
    page.heading("Passed and skipped checks")
    passed = [r for r in results if r.outcome == "passed"]
    details = [(r.check, r.measured, _format_expectation(r), f"{r.seconds:.2f}") for r in passed]
    header = ("check", "measured", "expected", "seconds")
    page.folded_table(f"Passed checks ({len(passed)})", header, details)
    if skipped := [r for r in results if r.outcome == "skipped"]:
        reasons = [(r.check, r.hint) for r in skipped]
        page.folded_table(f"Skipped checks ({len(skipped)})", ("check", "why"), reasons)
    sources = [(r.check, r.source) for r in report.results if r.source]
    page.folded_table("Sources of the checks", ("check", "source"), sources)
    return page


def _show_findings(page: Page, results: Sequence[CheckResult]) -> None:
    """Show advice for each finding, worst first."""
    page.heading("What to do")
    findings = [r for r in results if r.outcome in ("failed", "warned")]
    if not findings:
        page.text("Nothing: every applicable check passed.")
        return
    page.table(
        ("check", "what to look at"),
        # One cell of three lines: side by side they would not fit a narrow screen.
        [
            (
                r.check,
                f"{r.hint}\nmeasured: {r.measured}\nexpected: {_format_expectation(r)}",
            )
            for r in findings
        ],
        outcomes=[_choose_outcome(result) for result in findings],
    )


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
    values = {name: _read_number(evidence[key]) for key, name in GAUGED.items() if key in evidence}
    if "measured" not in values:
        return
    theory = values.get("theory", math.nan)
    band = (theory * (1 - tolerance), theory * (1 + tolerance))
    page.heading("The first loss")
    page.figure(
        gauge_chart(values, x_label="loss before the first update", band=band),
        "Shaded: theory and its tolerance. A good start lies there, or at the best constant.",
    )


def _draw_figures(result: CheckResult) -> Iterator[tuple[str, str]]:
    caption = f"{result.check}: {result.measured}"
    for key, label in ((CURVES, "loss"), (PREDICTION_PATHS, "prediction")):
        if key in result.evidence:
            curves = cast("Mapping[str, Rows]", result.evidence[key])
            lines = {
                name: [(_read_number(x), _read_number(y)) for x, y in points]
                for name, points in curves.items()
            }
            yield line_chart(lines, x_label="step", y_label=label), caption
    if DEPENDENCIES in result.evidence:
        rows = cast("Rows", result.evidence[DEPENDENCIES])
        cells = [[_read_number(value) for value in row] for row in rows]
        unit = "example" if result.check == COMPARES_EXAMPLES else "position"
        yield heat_map(cells, x_label=f"input {unit}", y_label=f"output {unit}"), caption


def _read_number(value: JsonValue) -> float:
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


def _format_expectation(result: CheckResult) -> str:
    return f"{result.expected} ({result.tolerance})" if result.tolerance else result.expected


def _choose_outcome(result: CheckResult) -> Outcome:
    if result.outcome == "skipped":
        return "neutral"
    return "warned" if result.outcome == "failed" and result.waived else result.outcome


def make_preview(subject: Subject) -> Preview:
    """Decode the examples of the overfitting check: different inputs, alternating labels."""
    task, batch = subject.task, subject.balanced(EXAMPLES)
    changed = _augment(subject, batch)
    plain, augmented = _describe(task, batch), _describe(task, changed)
    # The label first: wide tables hide their last columns.
    keys = dict.fromkeys(key for example in plain for key in example)
    header = tuple(sorted(keys, key=lambda key: key not in (LABEL, task.columns.label)))
    rows, augmented_rows = (
        tuple(tuple(each.get(key, "")[:60] for key in header) for each in examples)
        for examples in (plain, augmented)
    )
    tensors = []
    for name, tensor in subject.train.items():
        form = (name, str(tensor.dtype).removeprefix("torch."), str(list(tensor.shape)))
        values = tensor.double()
        numbers = (values.min(), values.mean(), values.max()) if values.numel() else ()
        tensors.append(form + (tuple(f"{float(n):.4g}" for n in numbers) or ("", "", "")))
    pictures = _draw_pictures(task, batch, "Images as the model receives them, with labels")
    changed_pictures = _draw_pictures(task, changed, "The same images augmented, with labels")
    return Preview(header, rows, tuple(tensors), pictures, augmented_rows, changed_pictures)


def _describe(task: Task, batch: Batch) -> list[dict[str, str]]:
    """Return what the task shows of each example; of an empty batch nothing."""
    described = []
    for index in range(len(batch[LABEL]) if batch else 0):
        try:
            described.append(task.describe(batch, index))
        except Exception as error:  # user code may raise anything, and the report must be written
            described.append({"describe failed": f"{type(error).__name__}: {error}"})
    return described


def _augment(subject: Subject, batch: Batch) -> Batch:
    """Return the examples after augmentation; empty where there is nothing to show."""
    if not is_augmenting(subject.task):
        return {}
    try:
        changed = augment_copy(subject.task, batch, subject.seed)
        is_usable = {len(tensor) for tensor in changed.values()} == {len(batch[LABEL])}
    except Exception:  # user code may raise anything, and the report must be written
        return {}
    is_same = all(name in batch and torch.equal(t, batch[name]) for name, t in changed.items())
    return changed if is_usable and LABEL in changed and not is_same else {}


def _collect_pixels(task: Task, batch: Batch) -> list[NDArray[np.uint8] | None]:
    """Return the task's own pictures of the examples, or any input that looks like pictures."""
    try:
        own = [task.picture(batch, index) for index in range(len(batch[LABEL]))]
    except Exception:  # user code may raise anything, and the report must be written
        own = []
    if any(picture is not None for picture in own):
        return own
    for images in inputs_of(batch).values():
        pixels = images.unsqueeze(1) if images.ndim == 3 else images
        is_picture = pixels.ndim == 4 and pixels.shape[1] in (1, 3) and min(pixels.shape[2:]) >= 4
        if is_picture and pixels.is_floating_point():
            low, high = float(pixels.min()), float(pixels.max())
            shown = ((pixels.float() - low) / max(high - low, 1e-12) * 255).byte()
            return list(shown.permute(0, 2, 3, 1).numpy())
    return []


def _draw_pictures(task: Task, batch: Batch, title: str) -> str:
    """Return the examples' pictures with labels as SVG; missing pictures leave a gap."""
    shown = _collect_pixels(task, batch) if batch else []
    if not shown:
        return ""
    labels = batch[LABEL]
    parts = [
        _draw_picture(image, f"{labels[column].item():.6g}" if labels.ndim == 1 else "", column)
        for column, image in enumerate(shown)
        if image is not None
    ]
    width, height = len(shown) * (PICTURE_PIXELS + 8), PICTURE_PIXELS + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _draw_picture(image: NDArray[np.uint8], caption: str, column: int) -> str:
    left = column * (PICTURE_PIXELS + 8)
    # Repeated pixels stay sharp; a browser would blur an image of 8 by 8. Large ones are thinned.
    step = -(-max(image.shape[:2]) // (2 * PICTURE_PIXELS))
    image = image[::step, ::step]
    factor = max(PICTURE_PIXELS // max(image.shape[:2]), 1)
    image = image.repeat(factor, axis=0).repeat(factor, axis=1)
    is_grey = image.ndim == 3 and image.shape[2] == 1
    content = base64.b64encode(encode_png(image[:, :, 0] if is_grey else image)).decode()
    return (
        f'<image x="{left}" y="0" width="{PICTURE_PIXELS}" height="{PICTURE_PIXELS}" '
        f'href="data:image/png;base64,{content}"/>'
        f'<text x="{left + PICTURE_PIXELS / 2}" y="{PICTURE_PIXELS + 16}" font-size="13" '
        f'text-anchor="middle" fill="currentColor">{escape(caption)}</text>'
    )
