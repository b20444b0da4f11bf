"""Tags that stand at other tokens than their words' first, and taggers that must not be doubted."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from perennial.check_skeleton.checks.data.encoding.encoding import check_labels
from perennial.check_skeleton.examination import run_checks
from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.columns.tokenization import IGNORED
from perennial.tasks.text_classification import LENGTH, TOKENS
from perennial.tasks.token_classification import TokenClassification
from perennial.tasks.transformers_models import TransformersTokenClassification
from planted import Bug, Healthy, require_caught, require_healthy
from planted import planted as planted_bug

BUGS: list[Bug] = []
SIZES = {"width": 32, "heads": 2}
PAIRS = SIZES | {"vocab_size": 300, "context_length": 32}
BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


def planted(check, hint, options=SIZES):
    return planted_bug(BUGS, check, hint, material="sentences", options=options)


class Moved(TokenClassification):
    """Base: tags at other tokens."""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            for row in range(rows.height):
                self.move(batch[LABEL][row], int(batch[LENGTH][row]))
        return batch

    def move(self, label, length):
        """Change the label of one text."""


@planted("ablation", "undoes all")
class AxesMixedInTraining(TokenClassification):
    """outputs [B, T, C] become [B, C, T] by a reshape, in the training loss alone"""

    def training_losses(self, output, batch):
        mixed = output.reshape(len(output), output.shape[2], output.shape[1])
        return cross_entropy(
            mixed, batch[LABEL].long(), ignore_index=IGNORED, reduction="none"
        ).mean(1)


@planted("example_weights", "give padding a label that the loss ignores")
class PaddingInTheLoss(Moved):
    """padding is labelled as outside"""

    def move(self, label, length):
        label[length:] = self.fitted.classes.index("O")


@planted("example_weights", "padding may be in the loss")
class EachTokenLabelled(Moved):
    """a word's other tokens have its tag too, and words are counted"""

    def move(self, label, length):
        places = (label != IGNORED).nonzero()[:, 0].tolist()
        for start, end in zip(places, [*places[1:], length], strict=True):
            label[start:end] = label[start]


class OneWordLate(Moved):
    """each tag is given to the next word"""

    def move(self, label, length):
        is_word = label != IGNORED
        label[is_word] = label[is_word].roll(1)


planted("labels", "given to the word after its own")(OneWordLate)
planted("labels", "given to the word after its own", options=PAIRS)(
    type("OneWordLateInPairs", (OneWordLate,), {"__doc__": "the same with byte pairs"})
)


@planted("labels", "given to the word after its own")
class SomeOneWordLate(OneWordLate):
    """the tags of every fifth text are given to the next word"""

    def move(self, label, length):
        if length % 5 == 0:
            super().move(label, length)


@planted("shuffled_labels", "the label reaches the inputs")
class TagsInTheTokens(TokenClassification):
    """a word's first token is replaced by its tag, in training and evaluation"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            is_word = batch[LABEL] != IGNORED
            batch[TOKENS] = torch.where(is_word, batch[LABEL], batch[TOKENS])
        return batch


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_moved_tags_are_found(bug, workshop):
    require_caught(bug, workshop)


class LastToken(Moved):
    """Tags at the last token of each word, as some models are trained."""

    def move(self, label, length):
        places = (label != IGNORED).nonzero()[:, 0].tolist()
        codes = label[places].clone()
        label.fill_(IGNORED)
        # The space before the next word is a token of its own.
        ends = [*(start - 2 for start in places[1:]), length - 1]
        label[torch.tensor(ends)] = codes


class TagOfTheNextWord(Moved):
    """What comes next is the label."""

    def move(self, label, length):
        is_word = label != IGNORED
        label[is_word] = label[is_word].roll(-1)


@pytest.mark.parametrize("task_type", [TokenClassification, LastToken, TagOfTheNextWord])
def test_tags_at_their_words_pass(task_type, workshop):
    result = check_labels(workshop.subject(task_type, "sentences", options=SIZES))
    assert result.outcome == "passed", (result.measured, result.hint)


class EachTokenCounted(EachTokenLabelled):
    """A word's other tokens have its tag too, and each counts."""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch[WEIGHT] = (batch[LABEL] != IGNORED).sum(dim=1).float()
        return batch


READING = (
    "labels", "shuffled_labels", "example_weights", "initial_loss", "few_rows", "text_coverage",
    "future_independence", "padding_independence", "metric_values", "predictions",
)  # fmt: skip
MORE = [
    Healthy("words of bytes", TokenClassification, "sentences", {"options": SIZES}),
    Healthy(
        "byte pairs, smoothed", TokenClassification, "sentences",
        {"options": PAIRS | {"token_dropout": 0.05, "label_smoothing": 0.05}},
    ),
    Healthy("each token counts", EachTokenCounted, "sentences", {"options": SIZES}),
    Healthy("cut texts", TokenClassification, "sentences", {"options": SIZES | {"context_length": 24}}),
    Healthy(
        "bert", TransformersTokenClassification, "sentences", {"options": {"config": BERT}}
    ),
]  # fmt: skip


def test_a_healthy_tagger_passes_what_reads_tags_and_words(workshop):
    results = run_checks(workshop.subject(TokenClassification, "sentences", options=SIZES), READING)
    assert {each.check for each in results} >= set(READING)
    doubted = [each for each in results if each.outcome not in ("passed", "skipped")]
    assert not doubted
    skipped = {each.check: each.measured for each in results if each.outcome == "skipped"}
    assert skipped.keys() <= {"future_independence", "text_coverage"}, skipped


@pytest.mark.full
@pytest.mark.parametrize("task", MORE, ids=lambda task: task.name)
def test_healthy_taggers_have_no_finding(task, workshop):
    if issubclass(task.task_type, TransformersTokenClassification):
        pytest.importorskip("transformers")
    require_healthy(task, workshop)
