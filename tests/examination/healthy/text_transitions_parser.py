"""CS224n, assignment 2: a neural transition parser. Three words of the stack, three of the buffer.

data: parser_steps

[data]
label = "step"
features = ["stack", "stack_tags", "buffer", "buffer_tags"]
group = "sentence"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 320
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NULL, UNK = "<NULL>", "<UNK>"
STEPS = ["shift", "left_arc", "right_arc"]
N = 3


class ParserModel(nn.Module):
    def __init__(self, n_words, n_tags, embed_size=24, hidden_size=64, dropout_prob=0.3):
        super().__init__()
        self.word_embeddings = nn.Embedding(n_words, embed_size)
        self.tag_embeddings = nn.Embedding(n_tags, embed_size)
        self.embed_to_hidden = nn.Linear(4 * N * embed_size, hidden_size)
        self.dropout = nn.Dropout(dropout_prob)
        self.hidden_to_logits = nn.Linear(hidden_size, len(STEPS))
        nn.init.xavier_uniform_(self.embed_to_hidden.weight)
        nn.init.xavier_uniform_(self.hidden_to_logits.weight)

    def forward(self, words, tags):
        x = torch.cat([self.word_embeddings(words), self.tag_embeddings(tags)], dim=1)
        h = F.relu(self.embed_to_hidden(x.view(x.size(0), -1)))
        return self.hidden_to_logits(self.dropout(h))


def window(stack, buffer):
    """The top of the stack is its end, the front of the buffer its beginning."""
    top = ([NULL] * N + list(stack))[-N:]
    front = (list(buffer) + [NULL] * N)[:N]
    return top + front


class TransitionParser(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        df = train.select("stack", "stack_tags", "buffer", "buffer_tags").collect()
        words = {w.lower() for name in ("stack", "buffer") for s in df[name] for w in s}
        tags = {t for name in ("stack_tags", "buffer_tags") for s in df[name] for t in s}
        self.fitted = {
            "words": [NULL, UNK, *sorted(words)],
            "tags": [NULL, UNK, *sorted(tags)],
        }

    def encode(self, rows):
        word2id = {w: i for i, w in enumerate(self.fitted["words"])}
        tag2id = {t: i for i, t in enumerate(self.fitted["tags"])}
        unk = 1
        words, tags = [], []
        for row in rows.iter_rows(named=True):
            seen = window(row["stack"], row["buffer"])
            words.append([word2id.get(w if w == NULL else w.lower(), unk) for w in seen])
            seen = window(row["stack_tags"], row["buffer_tags"])
            tags.append([tag2id.get(t, unk) for t in seen])
        batch = {
            "words": torch.tensor(words).view(-1, 2 * N),
            "tags": torch.tensor(tags).view(-1, 2 * N),
        }
        if "step" in rows.columns:
            batch[LABEL] = torch.tensor([STEPS.index(s) for s in rows["step"]])
        return batch

    def build_model(self):
        return ParserModel(len(self.fitted["words"]), len(self.fitted["tags"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
