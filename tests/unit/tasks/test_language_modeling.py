"""Documents become examples whose loss is the exact mean over tokens, however long each is."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from documents import DocumentsCountAlike, documents, pinned, small_task, subject_of
from perennial.check_skeleton.examination import run_checks
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.columns.tokenization import BOUNDARY, IGNORED
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel

TEXTS = ["ab", "", "a much longer text than one context holds", "x" * 24]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    return pinned(tmp_path_factory.mktemp("documents"), documents())


def encoded(snapshot, texts=TEXTS, **options):
    return small_task(snapshot, **options).encode(pl.DataFrame({"text": texts}))


def test_each_label_is_the_next_token_and_padding_counts_nothing(snapshot):
    batch = encoded(snapshot)
    assert batch[TOKENS][0, :3].tolist() == [BOUNDARY, *b"ab"]
    assert batch[LABEL][0, :4].tolist() == [*b"ab", BOUNDARY, IGNORED]
    assert batch[WEIGHT].tolist() == [3, 1, 24, 24]
    assert torch.equal(batch[LABEL][2, :-1], batch[TOKENS][2, 1:])


def test_windows_hold_what_one_context_cuts(snapshot):
    batch = encoded(snapshot, windows=2)
    assert batch[TOKENS].shape == (4, 48)
    assert batch[WEIGHT].tolist() == [3, 1, 42, 25]
    model = small_task(snapshot, windows=2).build_model().eval()
    with torch.no_grad():
        both = model(batch[TOKENS])
        model.windows = 1
        second = model(batch[TOKENS][:, 24:])
    assert both.shape == (4, 48, 257)
    assert torch.allclose(both[:, 24:], second, atol=1e-6), "each window is seen by itself"


def test_a_loss_is_the_mean_over_the_tokens_of_its_document(snapshot):
    task, batch = small_task(snapshot), encoded(snapshot)
    output = torch.randn(4, 24, 257, generator=torch.Generator().manual_seed(0))
    log_shares = output.log_softmax(-1)
    for row, losses in enumerate(task.losses(output, batch)):
        labels = [label for label in batch[LABEL][row].tolist() if label != IGNORED]
        own = [-float(log_shares[row, at, label]) for at, label in enumerate(labels)]
        assert float(losses) == pytest.approx(np.mean(own), rel=1e-5)


def test_metrics_are_those_of_all_tokens_together(snapshot):
    task, batch = small_task(snapshot), encoded(snapshot)
    model = task.build_model()
    scored = score_batch(task, model, batch)
    with torch.no_grad():
        logits = model.eval()(batch[TOKENS])
    counts = batch[LABEL] != IGNORED
    nats = nn.functional.cross_entropy(logits[counts], batch[LABEL][counts].long()).item()
    metrics = scored.metrics(task)
    assert metrics["loss"] == pytest.approx(nats, rel=1e-6)
    assert metrics["perplexity"] == pytest.approx(math.exp(nats), rel=1e-6)
    # 2 + 0 + 24 + 24 bytes, and the boundaries that two of the documents end with.
    assert metrics["bits_per_byte"] == pytest.approx(nats * 52 / math.log(2) / 50, rel=1e-6)
    assert task.exposure(scored.predictions, scored.weights).tolist() == [2, 0, 24, 24]


def test_label_smoothing_is_for_training_alone(snapshot):
    batch = encoded(snapshot)
    output = torch.zeros(4, 24, 257).scatter_(2, batch[LABEL].clamp_min(0).long()[..., None], 9.0)
    plain, smooth = small_task(snapshot), small_task(snapshot, label_smoothing=0.1)
    assert (smooth.training_losses(output, batch) > plain.losses(output, batch) + 0.5).all()
    assert torch.equal(smooth.losses(output, batch), plain.losses(output, batch))
    assert torch.equal(plain.training_losses(output, batch), plain.losses(output, batch))
    assert torch.equal(smooth.statistic(output, batch), plain.statistic(output, batch))


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_the_first_loss_is_that_of_equally_likely_tokens(snapshot, variant):
    task = small_task(snapshot, variant=variant)
    torch.manual_seed(1)
    loss = score_batch(task, task.build_model(), encoded(snapshot)).mean_loss()
    assert loss == pytest.approx(task.expected_initial_loss(), rel=0.05)


def test_examples_are_shown_as_text_with_what_is_cut(snapshot):
    task, batch = small_task(snapshot), encoded(snapshot)
    assert task.describe(batch, 0) == {"text": "ab", TOKENS: "3"}
    assert task.describe(batch, 2) == {"text": "a much longer text than ", TOKENS: "24, cut"}


def test_scoring_takes_fewer_rows_where_logits_are_many(snapshot):
    assert small_task(snapshot).scoring_rows == 4096
    assert small_task(snapshot, vocab_size=50_000, context_length=512).scoring_rows == 1


def test_features_beside_the_text_are_refused(snapshot):
    columns = TaskColumns(label="text", features={"text": "String", "library": "String"})
    with pytest.raises(BadTaskError, match="reads the label 'text' alone"):
        CausalLanguageModel(CausalLanguageModel.Options(), columns)


def test_byte_pairs_are_learned_from_the_training_split_and_kept_in_the_state(snapshot):
    pytest.importorskip("tokenizers")
    task = small_task(snapshot, vocab_size=300)
    task.fit(pl.LazyFrame({"text": ["the mean of the array"] * 20}))
    restored = small_task(snapshot, vocab_size=300)
    restored.load_state(task.state())
    rows = pl.DataFrame({"text": ["the mean of größe", "array"]})
    for name, tensor in task.encode(rows).items():
        assert torch.equal(restored.encode(rows)[name], tensor), name
    lengths = task.statistic(torch.zeros(2, 24, 300), task.encode(rows))[:, 1]
    counts = task.encode(rows)[WEIGHT]
    assert (lengths * counts).tolist() == pytest.approx([19, 5])
    assert counts[1] < 5


# Results of the sanity checks on it, and on common mistakes in language models.


def outcomes(task_type, snapshot, *names, **options):
    subject = subject_of(task_type, snapshot, **options)
    return {result.check: result for result in run_checks(subject, names)}


@pytest.mark.parametrize("options", [{}, {"variant": "gpt2", "windows": 2, "context_length": 12}])
def test_the_reference_model_passes_every_check_that_applies(snapshot, options):
    results = outcomes(CausalLanguageModel, snapshot, **options)
    doubted = {
        r.check: (r.measured, r.hint) for r in results.values() if r.outcome in ("warned", "failed")
    }
    assert not doubted
    assert {"future_independence", "next_token", "position_use"} <= {
        name for name, result in results.items() if result.outcome == "passed"
    }


class UnshiftedLabels(CausalLanguageModel):
    """the label of a token is the token itself"""

    def encode(self, rows):
        batch = super().encode(rows)
        counts = batch[LABEL] != IGNORED
        return {**batch, LABEL: torch.where(counts, batch[TOKENS], IGNORED)}


class PaddingCounts(CausalLanguageModel):
    """padding is a token like any other in the loss"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].masked_fill(batch[LABEL] == IGNORED, BOUNDARY)}


class BothDirections(CausalLanguageModel):
    """attention has no causal mask"""

    def build_model(self):
        model = super().build_model()
        for block in model.blocks:
            block.attention.core = Unmasked()
        return model


class Unmasked(nn.Module):
    def forward(self, query, key, value):
        heads = [part.transpose(1, 2) for part in (query, key, value)]
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2)


class SummedLosses(CausalLanguageModel):
    """the loss is the sum over a document's tokens, which its weight then counts again"""

    def losses(self, output, batch):
        return super().losses(output, batch) * batch[WEIGHT]


class MixesDocuments(CausalLanguageModel):
    """the sequences of a batch are joined before the model reads them"""

    def build_model(self):
        return Joined(super().build_model())


class Joined(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens.reshape(1, -1)).view(*tokens.shape, -1)


class UnweightedPerplexity(CausalLanguageModel):
    """metrics are means over documents instead of tokens"""

    def score(self, predictions, labels):
        return super().score(predictions, np.ones(len(labels)))


class SmallVocabulary(CausalLanguageModel):
    """the expected loss is that of 26 letters"""

    def expected_initial_loss(self):
        return math.log(26)


BUGS = [
    (UnshiftedLabels, "future_independence", "failed", "shift the labels"),
    (BothDirections, "future_independence", "failed", "causal mask"),
    (PaddingCounts, "example_weights", "failed", "padding"),
    (DocumentsCountAlike, "example_weights", "warned", "number of tokens"),
    (SummedLosses, "initial_loss", "failed", ""),
    (MixesDocuments, "example_independence", "failed", "mixes"),
    (UnweightedPerplexity, "metric_direction", "failed", "weights"),
    (SmallVocabulary, "initial_loss", "failed", ""),
]


@pytest.mark.parametrize(
    ("task_type", "check", "outcome", "hint"), BUGS, ids=[bug[0].__doc__ for bug in BUGS]
)
def test_planted_bug_is_caught(snapshot, task_type, check, outcome, hint):
    result = outcomes(task_type, snapshot, check)[check]
    assert result.outcome == outcome, result
    assert hint in result.hint


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(CausalLanguageModel, "passed"), (BothDirections, "failed")]
)
def test_looking_ahead_is_caught_in_scripts_of_several_bytes(tmp_path, task_type, outcome):
    sentence = "连续训练使模型保持新鲜而不浪费计算资源"
    rows = documents().with_columns(
        pl.Series("text", [sentence[row % 7 :] * 3 for row in range(documents().height)])
    )
    result = outcomes(task_type, pinned(tmp_path, rows), "future_independence")
    assert result["future_independence"].outcome == outcome, result


class ForgetsTheText(CausalLanguageModel):
    """every document is encoded as an empty one"""

    def encode(self, rows):
        return super().encode(rows.with_columns(pl.lit("").alias("text")))


def test_texts_that_never_part_prove_nothing(snapshot):
    (result,) = outcomes(ForgetsTheText, snapshot, "future_independence").values()
    assert result.outcome == "skipped"
    assert "nothing was compared" in result.hint
