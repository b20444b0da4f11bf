"""How names are spoken: letters to sounds by an encoder and decoder of nn.Transformer, teacher forcing, as in PyTorch's tutorial on translation.

data: spoken_lexicon

[data]
label = "pronunciation"
features = ["word"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 2e-3, betas = [0.9, 0.98] }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""
import math

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import Transformer

from perennial.engine.task import LABEL, WEIGHT, Task

UNK_IDX, PAD_IDX, BOS_IDX, EOS_IDX = 0, 1, 2, 3
SPECIAL_SYMBOLS = ["<unk>", "<pad>", "<bos>", "<eos>"]
MAX_SRC, MAX_TGT = 16, 18


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 32):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding.unsqueeze(0))

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
    def __init__(self, src_vocab_size: int, tgt_vocab_size: int, emb_size: int = 48, nhead: int = 4, dropout: float = 0.05):
        super().__init__()
        self.src_tok_emb = TokenEmbedding(src_vocab_size, emb_size)
        self.tgt_tok_emb = TokenEmbedding(tgt_vocab_size, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout)
        self.transformer = Transformer(
            d_model=emb_size, nhead=nhead, num_encoder_layers=1, num_decoder_layers=1,
            dim_feedforward=96, dropout=dropout, batch_first=True, norm_first=True,
        )
        self.generator = nn.Linear(emb_size, tgt_vocab_size)

    def forward(self, src: Tensor, tgt: Tensor):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(tgt))
        size = tgt.size(1)
        tgt_mask = torch.ones(size, size, dtype=torch.bool, device=tgt.device).triu(diagonal=1)
        src_padding_mask, tgt_padding_mask = src == PAD_IDX, tgt == PAD_IDX
        outs = self.transformer(
            src_emb, tgt_emb, tgt_mask=tgt_mask, src_key_padding_mask=src_padding_mask,
            tgt_key_padding_mask=tgt_padding_mask, memory_key_padding_mask=src_padding_mask,
        )
        return self.generator(outs)


class Lexicon(Task):
    kind = "statistic"
    metrics = {"phoneme_accuracy": "maximize", "word_accuracy": "maximize"}

    def fit(self, train):
        df = train.collect()
        letters = sorted({c for word in df["word"] for c in word.lower()})
        sounds = sorted({s for line in df["pronunciation"] for s in line.split()})
        self.fitted = {"letters": SPECIAL_SYMBOLS + letters, "sounds": SPECIAL_SYMBOLS + sounds}

    def tensors(self, sequences, vocab, length):
        index = {token: i for i, token in enumerate(vocab)}
        full = torch.full((len(sequences), length), PAD_IDX)
        for i, sequence in enumerate(sequences):
            ids = [index.get(token, UNK_IDX) for token in sequence][: length - 2]
            full[i, : len(ids) + 2] = torch.tensor([BOS_IDX, *ids, EOS_IDX])
        return full

    def encode(self, rows):
        words = [list(word.lower()) for word in rows["word"]]
        batch = {"src": self.tensors(words, self.fitted["letters"], MAX_SRC)}
        if "pronunciation" not in rows.columns:
            batch["tgt"] = torch.full((rows.height, 1), BOS_IDX)
            return batch
        spoken = self.tensors([line.split() for line in rows["pronunciation"]], self.fitted["sounds"], MAX_TGT)
        batch["tgt"], batch[LABEL] = spoken[:, :-1].clone(), spoken[:, 1:].clone()
        batch[WEIGHT] = (batch[LABEL] != PAD_IDX).sum(dim=1).float()
        return batch

    def build_model(self):
        return Seq2SeqTransformer(len(self.fitted["letters"]), len(self.fitted["sounds"]))

    def losses(self, output, batch):
        target = batch[LABEL]
        loss = nn.functional.cross_entropy(output.transpose(1, 2), target, ignore_index=PAD_IDX, reduction="none")
        return loss.sum(dim=1) / (target != PAD_IDX).sum(dim=1).clamp(min=1)

    def statistic(self, output, batch):
        real = batch[LABEL] != PAD_IDX
        right = (output.argmax(dim=-1) == batch[LABEL]) & real
        length = real.sum(dim=1).clamp(min=1)
        whole = right.sum(dim=1) == real.sum(dim=1)
        return torch.stack([right.sum(dim=1) / length, whole / length], dim=1)

    def score(self, predictions, labels):
        sounds, words = (predictions * labels[:, None]).sum(axis=0)
        return {"phoneme_accuracy": float(sounds / labels.sum()), "word_accuracy": float(words / len(labels))}
