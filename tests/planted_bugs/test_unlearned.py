"""Columns that are not learned, rows that are shifted, tags that weigh the wrong way, torn lists."""

from datetime import datetime
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import other_structures as structures
import other_styles as styles
from other_styles import dataset_of, numbers_table, table_of
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS
from workshop import results_of

X, SCORE = numbers_table(4000)
WHOLE = SETTINGS.model_copy(update={"sample_rows": 4096})
LEARNS = "input_independent_baseline"


def examine(folder, check, task_type, frame, settings=WHOLE, **data):
    dataset = dataset_of(frame, folder, **data)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(steps=400, global_batch_size=128, seed=1)
    return results_of(Subject.prepare(make, dataset, settings, training), check)[check]


class TiedCodes(nn.Module):
    """Scores by the embeddings that also read the code: far from even at the start."""

    def __init__(self, codes):
        super().__init__()
        self.codes, self.hidden = nn.Embedding(codes, 24), nn.Linear(24, 24)

    def forward(self, code):
        return self.hidden(self.codes(code)).relu() @ self.codes.weight.T


class NextCode(Task):
    """What follows one of 70 codes: learned after more updates than the check makes at first."""

    kind = "multiclass"

    def encode(self, rows):
        return {
            LABEL if name == "label" else name: torch.from_numpy(rows[name].to_numpy(writable=True))
            for name in ("code", "label")
            if name in rows.columns
        }

    def build_model(self):
        return TiedCodes(70)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


class UnreadCode(NextCode):
    """The code is read through a layer whose output is rounded: nothing is learned through it."""

    def build_model(self):
        model = super().build_model()
        model.hidden.register_forward_hook(lambda layer, args, output: output.round())
        return model


def test_a_model_that_learns_slowly_is_told_from_one_that_does_not(tmp_path):
    """A linear model finds the signal long before either."""
    generator = np.random.default_rng(0)
    code = generator.integers(0, 70, 4000)
    follows, other = (29 * code + 3) % 70, generator.integers(0, 70, 4000)
    label = np.where(generator.random(4000) < 0.5, follows, other)
    frame = pl.DataFrame({"row": np.arange(4000), "code": code, "label": label})
    short = WHOLE.model_copy(update={"training_steps": 100, "learning_rates": (1e-3,)})
    slow = examine(tmp_path / "a", LEARNS, NextCode, frame, short)
    assert (slow.outcome, slow.hint) == ("warned", slow.hint)
    assert "in more updates real inputs lead" in slow.measured
    blind = examine(tmp_path / "b", LEARNS, UnreadCode, frame, short)
    assert (blind.outcome, "a linear model leads" in blind.measured) == ("failed", True), blind


class Factors(nn.Module):
    """Stars by the product of two embeddings and two biases; `read` changes the codes."""

    def __init__(self, codes, read=None):
        super().__init__()
        self.factors, self.biases = nn.Embedding(codes, 20), nn.Embedding(codes, 1)
        nn.init.normal_(self.factors.weight, std=0.05)
        nn.init.normal_(self.biases.weight, std=0.05)
        self._read = read or (lambda x: x)

    def forward(self, x):
        x = self._read(x)
        score = self.factors(x).prod(dim=1).sum(dim=1) + self.biases(x).sum(dim=(1, 2))
        return 1 + 4 * score.sigmoid()


class Stars(Task):
    """Stars that people give to things."""

    kind = "regression"
    read = None

    def encode(self, rows):
        pairs = rows.select("person", "thing").to_numpy()
        batch = {"x": torch.from_numpy(pairs + np.array([0, 400]))}
        if "label" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["label"].to_numpy(writable=True)).float()
        return batch

    def build_model(self):
        return Factors(800, self.read)

    def losses(self, output, batch):
        return (output - batch[LABEL]).square()


class StarsOfOthers(Stars):
    """The codes of another row are read."""

    def read(self, x):
        return x.roll(1, 0)


class StarsOfOne(Stars):
    """All codes are read as the same."""

    def read(self, x):
        return 0 * x + torch.tensor([0, 400])


def test_a_model_that_remembers_more_than_it_learns_is_no_model_that_learns_nothing(tmp_path):
    """Embeddings of few ratings lose on other rows, and yet need their own row's inputs."""
    generator = np.random.default_rng(0)
    person, thing = generator.integers(0, 400, (2, 16000))
    tastes = generator.normal(size=(2, 400)) * 0.6
    stars = 3.9 + tastes[0][person] + tastes[1][thing] + 1.2 * generator.normal(size=16000)
    columns = {"person": person, "thing": thing, "label": stars.clip(1, 5).round()}
    frame = pl.DataFrame({"row": np.arange(16000), **columns})
    result = examine(tmp_path / "a", LEARNS, Stars, frame)
    assert result.outcome == "warned", result
    assert "with inputs exchanged among rows it is worse" in result.measured
    for number, bug in enumerate((StarsOfOthers, StarsOfOne)):
        result = examine(tmp_path / f"bug {number}", LEARNS, bug, frame)
        assert result.outcome == "failed", result


class UnevenColumns(styles.HingeLoss):
    """Columns that tell something are a million times smaller than two that tell nothing."""

    def encode(self, rows):
        batch = super().encode(rows)
        scales = torch.tensor([1e-5] * 6 + [10.0] * 2)
        return {**batch, "x": batch["x"] * scales}


def test_rows_that_are_sorted_by_their_class_are_judged_like_others(tmp_path):
    """A linear model of the first half of the rows has only one class to learn."""
    frame = table_of(X, (np.quantile(SCORE, 0.7) < SCORE).astype(int)).sort("label")
    result = examine(tmp_path, LEARNS, styles.Binary, frame)
    assert result.outcome == "passed", result


@pytest.mark.parametrize("is_read", [True, False])
def test_a_named_feature_that_is_rarely_set_is_read(is_read, tmp_path):
    """Of 4,000 days one in two hundred is a holiday: hardly any of a few rows shows it."""
    is_holiday = (np.arange(len(X)) % 200 == 7).astype(float)
    frame = table_of(X, SCORE + is_holiday, holiday=is_holiday, unread=is_holiday)
    task_type = styles.Numbers if is_read else WithoutHolidays
    names = tuple(name for name in frame.columns if name not in ("row", "label", "unread"))
    result = examine(tmp_path, "lost_values", task_type, frame, features=names)
    assert result.outcome == ("passed" if is_read else "failed"), result
    assert is_read or "no tensor changes with holiday" in result.measured


class WithoutHolidays(styles.Numbers):
    """Forgets one of the features."""

    def encode(self, rows):
        return super().encode(rows.with_columns(holiday=pl.lit(0.0)))


def test_rows_that_are_sorted_by_an_input_can_be_memorised(tmp_path):
    """The first rows are alike; a batch of training is drawn from all of them."""
    generator = np.random.default_rng(1)
    skewed = np.column_stack([np.exp(2 * X[:, 0]), X[:, 1] > 0])
    frame = table_of(skewed, generator.normal(size=len(X))).sort("x0")
    result = examine(tmp_path, "overfit_one_batch", styles.Numbers, frame)
    assert result.outcome != "failed", result


def test_rows_of_few_different_inputs_may_be_sorted_by_their_class(tmp_path):
    """Of rows that share their inputs one is examined; not all of them are of the first class."""
    frame = table_of((X > 0).astype(float)[:, :2], (np.median(SCORE) < SCORE).astype(int))
    result = examine(tmp_path, "loss_floor", styles.Binary, frame.sort("label"))
    assert result.outcome == "passed", result


def test_rare_labels_that_only_a_linear_model_ranks_are_caught(tmp_path):
    """Losses of few rare labels vary too much to show it, and margins are no probabilities."""
    generator = np.random.default_rng(0)
    columns = np.column_stack([X, generator.normal(size=(len(X), 2))])
    frame = table_of(columns, (np.quantile(SCORE, 0.97) < SCORE).astype(int))
    uneven = examine(tmp_path / "a", LEARNS, UnevenColumns, frame)
    assert (uneven.outcome, "a linear model +" in uneven.measured) == ("failed", True), uneven
    even = examine(tmp_path / "b", LEARNS, styles.HingeLoss, frame)
    assert even.outcome != "failed", even


class ValueOfAction(styles.Columns):
    """Values of three actions, of which the label names the one whose return it gives."""

    kind = "statistic"
    metrics = directions_of("mean_loss")

    def encode_label(self, labels):
        return torch.tensor(labels.to_list(), dtype=torch.float32)

    def build_model(self):
        return styles.Module(self.network(3))

    def losses(self, output, batch):
        taken = output.gather(1, batch[LABEL][:, :1].long())[:, 0]
        return (taken - batch[LABEL][:, 1]).square()


class ValueOfBestAction(ValueOfAction):
    """The return is fitted to the highest value, whatever was done."""

    def losses(self, output, batch):
        return (output.amax(1) - batch[LABEL][:, 1]).square()


def test_a_part_of_the_label_that_nothing_reads_is_caught(tmp_path):
    action = np.random.default_rng(0).integers(0, 3, len(X))
    returns = X[np.arange(len(X)), action] + SCORE
    label = pl.Series(np.column_stack([action, returns]).tolist(), dtype=pl.List(pl.Float64))
    frame = table_of(X, label)
    best = examine(tmp_path / "a", "labels", ValueOfBestAction, frame)
    assert (best.outcome, "the numbers at 0 of" in best.measured) == ("failed", True), best
    taken = examine(tmp_path / "b", "labels", ValueOfAction, frame)
    assert taken.outcome == "passed", taken


class OneWay(nn.Module):
    """A sum of columns, each with a weight above zero."""

    def __init__(self, signs):
        super().__init__()
        self.register_buffer("signs", torch.tensor(signs))
        self.raw = nn.Parameter(torch.zeros(len(signs)))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return (x * self.signs) @ nn.functional.softplus(self.raw) + self.bias


class Monotone(styles.Numbers):
    """The label rises with three columns and falls with three others, as the model demands."""

    signs = (1.0, 1.0, 1.0, -1.0, -1.0, -1.0)

    def build_model(self):
        return OneWay(self.signs)


class OneSignTurned(Monotone):
    """One column may only lower the prediction, which it raises."""

    signs = (1.0, -1.0, 1.0, -1.0, -1.0, -1.0)


def test_a_column_that_may_only_act_in_the_wrong_direction_is_caught(tmp_path):
    label = X[:, :3].sum(1) - X[:, 3:].sum(1) + np.random.default_rng(0).normal(size=len(X))
    frame = table_of(X, label)
    wrong = examine(tmp_path / "a", LEARNS, OneSignTurned, frame)
    assert (wrong.outcome, "x[1]" in wrong.measured) == ("warned", True), wrong
    assert "constraints on signs" in wrong.hint
    right = examine(tmp_path / "b", LEARNS, Monotone, frame)
    assert right.outcome == "passed", right


def test_a_column_that_tells_something_only_in_later_days_is_not_called_unlearned(tmp_path):
    """As in flights in spring: no model can learn from earlier days what holds in later ones."""
    days = [datetime(2024, 4, 1 + 30 * row // len(X)) for row in range(len(X))]
    is_late = np.array([day.day > 16 for day in days])
    noise = np.random.default_rng(0).normal(size=len(X))
    label = X[:, 0] - X[:, 1] + X[:, 2] * is_late + noise
    result = examine(
        tmp_path, LEARNS, styles.Numbers, table_of(X, label, day=days), time="day",
    )  # fmt: skip
    assert result.outcome == "passed", result


def test_labels_of_the_row_before_are_caught(tmp_path):
    late = np.roll(SCORE, 1)
    wrong = examine(tmp_path / "a", LEARNS, styles.Numbers, table_of(X, late))
    assert (wrong.outcome, "the row after" in wrong.measured) == ("failed", True), wrong
    noise = np.random.default_rng(1).permutation(SCORE)
    unclear = examine(tmp_path / "b", LEARNS, styles.Numbers, table_of(X, noise))
    assert unclear.outcome == "warned", unclear


def test_labels_of_the_row_before_that_are_known_in_part_are_caught(tmp_path):
    """Where rows have an order, each tells a little of the label before it."""
    order = np.argsort(X[:, 0] + 1.5 * np.random.default_rng(2).normal(size=len(X)))
    x, own = X[order], SCORE[order]
    wrong = examine(tmp_path / "a", LEARNS, styles.Numbers, table_of(x, np.roll(own, 1)))
    assert (wrong.outcome, "the row after" in wrong.measured) == ("failed", True), wrong
    right = examine(tmp_path / "b", LEARNS, styles.Numbers, table_of(x, own))
    assert right.outcome == "passed", right


def test_a_feature_that_is_the_label_of_the_row_before_passes(tmp_path):
    frame = table_of(X, SCORE, lag=np.roll(SCORE, 1))
    result = examine(tmp_path, LEARNS, styles.Numbers, frame)
    assert result.outcome == "passed", result


LIMITS = (-1.5, 0.0, 1.5, 2.5)
TAGS = [" ".join(map(str, row)) for row in (SCORE[:, None] > np.array(LIMITS)).astype(int).tolist()]


class TagWeights(structures.MultiLabel):
    """Tags that hold weigh by negatives over positives."""

    power = 1.0

    def fit_label(self, labels):
        tags = np.array([list(map(float, text.split())) for text in labels])
        share = tags.mean(axis=0)
        return {"weights": ((1 - share) / share).tolist()}

    def training_losses(self, output, batch):
        weights = torch.tensor(self.fitted["weights"]) ** self.power
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none", pos_weight=weights
        ).mean(1)


class InvertedTagWeights(TagWeights):
    """Positives over negatives."""

    power = -1.0


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [(InvertedTagWeights, "failed"), (TagWeights, "passed"), (structures.MultiLabel, "passed")],
)
def test_weights_of_tags_are_judged_by_their_frequency(task_type, outcome, tmp_path):
    result = examine(tmp_path, "class_weights", task_type, table_of(X, TAGS))
    assert result.outcome == outcome, result


class WeighedByCounts(styles.Classes):
    """Weights by the effective number of rows, in the order of the class codes."""

    def fit_label(self, labels):
        counts = dict(labels.value_counts(sort=True).iter_rows())
        return super().fit_label(labels) | {"counts": [counts[each] for each in sorted(counts)]}

    def weights(self):
        return (1 - 0.99) / (1 - 0.99 ** torch.tensor(self.fitted["counts"]))

    def training_losses(self, output, batch):
        return self.weights()[batch[LABEL]] * self.losses(output, batch)


class WeighedInAnotherOrder(WeighedByCounts):
    """Counts are listed from the most frequent class on, codes by the alphabet."""

    def fit_label(self, labels):
        counts = labels.value_counts(sort=True)["count"].to_list()
        return super().fit_label(labels) | {"counts": counts}


class WeighedByCosts(WeighedByCounts):
    """Mistakes differ in cost: a more frequent class weighs more than a rarer one."""

    def weights(self):
        return torch.tensor([1.5, 2.0, 1.0, 4.0])


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [(WeighedInAnotherOrder, "failed"), (WeighedByCounts, "passed"), (WeighedByCosts, "passed")],
)
@pytest.mark.parametrize("sample_rows", [4096, 500])
def test_weights_of_a_formula_are_those_of_their_own_classes(
    task_type, outcome, sample_rows, tmp_path
):
    names = np.array(["sound", "pores", "crack", "undercut"])
    ranks = np.quantile(SCORE[:800], [0.5, 0.75, 0.91])
    frame = table_of(X[:800], names[np.digitize(SCORE[:800], ranks)])
    settings = SETTINGS.model_copy(update={"sample_rows": sample_rows})
    result = examine(tmp_path, "class_weights", task_type, frame, settings)
    assert result.outcome == outcome, result


class Tags(structures.MultiLabel):
    """Counts tags that are wrong, as those with a logit on the other side of zero."""

    def statistic(self, output, batch):
        return ((output > 0) != (batch[LABEL] > 0.5)).double().mean(1)


class CompetingTags(Tags):
    """Tags of a row share one softmax, though several hold."""

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


class RankedTags(CompetingTags):
    """Only the order of the tags is used: the likeliest should hold."""

    def statistic(self, output, batch):
        return 1 - batch[LABEL].gather(1, output.argmax(1, keepdim=True))[:, 0].double()


@pytest.mark.parametrize(
    ("task_type", "is_caught"), [(CompetingTags, True), (Tags, False), (RankedTags, False)]
)
def test_metrics_that_the_loss_leaves_undetermined_are_caught(task_type, is_caught, tmp_path):
    result = examine(tmp_path, "metric_values", task_type, table_of(X, TAGS))
    assert (result.outcome == "failed") == is_caught, result
    assert ("a constant added" in result.measured) == is_caught


class BoundedTags(CompetingTags):
    """The loss rejects outputs that are far too large."""

    rejection = ValueError

    def losses(self, output, batch):
        if output.abs().max() > 4:
            raise self.rejection("outputs are beyond the range")
        return super().losses(output, batch)


class WeightedByAugment(RankedTags):
    """What is minimised reads weights that `augment` adds."""

    def augment(self, batch, generator):
        return {**batch, "share": torch.rand(len(batch[LABEL]), generator=generator)}

    def training_losses(self, output, batch):
        return self.losses(output, batch) * batch["share"]

    def build_model(self):
        return IgnoresOthers(super().build_model())


class IgnoresOthers(nn.Module):
    """Takes what `augment` adds, and leaves it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, **others):
        return self.model(x)


class BrokenBranch(BoundedTags):
    """The branch for large outputs reads what does not exist."""

    rejection = AttributeError


class BrokenTraining(CompetingTags):
    """What is minimised reads weights that the batch does not have."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) * batch["wieght"]


class TornTraining(CompetingTags):
    """What is minimised has a row less than the labels."""

    def training_losses(self, output, batch):
        return self.losses(output[1:], batch)


@pytest.mark.parametrize(
    ("task_type", "outcome", "reported"),
    [
        (BoundedTags, "skipped", ""),
        (WeightedByAugment, "skipped", ""),
        (BrokenBranch, "warned", "not measured: on predictions with noise"),
        (BrokenTraining, "failed", "training_losses raises KeyError: 'wieght'"),
        (TornTraining, "failed", "losses raises ValueError: Expected input batch_size"),
    ],
)
def test_a_loss_may_reject_outputs_and_its_bugs_are_reported(
    task_type, outcome, reported, tmp_path
):
    result = examine(tmp_path, "metric_values", task_type, table_of(X, TAGS))
    assert result.outcome == outcome, result
    assert reported in result.measured


class Shortcut(structures.Autoencoder):
    """Beside its narrow layer, the input goes round it."""

    has_shortcut = True

    def build_model(self):
        return Restoring(len(self.fitted["mean"]), self.has_shortcut)


class NoShortcut(Shortcut):
    has_shortcut = False


class Restoring(nn.Module):
    """Two numbers, from which all are restored."""

    def __init__(self, width, has_shortcut):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(width, 2), nn.Linear(2, width)
        self.has_shortcut = has_shortcut

    def forward(self, x):
        found = self.decoder(self.encoder(x))
        return found + x if self.has_shortcut else found


@pytest.mark.parametrize(("task_type", "outcome"), [(Shortcut, "failed"), (NoShortcut, "passed")])
def test_an_input_that_goes_round_the_bottleneck_is_caught(task_type, outcome, tmp_path):
    rng = np.random.default_rng(3)
    mixed = rng.normal(size=(2000, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(
        size=(2000, 12)
    )
    result = examine(tmp_path, LEARNS, task_type, table_of(mixed, np.zeros(2000)))
    assert result.outcome == outcome, result
    assert ("exchanged among them" in result.measured) == (outcome == "failed")


class Signals(Task):
    """Lists of three series whose values alternate, as a sensor writes them."""

    kind = "regression"
    series, is_in_turn = 3, True

    def encode(self, rows):
        values = torch.tensor(rows["signal"].to_list(), dtype=torch.float32)
        batch = {"signal": self.read(values)}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list(), dtype=torch.float32)
        return batch

    def read(self, values):
        return values.view(-1, 16, 3).transpose(1, 2).contiguous()

    def build_model(self):
        return Flattened()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square()


class Flattened(nn.Module):
    """All numbers into one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(48, 1)

    def forward(self, signal):
        return self.layer(signal.flatten(1)).squeeze(1)


class ViewedSignals(Signals):
    """Three long parts of the list are taken for the three series."""

    def read(self, values):
        return values.view(-1, 3, 16)


class Pairs(Signals):
    """Two series, each recording by its own gain."""

    series = 2

    def read(self, values):
        values = values / values.square().mean(1, keepdim=True).sqrt()
        return values.view(-1, 24, 2).transpose(1, 2).contiguous()


class ViewedPairs(Pairs):
    """Two halves of the list are taken for the two series."""

    def read(self, values):
        return super().read(values).transpose(1, 2).reshape(-1, 2, 24)


class InHalves(ViewedPairs):
    """The list holds one series after the other."""

    is_in_turn = False


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [
        (ViewedSignals, "failed"), (Signals, "passed"),
        (ViewedPairs, "failed"), (Pairs, "passed"), (InHalves, "passed"),
    ],
)  # fmt: skip
def test_alternating_series_that_are_cut_into_parts_are_caught(task_type, outcome, tmp_path):
    random, count = np.random.default_rng(2), task_type.series
    walks = np.cumsum(0.1 * random.normal(size=(600, 48 // count, count)), axis=1)
    walks += random.normal(size=(1, 1, count))
    walks = walks if task_type.is_in_turn else walks.swapaxes(1, 2)
    signal = walks.reshape(600, -1)
    frame = pl.DataFrame({"row": range(600), "signal": signal.tolist(), "label": signal[:, -1]})
    result = examine(tmp_path, "encoding", task_type, frame)
    assert result.outcome == outcome, result


class Bases(Signals):
    """Letters as one-hot codes, a channel for each of four; N is none."""

    def encode(self, rows):
        codes = torch.tensor([["ACGT".find(base) for base in each] for each in rows["signal"]])
        letters = torch.nn.functional.one_hot(codes + 1, 5)[:, :, 1:].float()
        batch = {"signal": self.read(letters)}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list(), dtype=torch.float32)
        return batch

    def read(self, letters):
        return letters.transpose(1, 2).contiguous()


class ViewedBases(Bases):
    def read(self, letters):
        return letters.reshape(len(letters), 4, -1)


class FlaggedDays(Bases):
    """Flags of which several are set, or none."""

    def read(self, letters):
        return (letters + letters.roll(1, 1)).clamp(max=1)


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(ViewedBases, "failed"), (Bases, "passed"), (FlaggedDays, "passed")]
)
def test_one_hot_codes_that_are_reshaped_are_caught(task_type, outcome, tmp_path):
    random = np.random.default_rng(4)
    texts = [
        "".join(random.choice(list("ACGTN"), 12, p=[0.3, 0.2, 0.2, 0.28, 0.02])) for _ in range(600)
    ]
    frame = pl.DataFrame({"row": range(600), "signal": texts, "label": random.normal(size=600)})
    result = examine(tmp_path, "encoding", task_type, frame)
    assert result.outcome == outcome, result


class MeasuredTwice(structures.MultiLabel):
    """The last column is read from the first."""

    def encode(self, rows):
        return super().encode(rows.with_columns(x5=pl.col("x0")))


def test_a_feature_that_the_contract_names_and_nothing_reads_is_caught(tmp_path):
    """Also where there is no single label to compare it with."""
    frame, features = table_of(X, TAGS), tuple(f"x{place}" for place in range(6))
    wrong = examine(tmp_path / "a", "lost_values", MeasuredTwice, frame, features=features)
    assert (wrong.outcome, "x5" in wrong.measured) == ("failed", True), wrong
    right = examine(tmp_path / "b", "lost_values", structures.MultiLabel, frame, features=features)
    assert right.outcome == "passed", right


class LeftFromAnExperiment(structures.MultiLabel):
    """The column that tells most is still multiplied by zero."""

    def encode(self, rows):
        batch = super().encode(rows)
        batch["x"][:, 0] = 0.0
        return batch


def test_values_that_tags_need_are_not_lost_without_a_failure(tmp_path):
    result = examine(tmp_path, "lost_values", LeftFromAnExperiment, table_of(X, TAGS))
    assert result.outcome == "failed", result
    assert "of x0 become the same input" in result.measured


class ForgetsFlag(styles.Binary):
    """The flag is read, and set to False."""

    def encode(self, rows):
        rows["flag"]
        return super().encode(rows.with_columns(flag=False))


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(styles.Binary, "passed"), (ForgetsFlag, "failed")]
)
def test_flags_are_looked_at_as_other_columns(task_type, outcome, tmp_path):
    frame = table_of(X[:, 1:3], (SCORE > 0).astype(int), flag=X[:, 0] > 0)
    result = examine(tmp_path, "lost_values", task_type, frame)
    assert result.outcome == outcome, result


class Turning(styles.Binary):
    """Sine and cosine of a column in place of itself, of `turns` to its unit."""

    turns = 1 / 24

    def encode(self, rows):
        batch = super().encode(rows)
        angle = 2 * np.pi * self.turns * rows["hour"].to_numpy()
        both = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
        return {**batch, "x": torch.cat([batch["x"][:, 1:], torch.from_numpy(both)], dim=1)}

    def build_model(self):
        self.fitted["mean"] = [*self.fitted["mean"], 0.0][: X.shape[1] + 2]
        return super().build_model()


class HoursAsRadians(Turning):
    turns = 1 / (2 * np.pi)


class ListOfHours(Turning):
    """Of the hours of two events, the first one's."""

    def fit(self, train):
        super().fit(train.with_columns(hour=pl.col("hour").list.get(0)))

    def encode(self, rows):
        return super().encode(rows.with_columns(hour=pl.col("hour").list.get(0)))


class ListOfHoursAsRadians(ListOfHours):
    turns = 1 / (2 * np.pi)


@pytest.mark.parametrize("others", [{}, {"empty": pl.Series([None] * len(X), dtype=pl.Float64)}])
@pytest.mark.parametrize(
    ("task_type", "outcome"), [(Turning, "passed"), (HoursAsRadians, "failed")]
)
def test_hours_in_a_sine_without_their_period_fail(task_type, outcome, others, tmp_path):
    """Also beside a column that holds no value, which is in no input here."""
    frame = table_of(X, (SCORE > 0).astype(int), hour=np.arange(len(X)) % 24, **others)
    result = examine(tmp_path, "lost_values", task_type, frame)
    assert result.outcome == outcome, result
    assert outcome == "passed" or "of hour in radians, but it runs from 0 to 23" in result.measured


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(ListOfHours, "passed"), (ListOfHoursAsRadians, "failed")]
)
def test_hours_in_lists_fail_alike(task_type, outcome, tmp_path):
    hours = [[hour % 24, (hour + 5) % 24] for hour in range(len(X))]
    frame = table_of(X, (SCORE > 0).astype(int), hour=hours)
    assert examine(tmp_path, "lost_values", task_type, frame).outcome == outcome
