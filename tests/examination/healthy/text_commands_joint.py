"""Intent and slots of a voice command from one encoder (joint NLU): two heads, padded words are masked.

data: voice_commands

[data]
label = "target"
features = ["utterance"]
text = ["utterance"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

MAX_LEN = 18
PAD_ID, UNK_ID = 0, 1
IGNORE = -100


class JointNLU(nn.Module):
    def __init__(self, vocab, intents, slots, emb=32, hidden=32, p=0.3):
        super().__init__()
        self.p = p
        self.slots = slots
        self.embed = nn.Embedding(vocab, emb, padding_idx=PAD_ID)
        self.encoder = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.intent_head = nn.Linear(2 * hidden, intents)
        self.slot_head = nn.Linear(2 * hidden, slots)

    def forward(self, tokens):
        x = F.dropout(self.embed(tokens), self.p, self.training)
        h, _ = self.encoder(x)
        real = (tokens != PAD_ID).unsqueeze(-1)
        pooled = h.masked_fill(~real, -1e4).amax(dim=1)
        slots = self.slot_head(F.dropout(h, self.p, self.training))
        # one tensor: the intent's scores, then the slots' word by word
        return torch.cat([self.intent_head(pooled), slots.flatten(1)], dim=1)


class VoiceAssistant(Task):
    kind = "statistic"
    metrics = {"slot_accuracy": "maximize", "intent_accuracy": "maximize"}

    def fit(self, train):
        df = train.select("utterance", "target").collect()
        vocab, intents, slots = set(), set(), set()
        for utterance, target in df.iter_rows():
            vocab.update(utterance.split())
            intents.add(target[0])
            slots.update(target[1:])
        self.fitted = {
            "vocab": ["<pad>", "<unk>"] + sorted(vocab),
            "intents": sorted(intents),
            "slots": sorted(slots),
        }

    def encode(self, rows):
        word_to_id = {w: i for i, w in enumerate(self.fitted["vocab"])}
        tokens = np.full((len(rows), MAX_LEN), PAD_ID)
        for i, utterance in enumerate(rows["utterance"]):
            ids = [word_to_id.get(w, UNK_ID) for w in utterance.split()][:MAX_LEN]
            tokens[i, : len(ids)] = ids
        batch = {"tokens": torch.from_numpy(tokens)}
        if "target" in rows.columns:
            intent_to_id = {w: i for i, w in enumerate(self.fitted["intents"])}
            slot_to_id = {w: i for i, w in enumerate(self.fitted["slots"])}
            labels = np.full((len(rows), 1 + MAX_LEN), IGNORE)
            for i, target in enumerate(rows["target"].to_list()):
                labels[i, 0] = intent_to_id.get(target[0], IGNORE)
                slots = [slot_to_id.get(s, IGNORE) for s in target[1:]][:MAX_LEN]
                labels[i, 1 : 1 + len(slots)] = slots
            batch[LABEL] = torch.from_numpy(labels)
        return batch

    def build_model(self):
        return JointNLU(*(len(self.fitted[k]) for k in ("vocab", "intents", "slots")))

    def heads(self, output):
        n = len(self.fitted["intents"])
        return output[:, :n], output[:, n:].view(len(output), MAX_LEN, -1)

    def losses(self, output, batch):
        intent_logits, slot_logits = self.heads(output)
        intent, slots = batch[LABEL][:, 0], batch[LABEL][:, 1:]
        intent_loss = F.cross_entropy(intent_logits, intent, ignore_index=IGNORE, reduction="none")
        slot_loss = F.cross_entropy(slot_logits.transpose(1, 2), slots, ignore_index=IGNORE, reduction="none")
        slot_loss = slot_loss.sum(1) / (slots != IGNORE).sum(1).clamp(min=1)
        return intent_loss + slot_loss

    def predict(self, output):
        intent_logits, slot_logits = self.heads(output)
        return torch.cat([intent_logits.argmax(1, keepdim=True), slot_logits.argmax(2)], dim=1)

    def statistic(self, output, batch):
        right = self.predict(output) == batch[LABEL]
        slots = batch[LABEL][:, 1:] != IGNORE
        return torch.stack([right[:, 0], (right[:, 1:] & slots).sum(1), slots.sum(1)], dim=1).double()

    def score(self, predictions, labels):
        intent, right, words = (predictions * labels[:, None]).sum(0)
        return {"slot_accuracy": float(right / words), "intent_accuracy": float(intent / labels.sum())}
