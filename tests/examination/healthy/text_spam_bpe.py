"""Spam by byte pairs: a tokenizers BPE trained in fit and kept as JSON, mean and max of embeddings.

data: messages

[data]
label = "kind"
text = ["sms"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIZE, LENGTH = 400, 40


class SpamNet(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(SIZE, dim, padding_idx=0)
        self.fc = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, token_ids):
        mask = (token_ids != 0).unsqueeze(-1)
        vectors = self.embed(token_ids)
        mean = (vectors * mask).sum(1) / mask.sum(1).clamp(min=1)
        top = vectors.masked_fill(~mask, -10).max(1).values
        return self.fc(torch.cat([mean, top], 1))[:, 0]


class Spam(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=SIZE, special_tokens=["<pad>", "<unk>"], show_progress=False,
            initial_alphabet=sorted("abcdefghijklmnopqrstuvwxyz0123456789Ġ"),
        )
        tokenizer.train_from_iterator(train.collect()["sms"].to_list(), trainer)
        self.tokenizer = tokenizer

    def state(self):
        return {"tokenizer": self.tokenizer.to_str()}

    def load_state(self, state):
        self.tokenizer = Tokenizer.from_str(state["tokenizer"])

    def encode(self, rows):
        encoded = [e.ids[:LENGTH] for e in self.tokenizer.encode_batch(rows["sms"].to_list())]
        batch = {"token_ids": torch.tensor([ids + [0] * (LENGTH - len(ids)) for ids in encoded])}
        if "kind" in rows.columns:
            batch[LABEL] = torch.tensor((rows["kind"] == "spam").to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return SpamNet()

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def describe(self, batch, index):
        return {"sms": self.tokenizer.decode(batch["token_ids"][index].tolist())}
