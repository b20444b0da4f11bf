"""Attention over the wrong axis, with the wrong mask or without places; padding that is seen."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from own_tasks import Next, Praise, Reader
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.language_modeling import CausalLanguageModel
from planted import Bug, require_caught
from workshop import Workshop, results_of

BUGS: list[Bug] = []


def reading_with(network):
    """The task with another network."""

    class Task(Praise):
        def build_model(self):
            return network(2 + len(self.learned["words"]), self.length)

    return Task


def planted(check, hint, *, outcome="failed"):
    def add(network):
        name = network.__doc__
        BUGS.append(Bug(name, reading_with(network), "reviews", check, hint, outcome))
        return network

    return add


@planted("attention", "transpose")
class HeadsByView(Reader):
    """positions are cut into heads by a view"""

    def heads_of(self, x):
        return x.view(len(x), self.heads, -1, self.width // self.heads)


@planted("attention", "transpose")
class JoinedByReshape(Reader):
    """heads are joined by a reshape without a transposition"""

    def joined(self, x):
        return x.reshape(len(x), -1, self.width)


class Fused(Reader):
    """Attention by PyTorch's own function."""

    def mask(self, is_word):
        return is_word[:, None, None, :]

    def attended(self, x, is_word):
        q, k, v = (self.heads_of(each(x)) for each in (self.queries, self.keys, self.values))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(is_word))
        return self.output(self.joined(found))


@planted("attention", "transpose")
class FusedHeadsByReshape(Fused):
    """positions are cut into heads by a reshape, before fused attention"""

    def heads_of(self, x):
        return x.reshape(len(x), self.heads, -1, self.width // self.heads)


@planted("attention", "heads attend to heads")
class HeadsAttend(Fused):
    """fused attention is given heads behind positions"""

    def heads_of(self, x):
        return x.reshape(len(x), -1, self.heads, self.width // self.heads)

    def joined(self, x):
        return x.reshape(len(x), -1, self.width)

    def mask(self, is_word):
        return None


@planted("attention", "wrong dimension")
class OverQueries(Reader):
    """the softmax runs over the queries"""

    def weights(self, scores, is_word):
        return scores.masked_fill(~is_word[:, None, None, :], -1e9).softmax(dim=2)


@planted("attention", "dim=-1")
class OverHeads(Reader):
    """the softmax runs over the heads"""

    def weights(self, scores, is_word):
        return functional.softmax(scores, dim=1)


@planted("attention", "before", outcome="warned")
class MaskedBehind(Reader):
    """the mask is multiplied behind the softmax"""

    def weights(self, scores, is_word):
        return scores.softmax(dim=-1) * is_word[:, None, None, :]


@planted("attention", "mask is missing", outcome="warned")
class Unmasked(Reader):
    """attention has no mask"""

    def weights(self, scores, is_word):
        return scores.softmax(dim=-1)


@planted("attention", "not queries", outcome="warned")
class MasksQueries(Reader):
    """the mask is laid over the queries"""

    def weights(self, scores, is_word):
        return scores.masked_fill(~is_word[:, None, :, None], -1e9).softmax(dim=-1)


@planted("attention", "too weak", outcome="warned")
class WeakMask(Fused):
    """the mask of fused attention is added as 0 and 1"""

    def mask(self, is_word):
        return is_word[:, None, None, :].float()


@planted("attention", "inverted")
class Inverted(Reader):
    """the mask is inverted"""

    def weights(self, scores, is_word):
        return scores.masked_fill(is_word[:, None, None, :], -1e9).softmax(dim=-1)


@planted("attention", "True means excluded")
class InvertedFused(Fused):
    """the mask of fused attention is inverted, as in key_padding_mask"""

    def mask(self, is_word):
        return ~is_word[:, None, None, :]


@planted("attention", "selects nothing", outcome="warned")
class DoesNotChoose(Reader):
    """scores are divided by a million"""

    def weights(self, scores, is_word):
        return super().weights(scores / 1e6, is_word)


@planted("position_use", "positions are missing", outcome="warned")
class NoPlaces(Reader):
    """places are not added"""

    def positions(self, x):
        return x + 0 * self.places


@planted("position_use", "all equal", outcome="warned")
class OnePlace(Reader):
    """all words have the first place"""

    def positions(self, x):
        return x + self.places[0]


@planted("position_use", "positions are missing", outcome="warned")
class PlacesOfBatch(Reader):
    """the place is that of the width, not of the text"""

    def positions(self, x):
        return x + self.places.mean(dim=0)


@planted("parameter_gradients", "not added to the embeddings")
class TableOfPlaces(Reader):
    """a table of sines is made, and not added"""

    def __init__(self, words, length):
        super().__init__(words, length)
        del self.places
        angle = torch.arange(length)[:, None] / 100 ** torch.linspace(0, 1, self.width)
        self.register_buffer("table", angle.sin())

    def positions(self, x):
        return x


@planted("example_independence", "along dimension 0")
class PlacesAlongTheBatch(Reader):
    """places are added along the batch"""

    def positions(self, x):
        return x + self.places[torch.arange(len(x)) % len(self.places)][:, None]


@planted("input_use", "wrong triangle")
class FirstSeesItself(Reader):
    """the first position answers, and may look at those before it alone"""

    def weights(self, scores, is_word):
        is_later = torch.ones(scores.shape[-2:]).triu(1).bool()
        return scores.masked_fill(is_later, -1e9).softmax(dim=-1)

    def pooled(self, x, is_word):
        return x[:, 0]


@planted("input_use", "first step")
class FirstStateAnswers(nn.Module):
    """the state of the first word answers, which has seen no other"""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 32), nn.Linear(32, 1)
        self.reader = nn.LSTM(32, 32, batch_first=True)

    def forward(self, tokens):
        return self.head(self.reader(self.words(tokens))[0][:, 0]).squeeze(1)


@planted("attention", "wrong dimension")
class EinsumOverQueries(Reader):
    """einsum strings hide that the softmax runs over the queries"""

    def attended(self, x, is_word):
        q, k, v = (self.heads_of(each(x)) for each in (self.queries, self.keys, self.values))
        scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        mixed = torch.einsum("b h i j, b h j d -> b h i d", scores.softmax(dim=-2), v)
        return self.output(self.joined(mixed))


@planted("padding_independence", "exclude it from means")
class MeanOfAll(Reader):
    """the mean runs over the padding, too, of a model of one length"""

    def pooled(self, x, is_word):
        return x.mean(dim=1)


@planted("padding_independence", "maxima")
class LargestOfAll(Reader):
    """the maximum runs over the padding, too"""

    def pooled(self, x, is_word):
        return x.amax(dim=1)


@planted("padding_independence", "last word")
class LastOfAll(Reader):
    """the last position answers, which is padding"""

    def pooled(self, x, is_word):
        return x[:, -1]


class Encoder(nn.Module):
    """PyTorch's own encoder, with its mask."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, 32, padding_idx=0), nn.Embedding(length, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 1)

    def forward(self, tokens):
        is_padding = tokens == 0
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = self.encoder(x, src_key_padding_mask=self.excluded(is_padding))
        return self.head(self.pooled(x, is_padding[:, :, None])).squeeze(1)

    def excluded(self, is_padding):
        return is_padding

    def pooled(self, x, is_padding):
        return x.masked_fill(is_padding, 0).sum(dim=1) / (~is_padding).sum(dim=1)


@planted("attention", "mask is inverted")
class PaddingOnly(Encoder):
    """the mask of PyTorch's encoder is inverted"""

    def excluded(self, is_padding):
        return ~is_padding


@planted("padding_independence", "exclude it from means")
class MeanOfEncoder(Encoder):
    """PyTorch's encoder leaves padding out, the mean does not"""

    def pooled(self, x, is_padding):
        return x.mean(dim=1)


class ReadsBothWays(nn.Module):
    """Reads words in both directions, padding too, and takes the words' states alone."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 32), nn.Linear(64, 1)
        self.reader = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.mask = nn.Identity()

    def forward(self, tokens):
        is_word = self.mask(tokens != 0)[:, :, None]
        states, _ = self.reader(self.words(tokens))
        return self.head(self.pooled(states, is_word)).squeeze(1)

    def pooled(self, states, is_word):
        return states.masked_fill(~is_word, -1e4).amax(dim=1)


@planted("padding_independence", "maxima")
class LargestOfPadding(ReadsBothWays):
    """the mask of the maximum is inverted"""

    def pooled(self, states, is_word):
        return super().pooled(states, ~is_word)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


# Healthy neighbours


class Bag(nn.Module):
    """Words in a bag: their order is left out by design."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(words, 32, padding_idx=0), nn.Linear(32, 1)

    def forward(self, tokens):
        return self.head(self.words(tokens)).squeeze(1)


class Flat(nn.Module):
    """A weight for each place, as in the first tutorials."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 8), nn.Linear(8 * length, 1)

    def forward(self, tokens):
        return self.head(self.words(tokens).flatten(1)).squeeze(1)


class Packed(nn.Module):
    """Reads words in turn, up to the last."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 32), nn.Linear(32, 1)
        self.reader = nn.LSTM(32, 32, batch_first=True)

    def forward(self, tokens):
        lengths = (tokens != 0).sum(dim=1).clamp_min(1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.reader(packed)[1][0][-1]).squeeze(1)


class LastWord(nn.Module):
    """A plain forecast of the last word alone, as of a chain."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 32), nn.Linear(32, 1)

    def forward(self, tokens):
        last = (tokens != 0).sum(dim=1).sub(1).clamp_min(0)
        return self.head(self.words(tokens[torch.arange(len(tokens)), last])).squeeze(1)


class KeysFirst(Reader):
    """Einsum with keys before queries, and a softmax over what are keys then."""

    def attended(self, x, is_word):
        q, k, v = (self.heads_of(each(x)) for each in (self.queries, self.keys, self.values))
        scores = torch.einsum("bhjd,bhid->bhji", k, q) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~is_word[:, None, :, None], -1e9).softmax(dim=-2)
        return self.output(self.joined(torch.einsum("bhji,bhjd->bhid", weights, v)))


class Keys(Reader):
    """Keys before queries in the product, and a softmax over what are keys then."""

    def attended(self, x, is_word):
        q, k, v = (self.heads_of(each(x)) for each in (self.queries, self.keys, self.values))
        scores = k @ q.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~is_word[:, None, :, None], -1e9).softmax(dim=-2)
        return self.output(self.joined(weights.transpose(-2, -1) @ v))


class Windows(nn.Module):
    """Words in windows, whose largest values outside padding answer."""

    def __init__(self, words, length):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 32), nn.Linear(32, 1)
        self.windows, self.mask = nn.Conv1d(32, 32, 5, padding=2), nn.Identity()

    def forward(self, tokens):
        is_word = self.mask(tokens != 0)[:, None, :]
        seen = self.windows(self.words(tokens).transpose(1, 2))
        return self.head(self.largest(seen, is_word)).squeeze(1)

    def largest(self, seen, is_word):
        return seen.masked_fill(~is_word, -1e4).amax(dim=2)


class WindowsOfAll(Windows):
    """Kim's windows: no mask, the largest of all."""

    def forward(self, tokens):
        seen = self.windows(self.words(tokens).transpose(1, 2))
        return self.head(seen.amax(dim=2)).squeeze(1)


class NoiseOfOneSeed(Reader):
    """Noise that is the same each time, so that losses are."""

    def pooled(self, x, is_word):
        noise = torch.randn(len(x), self.width, generator=torch.Generator().manual_seed(7))
        return super().pooled(x, is_word) + 0.1 * noise


class FirstAnswers(Reader):
    """The first position answers, as [CLS] does."""

    def pooled(self, x, is_word):
        return x[:, 0]


VIT = {"architecture": "vit", "resnet": {}, "vit": {"depth": 2, "width": 32}}


class Packing(Reader):
    """PyTorch's encoder, which packs the words without padding where nothing is trained."""

    def __init__(self, words, length):
        super().__init__(words, length)
        layer = nn.TransformerEncoderLayer(self.width, self.heads, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens):
        is_word = tokens != 0
        x = self.positions(self.words(tokens))
        return self.head(
            self.pooled(self.encoder(x, src_key_padding_mask=~is_word), is_word)
        ).squeeze(1)


HEALTHY = [
    (reading_with(Packing), "reviews", {}),
    *((reading_with(each), "reviews", {}) for each in (Reader, Fused, Encoder, Bag, Flat, Packed)),
    *((reading_with(each), "reviews", {}) for each in (Keys, KeysFirst)),
    (CausalLanguageModel, "documents", {}),
    (CausalLanguageModel, "documents", {"options": {"variant": "gpt2", "kv_heads": 1}}),
    (ImageClassification, "digits", {"options": VIT}),
    (Next, "series", {}),
]
CHECKS = ["attention", "position_use", "padding_independence", "modes"]


@pytest.mark.parametrize(("task_type", "material", "shape"), HEALTHY)
@pytest.mark.parametrize("check", CHECKS)
def test_healthy_tasks_have_no_findings(task_type, material, shape, check, workshop):
    result = results_of(workshop.subject(task_type, material, **shape), check)[check]
    assert result.outcome in ("passed", "skipped"), (result.measured, result.hint)


@pytest.mark.parametrize("network", [ReadsBothWays, Windows, WindowsOfAll, FirstAnswers])
def test_padding_that_is_near_or_has_no_mask_does_not_fail(network, workshop):
    subject = workshop.subject(reading_with(network), "reviews")
    result = results_of(subject, "padding_independence")["padding_independence"]
    assert result.outcome != "failed", (result.measured, result.hint)


def test_noise_of_a_fixed_seed_is_not_a_position_in_the_batch(workshop):
    subject = workshop.subject(reading_with(NoiseOfOneSeed), "reviews")
    result = results_of(subject, "example_independence")["example_independence"]
    assert result.outcome == "passed", (result.measured, result.hint)


@pytest.mark.parametrize("network", [Packed, LastWord, FirstAnswers, Encoder])
def test_sequences_that_are_read_do_not_fail(network, workshop):
    result = results_of(workshop.subject(reading_with(network), "reviews"), "input_use")
    assert result["input_use"].outcome != "failed", result["input_use"].measured
