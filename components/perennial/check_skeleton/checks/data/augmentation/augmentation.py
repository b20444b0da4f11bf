"""Check that augmentation follows its generator, keeps labels, and stays out of evaluation."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from torch import Tensor

from perennial.check_skeleton.baselines import MOST_NUMBERS, z_score
from perennial.check_skeleton.checks.data.augmentation.dealt_choices import describe_dealt_choices
from perennial.check_skeleton.checks.data.augmentation.handedness import describe_turned_points
from perennial.check_skeleton.checks.data.augmentation.mirrored_words import describe_mirrored_words
from perennial.check_skeleton.checks.data.augmentation.mixing import (
    TRACED_ROWS,
    augment_copy,
    exchange_rows,
    judge_mixing,
)
from perennial.check_skeleton.checks.data.augmentation.moved_maps import describe_moved_maps
from perennial.check_skeleton.checks.training.learning import POWER_MARGIN
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.models import (
    build_noisy_model,
    run_model,
    shuffle_batches,
    simplify,
    train_model,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Codes,
    Flags,
    Floats,
    Subject,
    find_differences,
    generator_states,
    select_head,
)
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 64
FEWEST_NUMBERS = 8
SAME_NOISE = 0.99
AUGMENTED = 8
TRACES = 4
FEWEST_WRAPPED = 4
# A row that moves an example by less than this share of what the example's own row does acts
# through a statistic of the batch; it is not mixed in.
MIXED_SHARE = 0.3
ROUNDING = 1e-5
PREDICTED_ROWS = 1024
SCALED_ROWS = 256
NEIGHBOUR_ROWS = 2048
NEIGHBOURS = 9
DRAWS = 2
# A class turns into another if most of its wrong predictions, once augmented, are that class: on
# digits, 0.9 of those for sixes turned upside down. Noise of up to two deviations, and shifts of up
# to three pixels, scatter them or send several classes to one place: no alarm in 80 runs.
TURNED_SHARE = 0.75
EXCHANGED_SHARE = 0.6
CHANGED_SHARE = 0.2
CHANGED_SHARE_OF_TWO = 0.1
DRAWN_SHARE = 0.4
DRAWN_CLASSES = 2
CLEAR_EXAMPLES = 5
# Noise of three deviations makes numbers three times as large; brightness, contrast and mixtures
# change the scale far less.
SCALED = 4.0
LOST_SHARE = 0.5
# Numbers whose prediction lies at least half a deviation from the mean, and turns into its
# opposite up to half of that. A prediction that noise destroys goes to the mean instead.
HALF = 0.5
OPPOSITE_SHARE = 0.2
EXPLAINED_SHARE = 0.8
PREDICTED_WELL = 0.4
MOST_LABEL_NUMBERS = 16
UNSEEN_CHANGE = 0.1
NO_AUGMENTATION = "the task does not augment"
FOLLOWED = f"{TRACED_ROWS} rows exchanged in turn, each example follows its own"


@check(
    "augmentation",
    expects="the same changes from the same generator, shapes kept, the given batch unchanged",
    source="guides: labels flipped by augmentation; resuming needs the generator",
    needs_losses=False,
)
def check_augmentation(subject: Subject, judge: Judge) -> CheckResult:
    """Check that augmentation follows its generator and keeps shapes and the given batch."""
    task = subject.task
    if not is_augmenting(task):
        return judge.skipped(NO_AUGMENTATION)
    original = select_head(subject.train, PROBED_ROWS)
    batch = {name: tensor.clone() for name, tensor in original.items()}
    before = generator_states()
    first = task.augment(batch, torch.Generator().manual_seed(subject.seed))
    if changed := find_differences(original, batch):
        return judge.failed(
            f"augment changes its input in place: {', '.join(changed)}",
            hint="clone before writing; the batch may be used again",
        )
    again = task.augment(batch, torch.Generator().manual_seed(subject.seed))
    if generator_states() != before or find_differences(first, again):
        return judge.failed(
            "augment returns different results for the same generator, or uses a global generator",
            hint="draw every random number with generator=generator",
        )
    return _judge_form(judge, subject, batch, first)


def _judge_form(judge: Judge, subject: Subject, batch: Batch, first: Batch) -> CheckResult:
    if not all(bool(torch.isfinite(tensor.double()).all()) for tensor in first.values()):
        return judge.failed("augment returns values that are not finite", "guard its arithmetic")
    before, after = ({(n, t.shape, t.dtype) for n, t in some.items()} for some in (batch, first))
    changed = sorted({name for name, *_ in before ^ after})
    if changed and not _is_learnable(subject, first):
        return judge.failed(
            f"augment changed names, shapes or types of {', '.join(changed)}",
            hint="keep the batch's form",
        )
    if changed:
        return judge.passed(f"changes the form of {', '.join(changed)}, which the model accepts")
    if name := _find_shared_noise(subject.task, batch):
        return judge.failed(
            f"augment adds the same noise to the label as to {name}, or hides the same places in "
            "both",
            hint="nothing is left to restore: a model that copies its input is always right. Take "
            "the label from before the noise is added",
        )
    if name := _find_wrapped_picture(subject.task, batch):
        return judge.failed(
            f"augment turns the brightest values of {name} dark: the values overflow and wrap "
            "around",
            hint="the type has too few bits (bytes, for example): cast to float32 first, then clip",
        )
    return _judge_changes(judge, subject.task, batch)


def _judge_changes(judge: Judge, task: Task, batch: Batch) -> CheckResult:
    """Judge whether augmentation changes anything at all."""
    changed, has_drawn = [], False
    for seed in range(AUGMENTED):
        generator = torch.Generator().manual_seed(seed)
        before = generator.get_state()
        changed += find_differences(batch, task.augment(batch, generator))
        has_drawn |= not torch.equal(before, generator.get_state())
    if has_drawn and not changed:
        return judge.warned(
            f"augment drew random numbers but changed nothing in {AUGMENTED} calls",
            hint="the changed tensors are not returned, or the strength or probability is 0",
        )
    return judge.passed(f"changes {', '.join(dict.fromkeys(changed)) or 'nothing'}")


def _is_learnable(subject: Subject, batch: Batch) -> bool:
    """Whether model and loss accept a batch of another form, such as crops or soft labels."""
    model = subject.build_model()
    model.train()
    try:
        losses = subject.task.training_losses(model(**inputs_of(batch)), batch)
    except Exception:  # user code may raise anything
        return False
    return losses.shape == (len(batch[LABEL]),) and bool(torch.isfinite(losses).all())


def _find_shared_noise(task: Task, batch: Batch) -> str:
    """Return the input whose noise the label shares; empty if there is none.

    Probed with constant examples, which flips, crops, scales and mixtures leave constant.
    """
    label = batch[LABEL]
    if label[0].numel() < FEWEST_NUMBERS:
        return ""
    for name, tensor in inputs_of(batch).items():
        if tensor[0].numel() != label[0].numel():
            continue
        pair = {name: tensor, LABEL: label}
        even = {
            k: torch.full_like(each, each.flatten().median().item()) for k, each in pair.items()
        }
        try:
            after = task.augment({**batch, **even}, torch.Generator().manual_seed(0))
            moved, given = (after[each].double() - even[each].double() for each in (LABEL, name))
        except Exception:  # augmentation may refuse even examples, or change their form
            return ""
        # Noise varies along each dimension; shifts of a channel do not.
        axes = [axis for axis in range(1, moved.ndim) if moved.shape[axis] > 1]
        varies = [moved.std(dim=axis).reshape(len(moved), -1).amax(dim=1) > 0 for axis in axes]
        if float(torch.stack(varies).all(dim=0).double().mean()) <= 0.5:
            continue
        flat = (each.flatten(1) for each in (moved, given))
        one, other = (each - each.mean(dim=1, keepdim=True) for each in flat)
        if float((one * other).sum() / (one.norm() * other.norm()).clamp_min(1e-12)) > SAME_NOISE:
            return name
    return ""


def _find_wrapped_picture(task: Task, batch: Batch) -> str:
    """Return the name of a picture whose values wrap around in every channel; empty if none."""
    for name, tensor in inputs_of(batch).items():
        if tensor.ndim != 4:
            continue
        for seed in range(AUGMENTED):
            after = task.augment(batch, torch.Generator().manual_seed(seed))[name]
            if after.shape != tensor.shape:
                break
            each = zip(tensor.flatten(2).double(), after.flatten(2).double(), strict=True)
            wrapped = [all(map(_is_wrapped_around, one, other)) for one, other in each]
            if sum(wrapped) >= FEWEST_WRAPPED:
                return name
    return ""


def _is_wrapped_around(before: Tensor, after: Tensor) -> bool:
    """Whether values map to values that only rise, except for falls by over half their range."""
    values, places = (torch.from_numpy(each) for each in np.unique(before, return_inverse=True))
    if len(values) < FEWEST_NUMBERS:
        return False
    made = torch.zeros(len(values), dtype=after.dtype).index_copy(0, places, after)
    if not torch.equal(made[places], after):
        return False  # no mapping of single values: pictures were turned or mixed
    rises, span = made.diff(), made.max() - made.min()
    falls = rises < 0
    is_mostly_rising = 4 * falls.sum() <= len(rises) <= 2 * (rises > 0).sum()
    return bool(falls.any() and (rises[falls] < -span / 2).all() and is_mostly_rising)


@dataclass(frozen=True)
class Sources:
    """The rows of a batch that each augmented example was made from."""

    # Tensor, the label included → how far each augmented example [B] moves when one row [B] is
    # exchanged in that tensor, as a share of its largest move. NaN where the row and its
    # replacement are the same.
    influence: dict[str, Tensor]

    def find_parted(self) -> list[str]:
        """Describe examples of which two tensors come from different rows."""
        found = dict[int, str]()
        can_follow = {name: each.isnan() | (each > 0) for name, each in self.influence.items()}
        for row in range(self.rows):
            followed = self._find_followed(row)
            for one, other in combinations(followed, 2):
                if not bool((can_follow[one][row] & can_follow[other][row]).any()):
                    rows = [int(followed[each].argmax()) for each in (one, other)]
                    shown = f"the {one} of row {rows[0]} and the {other} of row {rows[1]}"
                    found.setdefault(row, f"example {row} has {shown}")
        return list(found.values())

    def find_mixed(self) -> list[int]:
        """Return examples made of several rows whose label, or other tensors, are of one row."""
        found = []
        for row in range(self.rows):
            followed = self._find_followed(row)
            counts = [int((moves > MIXED_SHARE).sum()) for moves in followed.values()]
            own = int((followed[LABEL] > 0).sum()) if LABEL in followed else min(counts, default=0)
            if own == 1 and max(counts) > 1:
                found.append(row)
        return found

    @property
    def is_any_mixed(self) -> bool:
        """Whether any tensor mixes several rows, even slightly."""
        every = torch.stack(list(self.influence.values())).nan_to_num(0.0)
        return bool(((every > 0).sum(dim=2) > 1).any())

    def find_unlabelled(self) -> list[int]:
        """Return examples whose label does not follow any row's label."""
        largest = self.influence[LABEL].amax(dim=1)  # NaN where a row has no other label
        return [] if largest.isnan().any() else (largest == 0).nonzero().flatten().tolist()

    @property
    def rows(self) -> int:
        """Examples in the batch."""
        return len(self.influence[LABEL])

    def _find_followed(self, row: int) -> dict[str, Tensor]:
        """Return tensor → influence on one example, where there is any."""
        each = {name: moves[row].nan_to_num(0.0) for name, moves in self.influence.items()}
        return {name: moves for name, moves in each.items() if float(moves.max()) > 0}


@check(
    "augmentation_keeps_labels",
    expects="inputs and label of an augmented example from one row; a model trained without "
    "augmentation neither confuses two classes, nor turns a number round, nor falls to chance on "
    "augmented examples",
    source="guides: labels flipped by augmentation; rows are exchanged one at a time, then a "
    "short training predicts augmented examples",
)
def check_augmentation_keeps_labels(subject: Subject, judge: Judge) -> CheckResult:
    """Check that each augmented example still matches its label."""
    if not is_augmenting(subject.task):
        return judge.skipped(NO_AUGMENTATION)
    with made_up("batches with one row exchanged in one tensor"):
        # A draw may hold for the whole batch: then a flip is made in some of them alone.
        traces = (_trace(subject, draw) for draw in range(TRACES))
        sources = next(traces)
        later = (each.find_parted() for each in traces)
        parted = sources.find_parted() or next(filter(None, later), [])
    if parted:
        return judge.failed(
            f"{len(parted)} of {sources.rows} augmented examples have parts of different rows: "
            f"{parted[0]}",
            hint="augment shuffles or shifts one tensor but not the others: use the same order for "
            "all tensors, labels included",
        )
    if found := sources.is_any_mixed and judge_mixing(judge, subject, len(sources.find_mixed())):
        return found
    if unlabelled := sources.find_unlabelled():
        return judge.warned(
            f"{len(unlabelled)} of {sources.rows} augmented labels do not follow the row's label",
            hint="augment replaces labels: correct only if it changes the inputs to match",
        )
    return _judge_contents(judge, subject)


def _judge_contents(judge: Judge, subject: Subject) -> CheckResult:
    """Judge whether what augmented examples show is still what their labels say."""
    if moved := describe_moved_maps(subject):
        return judge.failed(moved, hint="flip or turn both by one draw")
    if dealt := describe_dealt_choices(subject):
        return judge.failed(dealt, hint="give the label the place to which its part was moved")
    if mirrored := describe_mirrored_words(subject):
        return judge.failed(
            mirrored,
            hint="exchange the words, or do not mirror: the text is wrong of a mirrored picture",
        )
    if subject.task.kind in ("binary", "multiclass"):
        return _judge_answers(judge, subject)
    return _judge_points(judge, subject)


@check(
    "plain_evaluation",
    expects="augment is not called by encode, nor by the model in evaluation mode",
    source="guides: augmentation is for training; evaluation must be deterministic",
)
def check_plain_evaluation(subject: Subject, judge: Judge) -> CheckResult:
    """Check that augmentation is not applied when examples are scored and served."""
    if not is_augmenting(subject.task):
        return judge.skipped(NO_AUGMENTATION)
    task, calls = copy.copy(subject.task), list[str]()
    stage = "build_model"

    def recorded(batch: Batch, generator: torch.Generator) -> Batch:
        calls.append(stage)
        return batch

    vars(task)["augment"] = recorded
    model = task.build_model()
    stage = "encode"
    batch = task.encode(subject.validation_rows.head(max(TRACED_ROWS, task.scored_together)))
    stage = "scoring"
    score_batch(task, model, batch)
    if calls:
        return judge.failed(
            f"augment is called by {', '.join(dict.fromkeys(calls))}",
            hint="remove the call: the engine calls augment, on training batches only",
        )
    return judge.passed(f"{len(batch[LABEL])} examples encoded and scored without it")


def is_augmenting(task: Task) -> bool:
    """Whether the task changes its training batches at random."""
    return type(task).augment is not Task.augment


def _trace(subject: Subject, draw: int) -> Sources:
    """Exchange one row of one tensor at a time and see which augmented examples follow."""
    seed = subject.seed + draw
    batch, other = exchange_rows(subject)
    rows = len(batch[LABEL])
    generator = torch.Generator()
    first = augment_copy(subject.task, batch, seed, generator)
    drawn = generator.get_state()
    influence = {}
    for name in (LABEL, *inputs_of(batch)):
        moves = torch.full((rows, rows), torch.nan)
        for row in range(rows):
            if torch.equal(batch[name][row], other[name][row]):
                continue
            tensor = batch[name].clone()
            tensor[row] = other[name][row]
            moved = augment_copy(subject.task, {**batch, name: tensor}, seed, generator)
            # If the row changes how many numbers are drawn, the others move because of those.
            if not torch.equal(generator.get_state(), drawn):
                continue
            after, before = (each[name].double().reshape(rows, -1) for each in (moved, first))
            far = (after - before).norm(dim=1)
            is_far = far > ROUNDING * (1 + after.norm(dim=1))
            moves[:, row] = torch.where(is_far, far, 0.0).float()
        largest = moves.nan_to_num(0.0).amax(dim=1, keepdim=True).clamp_min(1e-12)
        influence[name] = moves / largest
    return Sources(influence)


def _judge_answers(judge: Judge, subject: Subject) -> CheckResult:
    """Judge how a model trained without augmentation classifies augmented examples."""
    answers = _train_classifier(subject)
    plain = select_head(subject.validation, min(PREDICTED_ROWS, subject.task.scoring_rows))
    before, labels = answers(plain), _read_codes(plain)
    changed = [augment_copy(subject.task, plain, subject.seed + draw) for draw in range(DRAWS)]
    # Soft labels, as mixing makes them, do not name one class.
    given_labels = torch.cat([draw[LABEL] for draw in changed])
    is_whole = given_labels == given_labels.round()
    whole = is_whole.reshape(len(is_whole), -1).all(dim=1).numpy()
    if not whole.any():
        return judge.passed(f"{FOLLOWED}; contents not compared: labels are mixed")
    after = np.concatenate([answers(draw) for draw in changed])[whole]
    given = np.concatenate([_read_codes(draw) for draw in changed])[whole]
    chance = np.bincount(labels).max() / len(labels)
    right, kept = float(np.mean(before == labels)), float(np.mean(after == given))
    shown = f"accuracy {right:.0%}, augmented {kept:.0%}, always the most common class {chance:.0%}"
    clear = subject.settings.significance + POWER_MARGIN
    if z_score((before == labels) - chance) < clear:
        return judge.passed(
            f"{FOLLOWED}; contents not compared: a model trained without augmentation is too "
            f"inaccurate ({shown})"
        )
    is_lost = (kept - chance) < LOST_SHARE * (right - chance)
    if is_lost and (found := _judge_scale(judge, subject, plain, shown)):
        return found
    if pairs := _find_turned_classes((labels, before), (given, after)):
        named = ", ".join(f"class {one} is classified as {other}" for one, other, _ in pairs)
        # Of two classes, whatever hides one shows the other.
        is_sure = len(set(labels)) > 2 and any(is_exchange for *_, is_exchange in pairs)
        return (judge.failed if is_sure else judge.warned)(
            f"{shown}; {named}",
            hint="a flip, rotation or sign change makes one class look like the other, or noise "
            "hides the difference: leave it out, or change the label with it",
            turned=[[one, other] for one, other, _ in pairs],
        )
    if kept > chance:
        return judge.passed(f"{FOLLOWED}; {shown}")
    return judge.warned(
        shown,
        hint="augmented inputs no longer resemble encoded ones: does augment use another scale, "
        "order of channels or position of tokens than encode?",
    )


def _judge_points(judge: Judge, subject: Subject) -> CheckResult:
    """Judge numbers, and then points of pictures, which may have exchanged their sides."""
    found = _judge_numbers(judge, subject)
    if found.outcome != "failed" and (turned := describe_turned_points(subject)):
        return judge.warned(
            turned,
            hint="a mirrored picture has its left and right exchanged: exchange these points, too. "
            "Correct where each point is recognised by itself, as the tip of a thumb is",
        )
    return found


def _judge_numbers(judge: Judge, subject: Subject) -> CheckResult:
    """Judge augmentation that turns the inputs of a number into those of its opposite."""
    plain = select_head(subject.validation, PREDICTED_ROWS)
    changed = augment_copy(subject.task, plain, subject.seed)
    is_same_form = all(plain[name].shape == changed[name].shape for name in plain)
    is_number = plain[LABEL].is_floating_point() and plain[LABEL][0].numel() <= MOST_LABEL_NUMBERS
    if not _has_few_numbers(plain) or not is_number or not is_same_form:
        return judge.passed(f"{FOLLOWED}; contents not compared: neither classes nor few numbers")
    known = select_head(subject.train, NEIGHBOUR_ROWS)
    labels, given, learned = (
        each[LABEL].double().reshape(len(each[LABEL]), -1).numpy()
        for each in (plain, changed, known)
    )
    for model in (KNeighborsRegressor(NEIGHBOURS), Ridge()):
        model.fit(_read_numbers(known), learned)
        before, after = (
            model.predict(_read_numbers(each)).reshape(labels.shape) for each in (plain, changed)
        )
        for place, label in enumerate(labels.T):
            middle = before[:, place].mean()
            agreement = np.corrcoef(before[:, place], label)[0, 1] if label.std() > 0 else 0.0
            share = _measure_opposites(
                before[:, place] - middle, after[:, place] - middle,
                np.isclose(label, given[:, place]),
            )  # fmt: skip
            if agreement > PREDICTED_WELL and share >= OPPOSITE_SHARE:
                return judge.failed(
                    f"{share:.0%} of the augmented examples are predicted as the opposite of their "
                    "label, which augment leaves as it was",
                    hint="a flip, rotation or sign change turns the number, too: change the label "
                    "with it, or leave it out",
                )
    return judge.passed(f"{FOLLOWED}; no example is predicted as its label's opposite")


def _measure_opposites(before: Floats, after: Floats, is_kept: Flags) -> float:
    """Return the share of clear predictions that change their sign and nothing else."""
    clear = (np.abs(before) >= HALF * before.std()) & is_kept
    size = HALF * np.abs(before)
    same, opposite = (clear & (np.abs(after + sign * before) <= size) for sign in (-1, 1))
    if (same | opposite).sum() < EXPLAINED_SHARE * clear.sum():
        return 0.0
    return float(opposite.sum() / max(clear.sum(), 1))


def _train_classifier(subject: Subject) -> Callable[[Batch], Codes]:
    """Return a classifier that never saw an augmented example.

    Nearest neighbours if inputs are numbers: noise moves an example away from all of them alike,
    whereas a network may send it anywhere. Otherwise a short training.
    """
    if _has_few_numbers(subject.train):
        known = select_head(subject.train, NEIGHBOUR_ROWS)
        neighbours = KNeighborsClassifier(NEIGHBOURS).fit(_read_numbers(known), _read_codes(known))
        return lambda batch: np.asarray(neighbours.predict(_read_numbers(batch)), dtype=np.int64)
    settings, model = subject.settings, simplify(subject.build_model())
    train_model(subject, model, shuffle_batches(subject, subject.train, settings.training_steps))

    def classify(batch: Batch) -> Codes:
        chances = score_batch(subject.task, model, batch).predictions
        return (chances > 0.5).astype(np.int64) if chances.ndim == 1 else chances.argmax(axis=1)

    return classify


def _read_numbers(batch: Batch) -> Floats:
    """Return the inputs that are numbers, shape [B, N]."""
    # An input of one number per row has no second dimension.
    flat = [each.reshape(len(each), -1) for each in _list_numbers(batch)]
    return torch.cat(flat, dim=1).double().numpy()


def _list_numbers(batch: Batch) -> list[Tensor]:
    """Return the inputs that are numbers; bytes are pixels, other integers are codes."""
    kinds = (torch.float16, torch.float32, torch.float64, torch.uint8)
    return [each for each in inputs_of(batch).values() if each.dtype in kinds]


def _has_few_numbers(batch: Batch) -> bool:
    return 0 < sum(each[0].numel() for each in _list_numbers(batch)) <= MOST_NUMBERS


def _read_codes(batch: Batch) -> Codes:
    labels = batch[LABEL]
    return (labels.argmax(dim=1) if labels.ndim > 1 else labels).numpy().astype(np.int64)


def _judge_scale(judge: Judge, subject: Subject, plain: Batch, shown: str) -> CheckResult | None:
    """Fail if augmented numbers spread much further within an example, or hardly at all.

    None if they do not, or if outputs stay about the same: the model may normalise examples.
    """
    batch = select_head(plain, SCALED_ROWS)
    changed = augment_copy(subject.task, batch, subject.seed)
    numbers = [name for name, each in inputs_of(batch).items() if each.is_floating_point()]
    name = max(numbers, key=lambda each: batch[each][0].numel(), default=None)
    if name is None or batch[name][0].numel() < 2 or batch[name].shape != changed[name].shape:
        return None
    before, after = (each[name].flatten(1).double().std(dim=1) for each in (batch, changed))
    scale = float((after / before.clamp_min(1e-12)).median())
    if 1 / SCALED < scale < SCALED:
        return None
    model = build_noisy_model(subject)
    outputs, others = (run_model(model, each).double() for each in (batch, changed))
    moved = (others - outputs).abs().mean() / outputs.std(dim=0).mean().clamp_min(1e-12)
    if float(moved) <= UNSEEN_CHANGE:
        return None
    return judge.failed(
        f"the deviation of augmented {name} is {scale:.3g} times that of encoded {name}; {shown}",
        hint="augmented inputs no longer resemble encoded ones: is a share used as a percentage, "
        "or are numbers scaled that encode has already scaled?",
        scale=scale,
    )


def _find_turned_classes(
    plain: tuple[Codes, Codes], augmented: tuple[Codes, Codes]
) -> list[tuple[int, int, bool]]:
    """Return classes that are classified as another one once augmented, and whether both are."""
    classes = int(max(each.max() for each in (*plain, *augmented))) + 1
    counts = []
    for labels, answers in (plain, augmented):
        table = np.zeros((classes, classes))
        np.add.at(table, (labels, answers), 1)
        counts.append(table)
    before, after = (each / each.sum(axis=1, keepdims=True).clip(1) for each in counts)
    wrong = np.where(np.eye(classes, dtype=np.bool_), 0.0, after)
    shares = wrong / wrong.sum(axis=1, keepdims=True).clip(1e-12)
    least = CHANGED_SHARE_OF_TWO if classes == 2 else CHANGED_SHARE
    is_more = (wrong - before >= least) & (counts[1] >= CLEAR_EXAMPLES)
    # A class that attracts many others is not a confusion of two: inputs have become alike.
    drawn = ((shares >= DRAWN_SHARE) & is_more).sum(axis=0)
    is_main = is_more & (shares >= TURNED_SHARE) & (drawn <= DRAWN_CLASSES)
    found = is_main | (is_more & is_more.T & (np.minimum(shares, shares.T) >= EXCHANGED_SHARE))
    return [(int(one), int(other), bool(is_more[other, one])) for one, other in np.argwhere(found)]
