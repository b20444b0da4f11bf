"""Training report: the curves of a training and its checkpoints."""

from collections.abc import Mapping, Sequence
from statistics import mean, median

from perennial.contracts.memory import MemoryPlan
from perennial.contracts.training import StepPoint, TrainingResult, describe_parts
from perennial.engine.resilience.signals import HEALTHY_NORMS, LARGEST_NORM
from perennial.reports.charts import bar_chart, line_chart
from perennial.reports.page import Page
from perennial.reports.text import counted


def training_page(result: TrainingResult, summary: str) -> Page:
    """Return the page of a finished training."""
    is_warned = bool(result.signals or result.halvings or result.turned_off)
    page = Page("Train model", outcome="warned" if is_warned else "neutral", summary=summary)
    _add_notes(page, result)
    page.values(
        {
            "steps": f"{result.steps:,}",
            "parameters": f"{result.num_parameters:,}",
            "trained by": describe_parts(result.parts) or counted(result.world_size, "process"),
            **_utilization(result),
            "time": f"{result.seconds:,.0f} s",
            "resumes": result.num_resumes,
            **_troubles(result),
            "fingerprint": result.fingerprint[:16],
        }
    )
    if result.memory_plan:
        _add_memory_plan(page, result.memory_plan)
    _add_signals(page, result)
    _add_curves(page, result)
    _add_watched(page, result)
    _add_bottleneck(page, result)
    _add_evaluations(page, result)
    _add_checkpoints(page, result)
    return page


def _add_notes(page: Page, result: TrainingResult) -> None:
    """Add what makes the training another one than the contract reads, and what slows it."""
    if result.turned_off:
        page.text(
            "training.simplified = true: for debugging, and never promoted by the gate. It turned "
            f"off {'; '.join(result.turned_off)}."
        )
    for halving in result.halvings:
        page.text(
            f"Out of memory in a pass of {halving.rows:,} rows at step {halving.step:,} on rank "
            f"{halving.rank}: from the last checkpoint on, passes had up to {halving.next_rows:,} "
            "rows. Batches and their order are the same; set training.micro_batch_size = "
            f"{halving.next_rows} to save the attempt."
        )
    for hint in result.hints:
        page.text(f"{hint}.")


def _add_signals(page: Page, result: TrainingResult) -> None:
    if not result.signals:
        return
    page.heading("Signals")
    page.table(
        ["steps", "what was seen", "what helps"],
        [[each.period, each.evidence, each.remedy] for each in result.signals],
        caption="Episodes that the curves below showed, in the order in which they began.",
        outcomes=["failed" if each.to_step is None else "neutral" for each in result.signals],
    )


def _add_watched(page: Page, result: TrainingResult) -> None:
    """Draw how the predictions for the same few examples changed from evaluation to evaluation."""
    watched = result.watched
    points = [point for point in result.evaluations if point.watched]
    if watched is None or not points:
        return
    labels = [f", label {label:.3g}" for label in watched.labels] or [""] * len(watched.rows)
    lines = {
        f"row {row:,}{label}": [(float(point.step), point.watched[place]) for point in points]
        for place, (row, label) in enumerate(zip(watched.rows, labels, strict=True))
    }
    page.heading("Predictions of the same examples")
    page.figure(
        line_chart(lines, x_label="step", y_label=watched.quantity),
        f"The {watched.quantity} of {len(lines)} examples, spread evenly over the validation "
        "sample, at each evaluation; rows are positions in the split. Lines that jump up and down "
        "tell of a learning rate that is too high, lines that never move of examples that the "
        "model does not tell apart.",
    )


def _troubles(result: TrainingResult) -> dict[str, str]:
    """Return incidents of the training with their counts."""
    slow = [sample for sample in result.collective_waits if sample.slow_rank is not None]
    found = {
        "updates skipped (not finite)": result.num_skipped,
        "updates skipped (float16 overflow)": result.num_rescaled,
        "rewinds (the loss jumped)": result.num_rewinds,
        "samples with a slow rank": len(slow),
        "passes halved (out of memory)": len(result.halvings),
    }
    return {name: str(count) for name, count in found.items() if count}


def final_metrics(result: TrainingResult) -> dict[str, float]:
    """Return the scalars for the dashboard."""
    last = result.evaluations[-1]
    measured = {f"validation_{name}": value for name, value in last.metrics.items()}
    if last.train_loss is not None:
        measured["train_loss"] = last.train_loss
    return {"steps": float(result.steps), **measured}


def summarize(result: TrainingResult, *, is_reused: bool) -> str:
    """Return one line with length, duration and last validation metrics."""
    last = result.evaluations[-1]
    values = ", ".join(f"{name} {value:.4f}" for name, value in last.metrics.items())
    origin = "an equal training had finished and is reused; " if is_reused else ""
    resumes = f", resumed {counted(result.num_resumes, 'time')}" if result.num_resumes else ""
    return (
        f"{origin}{counted(result.steps, 'step')} on {counted(result.world_size, 'process')} "
        f"({result.strategy}) in {result.seconds:.0f} s{resumes}; last validation sample: {values}"
    )


def _add_memory_plan(page: Page, plan: MemoryPlan) -> None:
    page.heading("Memory plan")
    page.text(f"Chosen: {plan.reason}.")
    page.table(
        plan.header(),
        plan.rows(),
        caption=f"MB per process on {plan.device}; passes of {plan.micro_batch_rows} rows, "
        f"measured with {plan.measured_rows}; layouts in the order tried.",
    )


def _add_curves(page: Page, result: TrainingResult) -> None:
    history, evaluations = result.history, result.evaluations
    losses = {
        "train": [(point.step, point.loss) for point in history],
        "validation": [(point.step, point.metrics["loss"]) for point in evaluations],
    }
    page.heading("Curves")
    page.figure(
        line_chart(losses, x_label="step", y_label="loss"),
        "Mean loss per example. Training: with dropout, over the logging interval; validation: on "
        "the fixed sample.",
    )
    for name in _metric_names(result):
        points = [(p.step, p.metrics[name]) for p in evaluations if name in p.metrics]
        page.figure(line_chart({name: points}, x_label="step", y_label=name), f"Validation {name}.")
    signals = {
        "learning rate": [(point.step, point.learning_rate) for point in history],
        "gradient norm": [(point.step, point.gradient_norm) for point in history],
        "clipped updates": [(point.step, point.clipped_share) for point in history],
        "update ratio": [(point.step, point.update_ratio) for point in history],
        "examples per second": [(point.step, point.examples_per_second) for point in history],
        **_measured("tokens per second", history, "tokens_per_second"),
        **_measured("device busy", history, "device_busy"),
        "memory": [(point.step, point.memory_bytes / 2**20) for point in history],
    }
    waiting = mean([point.data_wait_share for point in history] or [0.0])
    clipped = mean([point.clipped_share for point in history] or [0.0])
    ratio = median([point.update_ratio for point in history] or [0.0])
    captions = {
        "learning rate": "Learning rate of the update.",
        "gradient norm": "Length of the gradient before clipping, mean of the interval. Usual are "
        f"{HEALTHY_NORMS[0]:g} to {HEALTHY_NORMS[1]:g}; above {LARGEST_NORM:g} a training is "
        "unstable, towards 0 it stops to learn. Losses of another scale shift the band.",
        "clipped updates": "Share of the interval's updates that clipping changed: "
        f"{clipped:.0%} on average.",
        "update ratio": "Length of an update relative to the weights. About 1e-3 is usual; more "
        f"than 1e-2 is unstable, less than 1e-5 learns nothing. Here, the median is {ratio:.1e}.",
        "memory": "Peak memory in MiB of the first rank: of its GPU, or of the process on a CPU.",
        "examples per second": "Throughput without evaluations and checkpoints; "
        f"{waiting:.1%} of the time was spent waiting for data.",
        "tokens per second": "Positions of the sequences, padding included.",
        "device busy": "Share of the moments before each point in which the first rank's GPU "
        "computed, as its driver reports it. Below 0.7 it waits for something else; 0.85 and more "
        "are usual.",
    }
    for name, points in signals.items():
        page.figure(line_chart({name: points}, x_label="step", y_label=name), captions[name])


def _measured(
    name: str, history: Sequence[StepPoint], field: str
) -> dict[str, list[tuple[int, float]]]:
    """Return a curve by its name; nothing where it was not measured."""
    points = [(each.step, getattr(each, field)) for each in history]
    known = [(step, value) for step, value in points if value is not None]
    return {name: known} if known else {}


def _add_bottleneck(page: Page, result: TrainingResult) -> None:
    found = result.bottleneck
    if found is None:
        return
    page.heading("Bottleneck")
    page.text(f"A traced step is {found.verdict}: {found.remedy}.")
    page.values(
        {
            "traced steps": f"{found.steps} of {found.seconds_per_step * 1e3:.1f} ms",
            "waiting for data": f"{found.data_wait_share:.1%}",
            "overhead": f"{found.overhead_share:.1%}",
            "matrix products, share of operations": f"{found.computing_share:.1%}",
            "trace": found.trace,
        }
    )
    page.figure(
        bar_chart(found.operations, x_label="share of the operations' time"),
        "The largest operations.",
    )


def _add_evaluations(page: Page, result: TrainingResult) -> None:
    names = ["loss", *_metric_names(result)]
    page.heading("Evaluations")
    page.table(
        ["step", "train loss", *(f"validation {name}" for name in names)],
        [
            [
                point.step,
                "all skipped" if point.train_loss is None else f"{point.train_loss:.5g}",
                *(_shown(point.metrics, name) for name in names),
            ]
            for point in result.evaluations
        ],
        caption="On the fixed sample of the validation split",
    )


def _add_checkpoints(page: Page, result: TrainingResult) -> None:
    page.heading("Checkpoints kept")
    page.table(
        ["step", "kept as", "validation sample", "where"],
        [
            [
                record.step,
                ", ".join(record.kept_as),
                ", ".join(f"{name} {value:.5g}" for name, value in record.metrics.items()),
                record.uri,
            ]
            for record in result.checkpoints
        ],
        caption="The candidates of select_checkpoint",
    )


def _metric_names(result: TrainingResult) -> list[str]:
    if not result.evaluations:
        return []
    every = dict.fromkeys(name for point in result.evaluations for name in point.metrics)
    return [name for name in every if name != "loss"]


def _shown(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.5g}" if name in metrics else "undefined"


def _utilization(result: TrainingResult) -> dict[str, str]:
    """Return arithmetic per second, and its share of the devices' peak if known."""
    last = result.history[-1] if result.history else None
    if last is None or last.flops_per_second is None:
        return {}
    text = f"{last.flops_per_second / 1e9:,.1f} GFLOP/s"
    if last.utilization is not None:
        text += f", {last.utilization:.1%} of the peak (MFU)"
    return {"arithmetic": text}
