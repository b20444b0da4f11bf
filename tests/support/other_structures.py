"""Healthy tasks of other structure: sequences, several targets, autoencoders, unusual modules."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.nn import functional

from other_styles import Binary, Classes, Columns, Module, Numbers
from perennial.engine.task import LABEL, Task

LONGEST = 12


def reviews(rows: int = 1500) -> pl.DataFrame:
    """Short sentences of a few words, and whether more of them are good than bad."""
    generator = np.random.default_rng(5)
    good, bad, other = ["fine", "great", "nice"], ["poor", "awful", "dull"], ["a", "the", "plot"]
    texts, labels = [], []
    for _ in range(rows):
        liked = generator.random() < 0.5
        words = generator.choice(other, generator.integers(2, 8)).tolist()
        words += generator.choice(good if liked else bad, generator.integers(1, 3)).tolist()
        generator.shuffle(words)
        texts.append(" ".join(words))
        labels.append("pos" if liked != (generator.random() < 0.1) else "neg")
    return pl.DataFrame({"row": range(rows), "review": texts, "label": labels})


class Words(Task):
    """A vocabulary of words, padded to one length, with the lengths beside it."""

    kind = "binary"
    metrics: Mapping[str, Any] = {"accuracy": "maximize"}

    def fit(self, train):
        texts = train.collect()["review"]
        words = sorted({word for text in texts for word in text.split()})
        self.vocabulary = {"<pad>": 0, **{word: code for code, word in enumerate(words, start=1)}}

    def state(self):
        return {"vocabulary": [[word, code] for word, code in self.vocabulary.items()]}

    def load_state(self, state):
        self.vocabulary = dict(state["vocabulary"])

    def encode(self, rows):
        codes = [[self.vocabulary[word] for word in text.split()] for text in rows["review"]]
        tokens = torch.zeros(len(codes), LONGEST, dtype=torch.long)
        for row, each in enumerate(codes):
            tokens[row, : len(each)] = torch.tensor(each[:LONGEST])
        batch = {"tokens": tokens, "lengths": torch.tensor([len(each) for each in codes])}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor([float(each == "pos") for each in rows["label"]])
        return batch

    def build_model(self):
        return PackedLstm(len(self.vocabulary))

    losses, predict = Binary.losses, Binary.predict

    def score(self, predictions, labels):
        return {"accuracy": float(np.mean((predictions > 0.5) == (labels > 0.5)))}

    def expected_initial_loss(self):
        return math.log(2)


class PackedLstm(nn.Module):
    """Packs its sequences, as PyTorch's text tutorials do; a length of zero raises."""

    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.last = nn.Linear(24, 1)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.last(hidden[-1]).squeeze(-1)


class FixedLength(Words):
    """Concatenates the vectors of all positions: takes no other length."""

    def build_model(self):
        return Concatenated(len(self.vocabulary))


class Concatenated(nn.Module):
    """A convolution over words and a layer over all that it gives."""

    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.convolution = nn.Conv1d(16, 8, 3)
        self.last = nn.Linear(8 * (LONGEST - 2), 1)

    def forward(self, tokens, lengths):
        hidden = self.convolution(self.embedding(tokens).transpose(1, 2)).relu()
        return self.last(hidden.flatten(1)).squeeze(-1) + 0.01 * lengths


class AddsInfinity(Words):
    """Attention whose mask of minus infinity is made in encode."""

    def encode(self, rows):
        batch = super().encode(rows)
        batch["mask"] = torch.zeros(batch["tokens"].shape).masked_fill(
            batch["tokens"] == 0, -torch.inf
        )
        return batch

    def build_model(self):
        return Attentive(len(self.vocabulary))


class Attentive(nn.Module):
    """One learned query over the words."""

    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 16)
        self.query = nn.Linear(16, 1)
        self.last = nn.Linear(16, 1)

    def forward(self, tokens, lengths, mask):
        hidden = self.embedding(tokens)
        weights = (self.query(hidden).squeeze(-1) + mask).softmax(-1)
        return self.last((weights[..., None] * hidden).sum(1)).squeeze(-1) + 0.01 * lengths


class Characters(Task):
    """A character-level language model whose vocabulary knows its own characters only."""

    kind = "statistic"
    metrics: Mapping[str, Any] = {"nats": "minimize"}
    length = 24

    def fit(self, train):
        self.known = sorted(set("".join(train.collect()["label"])))

    def state(self):
        return {"known": "".join(self.known)}

    def load_state(self, state):
        self.known = list(state["known"])

    def encode(self, rows):
        codes = {character: code for code, character in enumerate(self.known)}
        texts = [[codes[each] for each in text[: self.length + 1]] for text in rows["label"]]
        size = len(self.known)
        filled = torch.full((len(texts), self.length + 1), size)
        for row, each in enumerate(texts):
            filled[row, : len(each)] = torch.tensor(each)
        label = filled[:, 1:].clone()
        label[label == size] = -100
        weight = (label >= 0).sum(1).float()
        return {"tokens": filled[:, :-1], LABEL: label, "weight": weight}

    def build_model(self):
        return Recurrent(len(self.known) + 1, len(self.known))

    def losses(self, output, batch):
        losses = functional.cross_entropy(
            output.transpose(1, 2), batch[LABEL], reduction="none", ignore_index=-100
        )
        return losses.sum(1) / (batch[LABEL] >= 0).sum(1)

    def predict(self, output):
        return output.softmax(-1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"nats": float(np.average(predictions, weights=labels))}

    def expected_initial_loss(self):
        return math.log(len(self.known))


class Recurrent(nn.Module):
    """A GRU over characters."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.embedding, self.last = nn.Embedding(inputs, 16), nn.Linear(32, outputs)
        self.gru = nn.GRU(16, 32, batch_first=True)

    def forward(self, tokens):
        return self.last(self.gru(self.embedding(tokens))[0])


class Measured(Columns):
    """Several targets per row: a loss of them all, and its mean as the metric."""

    kind = "statistic"
    metrics: Mapping[str, Any] = {"error": "minimize"}

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"error": float(np.average(predictions, weights=labels))}


class QuantileForecast(Measured):
    """Three quantiles of each of four hours ahead."""

    def encode_label(self, labels):
        return torch.tensor([[float(each) for each in text.split()] for text in labels])

    def build_model(self):
        return Module(self.network(12), lambda z: z.reshape(-1, 4, 3))

    def losses(self, output, batch):
        error = batch[LABEL][..., None] - output
        levels = torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(levels * error, (levels - 1) * error).mean((1, 2))

    def expected_initial_loss(self):
        return 1.04


class MultiLabel(Measured):
    """Four tags per row, each on or off."""

    def encode_label(self, labels):
        return torch.tensor([[float(each) for each in text.split()] for text in labels])

    def build_model(self):
        return Module(self.network(4))

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        ).mean(1)

    def expected_initial_loss(self):
        return math.log(2)


class TwoTargets(Measured):
    """A second target beside the label's column."""

    second = "second"

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            second = torch.from_numpy(rows[self.second].cast(pl.Float32).to_numpy().copy())
            batch[LABEL] = torch.stack([batch[LABEL], second], dim=1)
        return batch

    def encode_label(self, labels):
        return torch.from_numpy(labels.cast(pl.Float32).to_numpy().copy())

    def build_model(self):
        return Module(self.network(2))

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    def expected_initial_loss(self):
        return 5.2


class Survival(TwoTargets):
    """Exponential survival: the time is the label, whether it was censored stands beside it."""

    def build_model(self):
        return Module(self.network(1), lambda z: z.squeeze(-1))

    def losses(self, output, batch):
        time, event = batch[LABEL].unbind(1)
        return output.exp() * time - event * output

    def expected_initial_loss(self):
        return 1.7


class Autoencoder(Columns):
    """Its label is its input; the label's column is not looked at."""

    kind = "statistic"
    metrics: Mapping[str, Any] = {"error": "minimize"}
    reconstructs_inputs = True

    def encode(self, rows):
        batch = super().encode(rows.drop(self.columns.label, strict=False))
        return {**batch, LABEL: batch["x"].clone()}

    def build_model(self):
        return Module(self.network(len(self.fitted["mean"])))

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(1)

    predict, statistic, score = Measured.predict, Measured.statistic, Measured.score

    def expected_initial_loss(self):
        return 1.0


class Denoiser(Autoencoder):
    """Adds noise to the inputs while training, and asks for them without it."""

    def augment(self, batch, generator):
        noise = torch.randn(batch["x"].shape, generator=generator)
        return {**batch, "x": batch["x"] + 0.3 * noise}


class FillsGaps(Numbers):
    """Leaves missing values as NaN, which the model replaces by a learned number.

    The first number is an input of its own, one per row.
    """

    def fit(self, train):
        frame = train.collect()
        x = frame.select(sorted(self.columns.features)).to_numpy()
        self.fitted = {
            "mean": np.nanmean(x, 0).tolist(), "std": np.nanstd(x, 0).tolist(),
            **self.fit_label(frame[self.columns.label]),
        }  # fmt: skip

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "x": batch["x"][:, 1:].clone(), "first": batch["x"][:, 0].clone()}

    def build_model(self):
        return Filling(self.network(1), len(self.fitted["mean"]))


class Filling(nn.Module):
    """Learned numbers in place of NaN."""

    def __init__(self, network, width):
        super().__init__()
        self.network, self.fill = network, nn.Parameter(torch.zeros(width))

    def forward(self, x, first):
        x = torch.cat([first[:, None], x], dim=1)
        return self.network(torch.where(x.isnan(), self.fill, x)).squeeze(-1)


class Experts(Classes):
    """Sixteen experts, one for each example."""

    def build_model(self):
        return Routed(len(self.fitted["mean"]), len(self.fitted["classes"]))


class Routed(nn.Module):
    """A router and its experts; many are rarely asked."""

    def __init__(self, width, classes, experts=16):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, classes))
            for _ in range(experts)
        )

    def forward(self, x):
        chances = self.router(x).softmax(-1)
        chance, chosen = chances.max(-1)
        output = x.new_zeros(len(x), self.experts[0][-1].out_features)
        for code, expert in enumerate(self.experts):
            rows = (chosen == code).nonzero().flatten()
            if len(rows):
                output = output.index_add(0, rows, expert(x[rows]) * chance[rows, None])
        return output


class Quantised(Classes):
    """A codebook by moving averages between encoder and head; the gradient goes straight through."""

    def build_model(self):
        return Codebook(self.network(8), len(self.fitted["classes"]))


class Codebook(nn.Module):
    """Vector quantisation without a gradient of its own."""

    def __init__(self, network, classes):
        super().__init__()
        self.network, self.last = network, nn.Linear(8, classes)
        self.register_buffer("codes", torch.randn(16, 8))

    def forward(self, x):
        hidden = self.network(x)
        chosen = torch.cdist(hidden, self.codes).argmin(-1)
        if self.training:
            with torch.no_grad():
                for code in chosen.unique():
                    mean = hidden[chosen == code].mean(0)
                    self.codes[code] = 0.99 * self.codes[code] + 0.01 * mean
        return self.last(hidden + 0.1 * (self.codes[chosen] - hidden).detach())


class Adapted(Classes):
    """A frozen backbone with low-rank adapters and a head that learn."""

    def build_model(self):
        with torch.random.fork_rng():
            torch.manual_seed(5)  # in place of weights that were trained elsewhere
            backbone = self.network(32).requires_grad_(False)
        return LowRank(backbone, len(self.fitted["classes"]))


class LowRank(nn.Module):
    """A backbone, a low-rank detour that starts at zero, and a head."""

    def __init__(self, backbone, classes):
        super().__init__()
        width = backbone[0].in_features
        self.backbone, self.head = backbone, nn.Linear(32, classes)
        self.down, self.up = nn.Linear(width, 8, bias=False), nn.Linear(8, 32, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.head(self.backbone(x) + self.up(self.down(x)))


class Constrained(Classes):
    """Spectral norm, a custom gradient and recomputation in one model."""

    def build_model(self):
        return Recomputed(len(self.fitted["mean"]), len(self.fitted["classes"]))


class Recomputed(nn.Module):
    """Recomputes its hidden layer in the backward pass."""

    def __init__(self, width, classes):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(width, 64))
        self.last = nn.Linear(64, classes)

    def forward(self, x):
        hidden = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False)
        return self.last(ClippedGradient.apply(hidden.relu()))


class ClippedGradient(torch.autograd.Function):
    """The identity, with a gradient that is clipped."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class MixUp(Binary):
    """Mixes rows and their labels, in shares drawn for each batch."""

    def encode_label(self, labels):
        return torch.from_numpy(labels.cast(pl.Int64).to_numpy().copy())

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(
            output, batch[LABEL].float(), reduction="none"
        )

    def augment(self, batch, generator):
        order = torch.randperm(len(batch[LABEL]), generator=generator)
        share = 0.8 + 0.2 * torch.rand((), generator=generator)
        return {
            "x": share * batch["x"] + (1 - share) * batch["x"][order],
            LABEL: share * batch[LABEL].float() + (1 - share) * batch[LABEL][order].float(),
        }


class Ratings(Task):
    """Two large tables of vectors and their product, as recommenders have them."""

    kind = "regression"
    metrics: Mapping[str, Any] = {"mae": "minimize"}
    users, items = 2000, 1000

    def fit(self, train):
        labels = train.collect()["label"]
        self.fitted = {"mean": float(labels.mean()), "var": float(labels.var())}

    def state(self):
        return self.fitted

    def load_state(self, state):
        self.fitted = dict(state)

    def encode(self, rows):
        batch = {name: torch.tensor(rows[name].to_list()) for name in ("user", "item")}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Factors(self.users, self.items, self.fitted["mean"])

    def losses(self, output, batch):
        return (output - batch[LABEL]).square()

    def predict(self, output):
        return output

    def score(self, predictions, labels):
        return {"mae": float(np.abs(predictions - labels).mean())}

    def expected_initial_loss(self):
        return self.fitted["var"]


class Factors(nn.Module):
    """Biases and products."""

    def __init__(self, users, items, mean):
        super().__init__()
        self.user, self.item = nn.Embedding(users, 16), nn.Embedding(items, 16)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.mean = nn.Parameter(torch.tensor(mean))
        for each in (self.user, self.item, self.user_bias, self.item_bias):
            nn.init.normal_(each.weight, std=0.05)

    def forward(self, user, item):
        product = (self.user(user) * self.item(item)).sum(-1)
        return self.mean + product + (self.user_bias(user) + self.item_bias(item)).squeeze(-1)


def ratings(rows: int = 3000) -> pl.DataFrame:
    """Who rated what how; few are often seen."""
    generator = np.random.default_rng(9)
    user = (generator.pareto(1.5, rows) * 10).astype(int) % Ratings.users
    item = (generator.pareto(1.5, rows) * 10).astype(int) % Ratings.items
    likes = generator.normal(size=Ratings.users)[user] + generator.normal(size=Ratings.items)[item]
    label = np.clip(np.round(3 + likes + 0.5 * generator.normal(size=rows)), 1, 5)
    return pl.DataFrame({"row": range(rows), "user": user, "item": item, "label": label})
