"""Prices read aloud: a GRU reads letters, another with Luong's attention writes words, taught with the right words before (teacher forcing), greedy when served.

data: spoken_prices

[data]
label = "aloud"
features = ["written", "aloud"]
text = ["written", "aloud"]
ids = ["row_id"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

SRC_LEN, TGT_LEN = 10, 7
PAD_token, SOS_token, EOS_token = 0, 1, 2


class EncoderRNN(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.embedding = nn.Embedding(n, 16, padding_idx=PAD_token)
        self.gru = nn.GRU(16, hidden // 2, batch_first=True, bidirectional=True)

    def forward(self, source):
        outputs, hidden = self.gru(self.embedding(source))
        return outputs, torch.cat([hidden[0], hidden[1]], dim=1).unsqueeze(0)


class LuongAttnDecoderRNN(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.embedding = nn.Embedding(n, 24, padding_idx=PAD_token)
        self.gru = nn.GRU(24, hidden, batch_first=True)
        self.attn = nn.Linear(hidden, hidden, bias=False)
        self.concat = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, n)

    def forward(self, words, hidden, memory, is_pad):
        rnn_output, hidden = self.gru(self.embedding(words), hidden)
        energy = self.attn(rnn_output) @ memory.transpose(1, 2)
        weights = energy.masked_fill(is_pad[:, None], -1e9).softmax(dim=2)
        joined = torch.cat([rnn_output, weights @ memory], dim=2)
        return self.out(torch.tanh(self.concat(joined))), hidden


class Seq2Seq(nn.Module):
    def __init__(self, letters, words, hidden=64):
        super().__init__()
        self.encoder = EncoderRNN(letters, hidden)
        self.decoder = LuongAttnDecoderRNN(words, hidden)

    def forward(self, source, target_in=None):
        memory, hidden = self.encoder(source)
        is_pad = source == PAD_token
        if target_in is not None:
            return self.decoder(target_in, hidden, memory, is_pad)[0]
        word = torch.full((len(source), 1), SOS_token, device=source.device)
        logits = []
        for _ in range(TGT_LEN):
            step, hidden = self.decoder(word, hidden, memory, is_pad)
            logits.append(step)
            word = step.argmax(-1)
        return torch.cat(logits, dim=1)


class PricesAloud(Task):
    kind = "statistic"
    metrics = {"word_loss": "minimize", "word_accuracy": "maximize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        self.letters = sorted(set("".join(df["written"])))
        self.words = sorted({w for a in df["aloud"] for w in a.split()})

    def state(self):
        return {"letters": self.letters, "words": self.words}

    def load_state(self, state):
        self.letters, self.words = state["letters"], state["words"]

    def indexes(self, sequences, names, length):
        index = {n: i for i, n in enumerate(names, start=4)}
        out = torch.full((len(sequences), length), PAD_token)
        for row, sequence in zip(out, sequences):
            ids = [index.get(s, 3) for s in sequence][: length - 1] + [EOS_token]
            row[: len(ids)] = torch.tensor(ids)
        return out

    def encode(self, rows):
        batch = {"source": self.indexes(rows["written"].to_list(), self.letters, SRC_LEN)}
        if "aloud" in rows.columns:
            target = self.indexes([a.split() for a in rows["aloud"]], self.words, TGT_LEN)
            first = torch.full((len(rows), 1), SOS_token)
            batch["target_in"] = torch.cat([first, target[:, :-1]], dim=1)
            batch[LABEL] = target
            batch[WEIGHT] = (target != PAD_token).sum(1).float()
        return batch

    def build_model(self):
        return Seq2Seq(len(self.letters) + 4, len(self.words) + 4)

    def losses(self, output, batch):
        target = batch[LABEL]
        nll = F.cross_entropy(output.transpose(1, 2), target, ignore_index=PAD_token, reduction="none")
        return nll.sum(1) / (target != PAD_token).sum(1).clamp(min=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        said = batch[LABEL] != PAD_token
        right = ((output.argmax(-1) == batch[LABEL]) & said).sum(1) / said.sum(1).clamp(min=1)
        return torch.stack([self.losses(output, batch), right], dim=1).double()

    def score(self, predictions, labels):
        loss, right = (predictions * labels[:, None]).sum(0) / labels.sum()
        return {"word_loss": float(loss), "word_accuracy": float(right)}

    def expected_initial_loss(self):
        return math.log(len(self.words) + 4)
