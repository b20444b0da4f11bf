"""Check gradients: examples do not mix, inputs and parameters reach the loss."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.attention import observe_attention
from perennial.check_skeleton.checks.model.exchangeable_columns import (
    find_exchangeable_columns,
)
from perennial.check_skeleton.checks.model.sequences import shade
from perennial.check_skeleton.checks.model.silent_parameters import (
    Drawing,
    Silence,
    explain_silence,
    find_copies_of_embeddings,
    find_drawn_at_random,
)
from perennial.check_skeleton.checks.model.texts import Order, measure_order
from perennial.check_skeleton.checks.model.turned_states import describe_turned_states
from perennial.check_skeleton.checks.model.unread_buffers import find_unread_buffers
from perennial.check_skeleton.checks.model.unread_ends import find_unread_end
from perennial.check_skeleton.made_up_inputs import RefusedInputsError, made_up
from perennial.check_skeleton.models import (
    build_noisy_model,
    evaluated,
    measure_changes,
    run_model,
    run_updates,
    shuffle_batches,
    watch_modules,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Subject,
    find_padding,
    is_sequence,
    seeded,
    select_head,
    select_rows,
)
from perennial.check_skeleton.verdict import DEPENDENCIES
from perennial.contracts.skeleton import CheckResult
from perennial.engine.parallelism.parallelize import find_leaves
from perennial.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 16
# Zero-initialised last layers give the layers below no gradient before their own first updates.
STEPS = 4
MORE_BATCHES = 12
# Rounding moves a loss by about 1e-7 of itself; mixing a batch of 16 moves it by more than 1e-3.
MIXING = 1e-5
TILED_ROWS = 4
# Rounding moves an output by about 1e-7 of itself.
SAME = 1e-5
ROWS = 1024
MOST_NUMBERS = 1024
FEWEST_PARTS = 4
CLEAR_ERRORS = 5.0
FEWEST_STEPS = 4
MOST_STEPS = 64
# Rounding moves an answer by about 1e-7 of itself.
MOVED = 1e-5


@check(
    "example_independence",
    expects=lambda subject: (
        f"the {_name_compared(subject)} of an example do not change when another one is replaced, "
        "or when the batch is reordered"
    ),
    source="guides: gradients must depend on their own example only (view instead of permute)",
)
def check_example_independence(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the loss of one example does not depend on its neighbours in the batch.

    Where the loss compares examples, as in retrieval, the outputs are checked.
    """
    what = _name_compared(subject)
    batch, model = subject.balanced(PROBED_ROWS), build_noisy_model(subject)
    rows = len(batch[LABEL])

    def measure(index: Tensor) -> Tensor:
        some = select_rows(batch, index)
        output = run_model(model, some)
        found = output if what == "outputs" else subject.task.losses(output, some).unsqueeze(1)
        return found.double()

    order = torch.arange(rows)
    before, again = measure(order), measure(order)
    if float((again - before).abs().max()) > MIXING:
        return judge.skipped("outputs are random in evaluation mode: see `modes`")
    with Drawing() as drawing:
        turned = measure(order.flip(0)).flip(0)
    moved = measure_changes(before, turned).flatten(1).amax(dim=1)
    mixed: dict[str, float] = {}
    changes: list[Tensor] = []
    for replaced in range(rows):
        index = order.clone()
        index[replaced] = (replaced + rows // 2) % rows
        change = measure_changes(before, measure(index)).flatten(1).amax(dim=1)
        changes.append(change.clone())
        change[replaced] = 0.0
        if float(change.max()) > MIXING:
            mixed[f"{replaced} → {int(change.argmax())}"] = float(change.max())
    seen = {DEPENDENCIES: shade(torch.stack(changes, dim=1))}
    if mixed:
        pair = max(mixed, key=lambda name: mixed[name])
        return judge.failed(
            f"{len(mixed)} of {rows} examples change the {what} of others; example {pair} by "
            f"{mixed[pair]:.2g}",
            hint="the model mixes the batch: look for view or reshape where permute is meant, a "
            "reduction over dimension 0, attention over examples, or a wrong batch_first",
            **seen,
        )
    # Noise of a fixed seed depends on the place, as where a loss must be reproducible.
    if float(moved.max()) > MIXING and not drawing.has_drawn:
        return judge.failed(
            f"{int((moved > MIXING).sum())} of {rows} examples have other {what} in a reversed "
            f"batch, by up to {float(moved.max()):.2g}",
            hint="the model depends on the place in the batch: look for positions that are "
            "added along dimension 0 (x.size(0), pe[: len(x)]), and for batch_first",
            **seen,
        )
    return judge.passed(
        f"{rows} examples replaced in turn, the {what} of the others unchanged", **seen
    )


@check(
    "input_use",
    expects="every input tensor changes the loss",
    source="guides: visualise what the model really gets; an unused input is a silent failure",
)
def check_input_use(subject: Subject, judge: Judge) -> CheckResult:
    """Check that every input tensor, and every column of a table, reaches the loss."""
    batch, model = subject.balanced(4 * PROBED_ROWS), build_noisy_model(subject)
    unused, columns = list[str](), list[str]()
    for name, tensor in inputs_of(batch).items():
        if not len(tensor) or bool((tensor == tensor[:1]).all()):
            continue  # nothing to exchange; `input_scale` checks constants
        try:
            with made_up(f"{name} of other examples"):
                # An id that masks duplicates counts where rows share it.
                others = (tensor.roll(1, 0), tensor[:1].expand_as(tensor))
                is_used = any(_is_used(subject, model, batch, {name: each}) for each in others)
                if is_used:
                    columns += _find_unused_columns(subject, model, batch, name)
        except RefusedInputsError:  # lengths or edges belong to their own tokens and nodes
            is_used = _is_following_real_rows(model, batch, name)
        if not is_used:
            unused.append(name)
    if unused:
        return judge.failed(
            f"no loss changes with {', '.join(unused)} of other examples",
            hint="the model's forward ignores it, or multiplies it by zero",
        )
    if part := _judge_parts(judge, subject, model):
        return part
    if blind := find_blindness_to_positions(subject, model, batch):
        value = describe_value_of_places(subject, *blind)
        return (judge.failed if value else judge.warned)(
            f"the output is the same wherever the parts of the picture are: {blind[0]}, parts of "
            f"{blind[1]} x {blind[1]}" + (f"; {value}" if value else ""),
            hint="no positions reach the model: add learned or sinusoidal ones to the patches. "
            "Correct only for an intended bag of patches",
        )
    if columns:
        return judge.warned(
            f"{len(columns)} columns never change a loss: {', '.join(columns[:8])}",
            hint="a slice or an index in forward leaves them out",
        )
    return judge.passed(f"{', '.join(inputs_of(batch))} change the loss")


def _judge_parts(judge: Judge, subject: Subject, model: nn.Module) -> CheckResult | None:
    """Judge parts of inputs that are not read, or not told apart."""
    if step := find_single_step(subject, model):
        return judge.failed(
            f"the answer depends on only one position of a sequence: {step}",
            hint="look for a causal mask with the wrong triangle, and for a state that is taken "
            "from the first step in place of the last",
        )
    if turned := describe_turned_states(subject, model):
        return judge.failed(
            turned,
            hint="a sequence is turned round, read, and its states are not turned back: each "
            "output gets those of another step",
        )
    if end := find_unread_end(subject, model):
        return judge.failed(
            f"no answer depends on {end}, without which a linear model predicts clearly worse",
            hint="a slice in forward cuts them off, such as one that was meant for the target or "
            "for padding",
        )
    if mixed := find_exchangeable_columns(subject, model):
        return (judge.failed if mixed.is_mistake else judge.warned)(
            f"the output is the same if columns exchange their values: {mixed}",
            hint="one network reads all of them: [layer] * n and dict.fromkeys repeat one object. "
            "Build a layer for each column, or give each a learned vector of its own. Correct "
            "where they are members of a set, which may differ a little",
        )
    return None


@check(
    "parameter_gradients",
    expects=f"finite gradients, not all zero, for each parameter within {STEPS} updates",
    source="guides: dead units, frozen or forgotten layers train silently",
)
def check_parameter_gradients(subject: Subject, judge: Judge) -> CheckResult:
    """Check that every trainable parameter gets a finite gradient that is not zero."""
    with seeded(subject.seed):
        model = subject.task.build_model()
        model.train()
        frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not named:
            return judge.failed(
                f"all {len(frozen)} parameters are frozen",
                hint="set requires_grad on the parameters that must learn",
            )
        totals = dict.fromkeys(named, 0.0)
        strangers, own = 0, {id(parameter) for parameter in model.parameters()}
        batches = shuffle_batches(subject, subject.train, STEPS)
        rate = subject.settings.learning_rates[0]
        for loss in run_updates(subject.task, model, batches, rate, as_trained=True):
            if not loss.requires_grad:
                return judge.failed(
                    "the loss has no gradient at all",
                    hint="forward or losses detaches: look for detach(), .data, no_grad and numpy",
                )
            strangers = max(strangers, sum(id(leaf) not in own for leaf in find_leaves(loss)))
            for name, parameter in named.items():
                if parameter.grad is not None:
                    totals[name] += float(parameter.grad.abs().sum())
        _seek_rare(subject, model, totals)
        silence = explain_silence(subject, model, totals)
        chooses = bool(silence.harmful) and _is_choosing(subject, model)
    return (
        _judge_totals(judge, totals, strangers, silence, chooses=chooses)
        or _judge_frozen(judge, subject, frozen)
        or _judge_buffers(judge, subject)
        or _judge_ties(judge, subject, totals, silence.cancelled)
    )


def _seek_rare(subject: Subject, model: nn.Module, totals: dict[str, float]) -> None:
    """Add gradients from more batches, for parameters that few examples reach."""
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for batch in shuffle_batches(subject, subject.train, MORE_BATCHES):
        silent = [name for name, size in totals.items() if size == 0.0]
        if not silent:
            return
        loss = subject.task.training_losses(model(**inputs_of(batch)), batch).sum()
        gradients = torch.autograd.grad(loss, [named[n] for n in silent], allow_unused=True)
        for name, gradient in zip(silent, gradients, strict=True):
            if gradient is not None:
                totals[name] += float(gradient.abs().sum())


def _is_choosing(subject: Subject, model: nn.Module) -> bool:
    """Whether different examples use different layers, as with a mixture of experts."""
    called: set[str] = set()

    def note(name: str, module: nn.Module, given: tuple[object, ...]) -> None:
        first = given[0] if given else None
        if not isinstance(first, Tensor) or first.numel():
            called.add(name)

    seen = set()
    with watch_modules(evaluated(model), note, is_before=True):
        for row in range(min(PROBED_ROWS, subject.num_rows() - 1)):
            called.clear()
            try:
                run_model(model, select_rows(subject.train, slice(row, row + 1)))
            except Exception:  # not every model takes a single row
                break
            seen.add(frozenset(called))
    return len(seen) > 1


def _judge_totals(
    judge: Judge, totals: dict[str, float], strangers: int, silence: Silence, *, chooses: bool
) -> CheckResult | None:
    if broken := [name for name, size in totals.items() if not size < float("inf")]:
        return judge.failed(
            f"gradients that are not finite: {', '.join(broken[:6])}",
            hint="look for divisions by zero, logarithms of zero and too large an initialisation",
        )
    if strangers:
        return judge.failed(
            f"{strangers} tensors learn but are not among model.parameters()",
            hint="keep layers in nn.ModuleList or nn.ModuleDict, not in a Python list: optimizer "
            "and checkpoint miss them",
        )
    silent = silence.harmful
    shown = f"{len(silent)} of {len(totals)} parameters get no gradient: {', '.join(silent[:6])}"
    if silent and chooses and len(silent) < len(totals) / 2:
        return judge.warned(
            shown,
            hint="examples are routed to layers, and no example of the sample to these: expected "
            "for rare experts, otherwise look at the load balancing",
        )
    if silent:
        return judge.failed(
            shown,
            hint="they are not used in forward, cut off by detach, or dead: zero weights on both "
            "sides, or a dropout of 1",
        )
    if not silence.idle:
        return None
    return judge.warned(
        f"{len(silence.idle)} of {len(totals)} parameters in the last of equal blocks "
        f"have no effect: {', '.join(silence.idle[:6])}",
        hint="their result is not used, as in the last block of N-BEATS or WaveNet, "
        "where it is harmless: the same layers of the other blocks learn. If a result was "
        "forgotten after the loop, use it; otherwise omit these layers in that block",
    )


def _judge_frozen(judge: Judge, subject: Subject, frozen: list[str]) -> CheckResult | None:
    if not frozen:
        return None
    if drawn := find_drawn_at_random(subject, frozen):
        return judge.failed(
            f"{len(drawn)} parameters are frozen at random initial values: {', '.join(drawn[:6])}",
            hint="requires_grad_(False) is right when fine-tuning: load the pretrained weights in "
            "build_model, or let these learn",
        )
    return judge.warned(
        f"{len(frozen)} parameters are frozen: {', '.join(frozen[:6])}",
        hint="right when fine-tuning; otherwise remove requires_grad_(False)",
    )


def _judge_buffers(judge: Judge, subject: Subject) -> CheckResult | None:
    if not (unread := find_unread_buffers(subject)):
        return None
    order = measure_order(subject)
    if isinstance(order, Order) and not order.is_read:
        return judge.failed(
            f"nothing reads {', '.join(unread[:6])}, nor the order of tokens at {order.layer}",
            hint="positions are made and not added to the embeddings",
        )
    return judge.warned(
        f"buffers that nothing reads: {', '.join(unread[:6])}",
        hint="forward forgets them: a matrix, a mask or a scale that is made and not applied. "
        "Apply them, or remove them",
    )


def _judge_ties(
    judge: Judge, subject: Subject, totals: dict[str, float], cancelled: Sequence[str]
) -> CheckResult:
    """Judge whether a parameter starts as a copy of an embedding and is trained separately."""
    model = subject.build_model()
    if copies := find_copies_of_embeddings(model, dict(model.named_parameters())):
        return judge.warned(
            f"{', '.join(name for name, _ in copies)} starts as a copy of an embedding and is "
            "trained separately",
            hint="a tie is broken: assign the parameter itself, head.weight = embedding.weight, "
            "after everything that replaces or copies it",
        )
    sizes = [size for name, size in totals.items() if name not in cancelled]
    measured = f"{len(totals)} parameters, smallest sum {min(sizes):.2g}"
    if cancelled:
        measured += f"; {', '.join(cancelled[:6])} cancels out in every loss, and can be removed"
    return judge.passed(measured)


def _is_following_real_rows(model: nn.Module, batch: Batch, name: str) -> bool:
    """Whether the model reads a tensor at all, where no other values are possible."""
    try:
        run_model(model, {key: value for key, value in batch.items() if key != name})
    except Exception:  # the tensor is required
        return True
    return False


def _is_used(subject: Subject, model: nn.Module, batch: Batch, other: Batch) -> bool:
    """Whether other values of some inputs change any loss, including the training loss."""
    task = subject.task
    is_one = type(task).training_losses is Task.training_losses
    for losses in (task.losses,) if is_one else (task.losses, task.training_losses):
        found = []
        for each in (batch, {**batch, **other}):
            with seeded(subject.seed), torch.no_grad():
                found.append(losses(run_model(model, each), each))
        if not torch.equal(*found):
            return True
    return False


def _find_unused_columns(
    subject: Subject, model: nn.Module, batch: Batch, name: str
) -> Iterator[str]:
    tensor = batch[name]
    if tensor.ndim != 2 or is_sequence(name, batch):
        return
    doubtful = torch.arange(tensor.shape[1])
    if tensor.is_floating_point():
        # One pass, where a table may have thousands of columns.
        free = tensor.clone().requires_grad_()
        losses = subject.task.losses(model(**inputs_of({**batch, name: free})), batch)
        if losses.requires_grad:
            (gradient,) = torch.autograd.grad(losses.sum(), free, allow_unused=True)
            doubtful = doubtful if gradient is None else doubtful[(gradient == 0).all(dim=0)]
    for column in doubtful.tolist():
        other = tensor.clone()
        other[:, column] = tensor[:, column].roll(1, 0)
        varies = not torch.equal(other, tensor)
        if varies and not _is_used(subject, model, batch, {name: other}):
            yield f"{name}[{column}]"


def _name_compared(subject: Subject) -> str:
    """Return what is compared: the loss of an example may depend on the others by design."""
    return "outputs" if subject.task.scored_together > 1 else "losses"


def find_blindness_to_positions(
    subject: Subject, model: nn.Module, batch: Batch
) -> tuple[str, int] | None:
    """Return an input whose square parts can change places without effect, and their side."""
    few = select_rows(batch, slice(TILED_ROWS))
    order = torch.Generator().manual_seed(subject.seed)
    for name, tensor in inputs_of(few).items():
        if tensor.ndim != 4 or not tensor.is_floating_point():
            continue
        height, width = tensor.shape[2:]
        for side in range(1, min(height, width) + 1):
            if height % side or width % side or (height, width) == (side, side):
                continue
            tiles = nn.functional.unfold(tensor, side, stride=side)  # [B, C * side * side, tiles]
            other = tiles[:, :, torch.randperm(tiles.shape[2], generator=order)]
            moved = nn.functional.fold(other, (height, width), side, stride=side)
            outputs = (run_model(model, {**few, name: each}) for each in (tensor, moved))
            if not torch.equal(moved, tensor) and bool((measure_changes(*outputs) <= SAME).all()):
                return name, side
    return None


def describe_value_of_places(subject: Subject, name: str, side: int) -> str:
    """Return the accuracy of a linear classifier on pictures and on their parts without places.

    Empty where the parts alone do as well, or nothing can be measured.
    """
    if subject.task.kind not in ("binary", "multiclass"):
        return ""
    batch = select_head(subject.train, ROWS)
    pictures, labels = batch[name], batch[LABEL].numpy().astype(np.int64)
    tiles = nn.functional.unfold(pictures, side, stride=side)
    half = len(labels) // 2
    is_small = pictures[0].numel() <= MOST_NUMBERS
    if not is_small or tiles.shape[2] < FEWEST_PARTS or len(np.unique(labels[:half])) < 2:
        return ""
    # A bag of parts contains, number by number, its values in sorted order.
    bag, right = tiles.sort(dim=2).values, []
    for each in (pictures, bag):
        values = each.flatten(1).double().numpy()
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=50))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a few steps are enough
            model.fit(values[:half], labels[:half])
        right.append(np.asarray(model.predict(values[half:]) == labels[half:]))
    gain = right[0].astype(float) - right[1].astype(float)
    error = float(gain.std() / np.sqrt(len(gain)))
    if gain.mean() < CLEAR_ERRORS * max(error, 1e-12):
        return ""
    return (
        f"a linear classifier is right on {right[0].mean():.0%} of pictures, and on "
        f"{right[1].mean():.0%} without the places of their parts"
    )


def find_single_step(subject: Subject, model: nn.Module) -> str:
    """Return the sequence of which the model reads only one position; empty where there is none.

    Models without recurrence and attention may take the last step by design, as simple forecasts.
    """
    found, _ = observe_attention(subject)
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    if not (found.lengths or any(isinstance(each, kinds) for each in model.modules())):
        return ""
    for name, tensor in inputs_of(subject.train).items():
        batch, content = _find_longest(subject.train, name)
        if content < FEWEST_STEPS or tensor.shape[1] > MOST_STEPS:
            continue
        try:
            seen = _find_seen_positions(model, batch, name)
        except Exception:  # lengths or edges belong to their own tokens and nodes
            continue
        if seen is not None and int(seen.any()) and int(seen.sum(dim=0).max()) == 1:
            steps = {int(step) for step in seen.float().argmax(dim=0)}
            which = f"position {steps.pop()}" if len(steps) == 1 else "one position"
            return f"{name}: {which} of {content} or more"
    return ""


def _find_longest(batch: Batch, name: str) -> tuple[Batch, int]:
    """Return the examples with the longest sequences, and their shortest length; 0 for none."""
    tensor = batch[name]
    is_steps = tensor.ndim == 3 and tensor.is_floating_point() and tensor.shape[1] > 1
    few = torch.arange(min(PROBED_ROWS, len(tensor)))
    if is_steps:
        return select_rows(batch, few), tensor.shape[1]
    if tensor.ndim != 2 or tensor.is_floating_point() or name == LABEL:
        return batch, 0
    padding = find_padding(tensor)
    if padding is None:
        return batch, 0
    rows = padding.content.argsort(descending=True)[: len(few)]
    return select_rows(batch, rows), int(padding.content[rows].min())


def _find_seen_positions(model: nn.Module, batch: Batch, name: str) -> Tensor | None:
    """Return which answers move with which positions, [T, B]; None if each position has its own."""
    before = run_model(model, batch)
    tensor, length = batch[name], batch[name].shape[1]
    if before.ndim > 2 or before.shape[1:2] == (length,):
        return None
    # Masks and types of tokens are alike in all examples: hardly a position can be exchanged.
    differs = (tensor != tensor.roll(1, 0)).reshape(len(tensor), length, -1).any(dim=2)
    if int(differs.sum(dim=1).median()) < FEWEST_STEPS:
        return None
    seen: list[Tensor] = []
    for step in range(length):
        changed = tensor.clone()
        changed[:, step] = tensor[:, step].roll(1, 0)
        moved = measure_changes(before, run_model(model, {**batch, name: changed}))
        seen.append(moved.reshape(len(before), -1).amax(dim=1) > MOVED)
        if int(torch.stack(seen).sum(dim=0).max()) > 1:
            break  # several positions are seen, whatever the others do
    return torch.stack(seen)
