"""Kana to Latin letters with nn.Transformer, as in PyTorch's translation tutorial.

data: kana_words

[data]
label = "romaji"
features = ["kana", "romaji"]
text = ["kana", "romaji"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""

import math

import torch
import torch.nn as nn
from torch import Tensor

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

UNK_IDX, PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2, 3
SPECIAL = ["<unk>", "<pad>", "<bos>", "<eos>"]
SRC_LEN, TGT_LEN = 14, 20


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 64):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        table = torch.zeros((maxlen, emb_size))
        table[:, 0::2] = torch.sin(pos * den)
        table[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", table.unsqueeze(0), persistent=False)

    def forward(self, token_embedding: Tensor):
        return self.dropout(token_embedding + self.pos_embedding[:, : token_embedding.size(1)])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size, padding_idx=PAD_IDX)
        nn.init.normal_(self.embedding.weight, std=emb_size**-0.5)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor):
        return self.embedding(tokens) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(self, src_vocab: int, tgt_vocab: int, emb_size: int = 64, dropout: float = 0.1):
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=emb_size,
            nhead=4,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dim_feedforward=128,
            dropout=dropout,
            batch_first=True,
        )
        self.generator = nn.Linear(emb_size, tgt_vocab)
        self.src_tok_emb = TokenEmbedding(src_vocab, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout)

    def forward(self, src: Tensor, tgt: Tensor):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(tgt))
        size = tgt.size(1)
        future = torch.triu(torch.ones(size, size, dtype=torch.bool, device=tgt.device), diagonal=1)
        outs = self.transformer(
            src_emb,
            tgt_emb,
            tgt_mask=future,
            src_key_padding_mask=src == PAD_IDX,
            tgt_key_padding_mask=tgt == PAD_IDX,
            memory_key_padding_mask=src == PAD_IDX,
        )
        return self.generator(outs)


def padded(sequences: list[list[int]], length: int) -> Tensor:
    out = torch.full((len(sequences), length), PAD_IDX)
    for i, ids in enumerate(sequences):
        out[i, : len(ids)] = torch.tensor(ids)
    return out


class Romanise(Task):
    kind = "statistic"
    statistics = ("loss", "correct")
    metrics = directions_of("mean_loss", "token_accuracy")

    def fit(self, train):
        df = train.select("kana", "romaji").collect()
        self.fitted = {
            name: SPECIAL + sorted(set("".join(df[name].to_list()))) for name in ("kana", "romaji")
        }

    def ids(self, texts, name, length):
        number = {c: i for i, c in enumerate(self.fitted[name])}
        ids = [[number.get(c, UNK_IDX) for c in text[: length - 2]] for text in texts]
        return padded([[BOS_IDX, *each, EOS_IDX] for each in ids], length)

    def encode(self, rows):
        src = self.ids(rows["kana"].to_list(), "kana", SRC_LEN)
        tgt = self.ids(rows["romaji"].to_list(), "romaji", TGT_LEN)
        tgt_input, tgt_out = tgt[:, :-1], tgt[:, 1:]
        counted = (tgt_out != PAD_IDX).sum(dim=1)
        return {
            "src": src,
            "tgt": tgt_input.contiguous(),
            LABEL: tgt_out.contiguous(),
            WEIGHT: counted.float(),
        }

    def build_model(self):
        return Seq2SeqTransformer(len(self.fitted["kana"]), len(self.fitted["romaji"]))

    def losses(self, output, batch):
        loss_fn = nn.CrossEntropyLoss(ignore_index=PAD_IDX, reduction="none")
        loss = loss_fn(output.transpose(1, 2), batch[LABEL])
        return loss.sum(dim=1) / (batch[LABEL] != PAD_IDX).sum(dim=1)

    def statistic(self, output, batch):
        counted = batch[LABEL] != PAD_IDX
        right = ((output.argmax(-1) == batch[LABEL]) & counted).sum(1) / counted.sum(1)
        return torch.stack([self.losses(output, batch), right], dim=1)
