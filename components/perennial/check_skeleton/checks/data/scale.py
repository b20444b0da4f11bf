"""Check `input_scale`: inputs are finite, varied and normalised."""

from collections.abc import Iterator

import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.units import describe_other_unit
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Subject,
    distinct_examples,
    is_sequence,
    rows_of,
    stirred_model,
)
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

PROBED_ROWS = 64
# Training works best with mean 0 and variance 1 (LeCun et al., Efficient BackProp, 1998). Raw
# pixels, amounts and timestamps are off by a factor of ten, standardised columns never.
LARGEST_SCALE = 10.0


@check(
    "input_scale",
    expects=(
        f"finite inputs that vary, float columns with mean and deviation below {LARGEST_SCALE:g}"
    ),
    source="Efficient BackProp §4.3; guides: look at tensors right before the model",
    needs_losses=False,
)
def check_input_scale(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the inputs are finite, informative and of a scale that trains well."""
    inputs = inputs_of(subject.train)
    distinct = len(distinct_examples(inputs))
    if found := _broken(judge, subject) or _constant(judge, subject, distinct):
        return found
    if other := describe_other_unit(subject):
        return judge.failed(other[0], hint=other[1])
    names = [name for name, tensor in inputs.items() if not _is_additive_mask(tensor)]
    columns = [column for name in names for column in _columns(name, subject.train)]
    constant = [name for name, values in columns if bool((values == values[0]).all())]
    large = {
        name: [round(float(values.mean()), 4), round(float(values.std()), 4)]
        for name, values in columns
        if values.is_floating_point() and max(abs(values.mean()), values.std()) > LARGEST_SCALE
    }
    if large:
        worst = max(large, key=lambda name: max(map(abs, large[name])))
        return judge.warned(
            f"{len(large)} of {len(columns)} columns are not normalised; "
            f"{worst} has mean {large[worst][0]:.4g} and deviation {large[worst][1]:.4g}",
            hint="standardise in encode with statistics from fit(train)",
            mean_and_deviation=large,
        )
    # A rare indicator may be constant in a sample; many constants mean lost columns.
    if len(constant) > max(1, len(columns) // 4):
        return judge.warned(
            f"{len(constant)} of {len(columns)} columns are constant: {', '.join(constant[:8])}",
            hint="columns are lost in encode, every category is unknown to it, or texts are padded "
            "to a length that no text needs",
            constant=constant,
        )
    return judge.passed(
        f"{len(columns)} columns, {distinct} of {subject.num_rows()} rows differ", constant=constant
    )


def _constant(judge: Judge, subject: Subject, distinct: int) -> CheckResult | None:
    """Judge rows that are all equal; None if they differ."""
    inputs = inputs_of(subject.train)
    if distinct == 1:
        return judge.failed(
            f"all {subject.num_rows()} sampled rows have the same inputs",
            hint="encode returns constants; compare the preview with the rows",
        )
    frozen = [
        name
        for name, tensor in inputs.items()
        # A table without numbers may have an empty tensor for them.
        if tensor.is_floating_point() and tensor.numel() and bool((tensor == tensor[:1]).all())
    ]
    if frozen:
        return judge.warned(
            f"all {subject.num_rows()} sampled rows have the same {', '.join(frozen)}",
            hint="encode returns constants; compare the preview with the rows. Correct for a mask "
            "that no row needs",
        )
    return None


def _broken(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge NaN and infinite values; None if there are none."""
    inputs = inputs_of(subject.train)
    broken = {
        name: int((~torch.isfinite(t.double())).sum())
        for name, t in inputs.items()
        if not _is_additive_mask(t)
    }
    if any(broken.values()):
        report = judge.warned if _are_accepted(subject) else judge.failed
        return report(
            f"NaN or infinite values: {broken}",
            hint="fill missing values in encode and guard divisions by a zero scale. Correct only "
            "if the model itself replaces them",
        )
    return None


def _is_additive_mask(tensor: Tensor) -> bool:
    """Whether the tensor is an additive attention mask: zeros and minus infinity."""
    return tensor.is_floating_point() and bool(((tensor == 0) | (tensor == -torch.inf)).all())


def _are_accepted(subject: Subject) -> bool:
    """Whether loss and gradients are finite for rows with missing values."""
    inputs = inputs_of(subject.train)
    missing = [(~torch.isfinite(t.double())).flatten(1).any(dim=1) for t in inputs.values()]
    index = torch.stack(missing).any(dim=0).nonzero().flatten()[:PROBED_ROWS]
    batch, model = rows_of(subject.train, index), stirred_model(subject)
    loss = subject.task.losses(model(**inputs_of(batch)), batch).sum()
    if not bool(torch.isfinite(loss)) or not loss.requires_grad:
        return False
    named = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(loss, named, allow_unused=True)
    return all(each is None or bool(torch.isfinite(each).all()) for each in gradients)


def _columns(name: str, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the columns of a table; anything else, such as images or tokens, is one column."""
    tensor = batch[name]
    if tensor.ndim == 2 and not is_sequence(name, batch):
        for index in range(tensor.shape[1]):
            yield f"{name}[{index}]", tensor[:, index]
    else:
        yield name, tensor.flatten()
