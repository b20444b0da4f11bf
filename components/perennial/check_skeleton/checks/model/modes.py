"""Check `modes` and `few_rows`: dropout and statistics by mode, batches of few rows."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from perennial.check_skeleton.free_outputs import is_per_token
from perennial.check_skeleton.made_up_inputs import describe_exception
from perennial.check_skeleton.models import (
    BATCH_STATISTICS,
    DROPOUTS,
    build_noisy_model,
    run_model,
    watch_modules,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, are_equal, seeded
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import predict_batch
from perennial.engine.serving.pyfunc import ServedModel, predict_rows
from perennial.engine.serving.servable import input_columns
from perennial.engine.task import LABEL, Batch, inputs_of

PROBED_ROWS = 32
# torch's momentum is the weight of the new batch, 0.1 by default; in other libraries it is the
# weight of the past, 0.9 to 0.999.
LARGEST_MOMENTUM = 0.9
# Of mean 0 and variance 1, in running statistics at the end of the training: more than half means
# that evaluation normalises by what no batch had.
KEPT_OF_THE_START = 0.5
# Where the layer's own variance is small, far less of the initial 1 suffices. Deviations 1.5 times
# too large more than doubled the test loss of a network of pictures (0.76 to 1.79), 3.3 times too
# large that of another one (0.12 to 0.33).
LARGEST_INFLATION = 1.5
# A default momentum in a training of a few steps is a trial, not a mistake.
SMALL_MOMENTUM = 0.05
# Dropout keeps half of hidden units and most of the inputs (Srivastava et al., 2014); graphs drop
# 0.6. What other libraries call keep probability is 0.8 or more.
DOUBTFUL_DROPOUT = 0.7
FAILING_DROPOUT = 0.8
# Of outputs; a last ReLU is 0 at the same places in evaluation.
DROPPED_OUTPUTS = 0.02
# Names of villages, letter by letter as in PyTorch's tutorial, cost 1.6% more bits where a tenth of
# the scores is dropped, and 8% more where three tenths are.
FEW_DROPPED_SCORES = 0.15
# Faster kernels of evaluation mode round differently, by about 1e-6.
SAME_OUTPUT = 1e-3
COUNTS = (1, 2, 3)
MANY = 8
# Kernels for other sizes round by 1e-6 of the largest number; a mean over the batch moves a tenth.
SAME = 1e-3
WAYS = ("the model", "losses", "predictions", "the served model")

Answer = Callable[[pl.DataFrame], Tensor]


@check(
    "modes",
    expects="in evaluation mode, equal outputs in two passes and unchanged statistics; in "
    "training mode, every dropout and batch norm active",
    source="guides: forgotten train and eval calls silently train or serve another model",
)
def check_modes(subject: Subject, judge: Judge) -> CheckResult:
    """Check that evaluation mode is deterministic and training mode activates its layers."""
    batch = subject.balanced(min(PROBED_ROWS, subject.task.scoring_rows))
    inputs = inputs_of(batch)
    with seeded(subject.seed):
        model = build_noisy_model(subject)
        return (
            _judge_evaluation(judge, model, inputs)
            or _judge_statistics(judge, subject, model, inputs)
            or _judge_dropout(judge, model)
            or _judge_training(judge, subject, model, batch)
        )


def _judge_evaluation(judge: Judge, model: nn.Module, inputs: Batch) -> CheckResult | None:
    """Judge evaluation mode; None if nothing is wrong."""
    model.eval()
    before = {name: buffer.detach().clone() for name, buffer in _find_kept_buffers(model).items()}
    first, again = _sum_outputs(model, inputs), _sum_outputs(model, inputs)
    if stuck := [name for name, module in _find_acting_layers(model).items() if module.training]:
        return judge.failed(
            f"evaluation mode leaves {len(stuck)} layers in training mode: {', '.join(stuck[:4])}",
            hint="train() or eval() is overridden, or forward calls train(): dropout then changes "
            "predictions, and batch norm learns from evaluation data",
            layers=stuck,
        )
    if different := [
        name
        for name, total in first.items()
        if not np.isclose(total, again.get(name, np.inf), rtol=1e-6, atol=0.0, equal_nan=True)
    ]:
        place = different[0] or "forward"
        return judge.failed(
            f"two passes in evaluation mode differ, first in {place}",
            hint=f"{place} draws random numbers in evaluation mode: pass training=self.training to "
            "nn.functional.dropout, and draw noise only if self.training",
            module=place,
        )
    after = _find_kept_buffers(model)
    if changed := [name for name in before if not are_equal(after[name], before[name])]:
        return judge.failed(
            f"a pass in evaluation mode changes {', '.join(changed[:4])}",
            hint="statistics are learned from evaluation data: update buffers only if "
            "self.training, and give batch_norm training=self.training",
            buffers=changed,
        )
    return None


def _judge_statistics(
    judge: Judge, subject: Subject, model: nn.Module, inputs: Batch
) -> CheckResult | None:
    """Judge the settings of batch normalisation; None if nothing is wrong."""
    layers = _find_acting_layers(model).items()
    found: dict[str, Any] = {n: each for n, each in layers if isinstance(each, BATCH_STATISTICS)}
    if batchwise := [name for name, each in found.items() if not each.track_running_stats]:
        return judge.failed(
            f"no running statistics in {', '.join(batchwise[:4])}",
            hint="with track_running_stats=False batch norm uses the evaluated batch's own "
            "statistics: a prediction then depends on its neighbours",
            layers=batchwise,
        )
    # The most forward passes that one process makes in the training.
    training = subject.training
    passes = training.steps * -(-training.global_batch_size // training.micro_batch_size)
    kept = {
        name: (1 - each.momentum) ** passes
        for name, each in found.items()
        if each.momentum is not None and each.momentum < SMALL_MOMENTUM
        # The statistics are still the initial ones.
        if not bool(each.running_mean.any()) and bool((each.running_var == 1).all())
    }
    inflation = _measure_inflation(subject, inputs, kept) if kept else {}
    if wrong := [
        name
        for name, share in kept.items()
        if share > KEPT_OF_THE_START or inflation[name] > LARGEST_INFLATION
    ]:
        worst = max(wrong, key=lambda name: (inflation[name], kept[name]))
        return judge.failed(
            f"with momentum {found[worst].momentum:g}, the running statistics of {worst} keep "
            f"{100 * kept[worst]:.2g}% of their initial values after {passes} forward passes, and "
            f"evaluation divides by {inflation[worst]:.3g} times the deviations of its inputs",
            hint="evaluation normalises by statistics that training never reaches: momentum is the "
            "new batch's weight, 0.1 by default",
            layers=wrong,
        )
    hasty = [name for name, each in found.items() if (each.momentum or 0.0) >= LARGEST_MOMENTUM]
    if hasty:
        return judge.warned(
            f"momentum is {found[hasty[0]].momentum:g} in {', '.join(hasty[:4])}",
            hint="running statistics are those of the last batch: torch's momentum is the weight "
            "of the new batch, one minus the momentum of other libraries",
            layers=hasty,
        )
    return None


def _measure_inflation(
    subject: Subject, inputs: Batch, kept: Mapping[str, float]
) -> dict[str, float]:
    """Return, per layer, its deviations in evaluation over those of a batch, at the median feature.

    `kept` is the share of the initial variance, 1, in the running variance at the training's end.
    """
    model = subject.build_model()
    layers: dict[str, Any] = {name: model.get_submodule(name) for name in kept}
    for layer in layers.values():
        layer.momentum = 1.0
    model.train()
    run_model(model, inputs)
    inflation = {}
    for name, share in kept.items():
        variances = layers[name].running_var.double()
        # A layer that is called for both sides of a pair learns twice per pass.
        initial = share ** int(layers[name].num_batches_tracked)
        # Features that are constant here have no deviation to compare.
        varying = variances[variances > layers[name].eps]
        ratios = (1 - initial + initial / varying).sqrt()
        inflation[name] = float(ratios.median()) if len(ratios) else 1.0
    return inflation


def _judge_dropout(judge: Judge, model: nn.Module) -> CheckResult | None:
    """Judge the share that dropout drops; None if nothing is wrong."""
    shares = {name: each.p for name, each in model.named_modules() if isinstance(each, DROPOUTS)}
    most = max(shares, key=lambda name: shares[name], default="")
    if not most or shares[most] < DOUBTFUL_DROPOUT:
        return None
    return (judge.warned if shares[most] < FAILING_DROPOUT else judge.failed)(
        f"{most} drops {shares[most]:.0%} of its inputs in training",
        hint="torch's p is the share that is dropped, one minus the share that other libraries "
        "keep",
        shares=shares,
    )


def _judge_training(judge: Judge, subject: Subject, model: nn.Module, batch: Batch) -> CheckResult:
    """Judge training mode."""
    evaluated = run_model(model, batch)
    model.train()
    first, again = run_model(model, batch), run_model(model, batch)
    acting = _find_acting_layers(model)
    idle = [name for name, module in acting.items() if not module.training]
    if acting and len(idle) == len(acting) and not model.training:
        return judge.failed(
            f"training mode does not reach the model: {len(idle)} layers stay in evaluation mode",
            hint="train() is overridden, or forward calls eval(): dropout never drops, batch norm "
            "never normalises by the batch and its statistics stay at the start",
            layers=idle,
        )
    if idle:
        return judge.warned(
            f"{len(idle)} of {len(acting)} layers stay in evaluation mode: {', '.join(idle[:4])}",
            hint="right for the frozen batch norm of a pretrained model; otherwise remove the "
            "eval() or the overridden train()",
            layers=idle,
        )
    dropping = [name for name, module in acting.items() if not isinstance(module, BATCH_STATISTICS)]
    is_random = not are_equal(first, again)
    dropped = [(evaluated != 0) & (output == 0) for output in (first, again)]
    share = float(torch.stack(dropped).double().mean())
    if share >= DROPPED_OUTPUTS and not torch.equal(*dropped):
        are_scores = subject.task.kind == "multiclass" or is_per_token(first, batch[LABEL])
        is_mild = are_scores and share < FEW_DROPPED_SCORES
        return (judge.warned if is_mild else judge.failed)(
            f"in training mode {share:.0%} of the outputs are exactly 0, others at each pass",
            hint="dropout acts on the model's answer: put it before the last layer, or predictions "
            "shrink to make up for answers that are dropped",
        )
    if dropping and not is_random:
        return judge.warned(
            f"{len(dropping)} dropout layers exist, but two passes in training mode are equal",
            hint=f"forward does not call {', '.join(dropping[:4])}, or only where it has no effect",
            layers=dropping,
        )
    most = SAME_OUTPUT * (1 + float(evaluated.abs().max()))
    is_still = not acting and not is_random
    if evaluated.shape != first.shape or (
        is_still and float((first - evaluated).abs().max()) > most
    ):
        return judge.warned(
            "the modes compute different outputs, though no layer drops or normalises by the batch",
            hint="forward depends on self.training: what it does only in evaluation, such as a "
            "softmax, is not trained",
        )
    return judge.passed(
        f"evaluation is deterministic; {len(acting)} layers are active in training"
        + (", which is random" if is_random else "")
    )


def _find_acting_layers(model: nn.Module) -> Mapping[str, Any]:
    """Return the layers that depend on the mode, by name: active dropout, batch normalisation."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, BATCH_STATISTICS) or (isinstance(module, DROPOUTS) and module.p > 0)
    }


def _find_kept_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the float buffers that checkpoints contain; counters may change."""
    kept = model.state_dict().keys()
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in kept and buffer.is_floating_point()
    }


def _sum_outputs(model: nn.Module, inputs: Batch) -> dict[str, float]:
    """Return the sum of every module's output, in order; the model's own is last."""
    sums: dict[str, float] = {}

    def note(name: str, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            sums[name] = sums.get(name, 0.0) + float(output.double().sum())

    with watch_modules(model, note):
        run_model(model, inputs)
    return sums


@check(
    "few_rows",
    expects=f"one entry per row from {', '.join(WAYS)}, equal for 1, 2 and 3 rows to those "
    f"among {MANY}",
    source="most requests to a served model have one row; squeeze() and statistics of the "
    "batch silently change their answers",
    tolerance=f"{SAME:g} of the largest",
)
def check_few_rows(subject: Subject, judge: Judge) -> CheckResult:
    """Check that one to three rows get answers, and the same ones as among more."""
    together = subject.task.scored_together
    rows = subject.validation_rows.head(MANY * together)
    model = build_noisy_model(subject)
    ways = dict(_list_ways(subject, model))
    if not _encodes_features_alone(subject, rows):
        del ways[WAYS[-1]]
    for way, answer in ways.items():
        try:
            whole = answer(rows)
        except Exception as error:  # user code may raise anything
            if way != WAYS[-1]:
                raise
            return judge.warned(
                f"{way}: {len(rows)} rows: {describe_exception(error)}",
                hint="requests fail with an error: they have the features alone, without the label "
                "and columns of other roles",
            )
        if way == WAYS[0] and not torch.equal(answer(rows), whole):
            return judge.skipped("outputs are random in evaluation mode: see `modes`")
        for count in COUNTS:
            # The validation split may have fewer groups.
            some = min(count if way == WAYS[0] else count * together, rows.height)
            title = f"{way}: {some} {'row' if some == 1 else 'rows'}"
            try:
                found = answer(rows.head(some))
            except Exception as error:  # user code may raise anything
                return judge.failed(
                    f"{title}: {describe_exception(error)}; {len(rows)} rows get answers",
                    hint="requests of so few rows, and the last batch of an evaluation, fail with "
                    "this error: write squeeze(-1) instead of squeeze(), reshape(len(x), -1) "
                    "instead of fixed sizes, and no means or normalisation over dimension 0",
                )
            if wrong := _describe_wrong(found, whole[:some], some):
                return judge.failed(
                    f"{title}: {wrong}",
                    hint="a request of that size gets wrong answers: look for squeeze() without a "
                    "dimension, a view or reshape that counts on the batch's size, and means or "
                    "normalisation over dimension 0 in forward, losses or predict",
                )
    shown = f"1, 2 and 3 rows get the same as among {len(rows)}, from {', '.join(ways)}"
    is_whole = len(ways) == len(WAYS)
    return judge.passed(shown if is_whole else f"{shown}; {WAYS[-1]}: see `serving_inputs`")


def _encodes_features_alone(subject: Subject, rows: pl.DataFrame) -> bool:
    """Whether encode takes the features without other columns, which `serving_inputs` requires."""
    try:
        subject.task.encode(rows.select(list(subject.task.columns.features)))
    except Exception:  # user code may raise anything when its column is not there
        return False
    return True


def _list_ways(subject: Subject, model: nn.Module) -> Iterator[tuple[str, Answer]]:
    """Yield the ways to answer rows; each depends on those before it."""
    task = subject.task

    def compute_losses(rows: pl.DataFrame) -> Tensor:
        batch = task.encode(rows)
        return task.losses(run_model(model, batch), batch)

    def serve(rows: pl.DataFrame) -> Tensor:
        sent = rows.select(input_columns(task))
        served = ServedModel(task, model, sent.schema).predict(sent.to_pandas()).to_numpy(copy=True)
        if served.dtype == object:  # texts
            return torch.tensor([[crc32(str(text).encode()) for text in row] for row in served])
        return torch.from_numpy(served.astype(np.float64))

    def serve_columns(rows: pl.DataFrame) -> Tensor:
        return torch.from_numpy(predict_rows(task, model, rows.select(input_columns(task))))

    yield WAYS[0], lambda rows: run_model(model, task.encode(rows))
    yield WAYS[1], compute_losses
    yield WAYS[2], lambda rows: predict_batch(task, model, task.encode(rows))[1]
    # Pictures and lists need another format than a table of requests.
    kinds = (subject.validation_rows.schema[name] for name in input_columns(task))
    is_table = not any(
        isinstance(kind, pl.Binary | pl.List | pl.Array | pl.Struct) for kind in kinds
    )
    yield WAYS[3], serve if is_table else serve_columns


def _describe_wrong(found: Tensor, expected: Tensor, rows: int) -> str:
    """Return what is wrong with the answers for a few rows; empty if nothing is."""
    if found.shape[:1] != (rows,) or found.shape != expected.shape:
        return f"shape {list(found.shape)}, among more rows {list(expected.shape)}"
    if not found.is_floating_point():
        return "" if torch.equal(found, expected) else "other answers than among more rows"
    size = float(expected.abs().nan_to_num().max()) + SAME
    difference = float((found - expected).abs().nan_to_num().max())
    if difference > SAME * size:
        return f"answers differ by {difference:.2g} from those among more rows"
    return ""
