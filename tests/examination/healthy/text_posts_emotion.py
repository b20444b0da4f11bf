"""Emotions of short posts, as in the Hugging Face course: a word-level tokenizer of one's own with
special tokens and attention masks, a small encoder, the answer at [CLS].

data: emotion_posts

[data]
label = "emotion"
ids = ["row_id"]
meta = ["batch"]
text = ["text"]

[training]
steps = 700
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine" }
"""

import re
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LABELS = ["sadness", "joy", "love", "anger", "fear", "surprise"]
label2id = {label: i for i, label in enumerate(LABELS)}
max_length = 40


def pre_tokenize(text):
    return re.findall(r"\w+|[^\w\s]", text.lower())


class WordTokenizer:
    def __init__(self, vocab):
        self.ids = {token: i for i, token in enumerate(vocab)}

    def __call__(self, texts):
        unk, cls, sep = (self.ids[t] for t in ("[UNK]", "[CLS]", "[SEP]"))
        input_ids = torch.zeros(len(texts), max_length, dtype=torch.long)
        attention_mask = torch.zeros(len(texts), max_length, dtype=torch.long)
        for i, text in enumerate(texts):
            tokens = [self.ids.get(t, unk) for t in pre_tokenize(text)]
            tokens = [cls, *tokens[: max_length - 2], sep]
            input_ids[i, : len(tokens)] = torch.tensor(tokens)
            attention_mask[i, : len(tokens)] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask}


class EncoderForSequenceClassification(nn.Module):
    def __init__(self, vocab_size, num_labels, d_model=48, nhead=4, num_layers=2):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, d_model, padding_idx=0)
        self.position_embeddings = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.position_embeddings.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, 4 * d_model, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.classifier = nn.Linear(d_model, num_labels)

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.word_embeddings(input_ids) + self.position_embeddings(positions)
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        return self.classifier(self.norm(x[:, 0]))


class PostEmotion(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")
    prediction_names = LABELS

    def fit(self, train):
        counts = Counter()
        for text in train.select("text").collect()["text"]:
            counts.update(pre_tokenize(text))
        words = sorted(token for token, n in counts.items() if n >= 2)
        self.fitted = {"vocab": SPECIAL + words}

    def encode(self, rows):
        batch = WordTokenizer(self.fitted["vocab"])(rows["text"].to_list())
        if "emotion" in rows.columns:
            batch[LABEL] = torch.tensor([label2id[e] for e in rows["emotion"]])
        return batch

    def build_model(self):
        return EncoderForSequenceClassification(len(self.fitted["vocab"]), len(LABELS))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def describe(self, batch, index):
        ids = batch["input_ids"][index].tolist()
        return {"text": " ".join(self.fitted["vocab"][i] for i in ids if i)}
