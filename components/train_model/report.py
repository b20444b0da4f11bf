"""Training report: the curves of a training and the checkpoints that it left."""

from components.contracts.training import TrainingResult
from components.reports.charts import line_chart
from components.reports.page import Page


def training_page(result: TrainingResult, summary: str) -> Page:
    """The page about a finished training."""
    page = Page("Train model", outcome="neutral", summary=summary)
    page.values(
        {
            "steps": f"{result.steps:,}",
            "parameters": f"{result.num_parameters:,}",
            "processes": f"{result.world_size} ({result.strategy})",
            "time": f"{result.seconds:,.0f} s",
            "resumes": result.num_resumes,
            "fingerprint": result.fingerprint[:16],
        }
    )
    _add_curves(page, result)
    _add_evaluations(page, result)
    _add_checkpoints(page, result)
    return page


def final_metrics(result: TrainingResult) -> dict[str, float]:
    """The scalars of the dashboard."""
    last = result.evaluations[-1]
    measured = {f"validation_{name}": value for name, value in last.metrics.items()}
    return {"steps": float(result.steps), "train_loss": last.train_loss, **measured}


def summarize(result: TrainingResult, *, is_reused: bool) -> str:
    """One line: what was trained, how well, and how it came about."""
    last = result.evaluations[-1]
    values = ", ".join(f"{name} {value:.4f}" for name, value in last.metrics.items())
    origin = "an equal training was finished before and is reused; " if is_reused else ""
    resumes = f", resumed {result.num_resumes} times" if result.num_resumes else ""
    return (
        f"{origin}{result.steps:,} steps on {result.world_size} processes ({result.strategy}) in "
        f"{result.seconds:.0f} s{resumes}; last validation sample: {values}"
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
        points = [(point.step, point.metrics[name]) for point in evaluations]
        page.figure(line_chart({name: points}, x_label="step", y_label=name), f"Validation {name}.")
    signals = {
        "learning rate": [(point.step, point.learning_rate) for point in history],
        "gradient norm": [(point.step, point.gradient_norm) for point in history],
        "examples per second": [(point.step, point.examples_per_second) for point in history],
    }
    captions = {
        "learning rate": "Learning rate of the update.",
        "gradient norm": "Length of the gradient before clipping, mean of the interval.",
        "examples per second": "Throughput without evaluations and checkpoints; "
        f"{_mean_wait(result):.1%} of the time was spent waiting for data.",
    }
    for name, points in signals.items():
        page.figure(line_chart({name: points}, x_label="step", y_label=name), captions[name])


def _add_evaluations(page: Page, result: TrainingResult) -> None:
    names = ["loss", *_metric_names(result)]
    page.heading("Evaluations")
    page.table(
        ["step", "train loss", *(f"validation {name}" for name in names)],
        [
            [
                point.step,
                f"{point.train_loss:.5g}",
                *(f"{point.metrics[name]:.5g}" for name in names),
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
    return [name for name in result.evaluations[-1].metrics if name != "loss"]


def _mean_wait(result: TrainingResult) -> float:
    shares = [point.data_wait_share for point in result.history]
    return sum(shares) / len(shares) if shares else 0.0
