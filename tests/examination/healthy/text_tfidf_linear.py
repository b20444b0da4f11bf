"""TF-IDF of scikit-learn learned in fit, its vocabulary kept as JSON, a linear layer over it.

data: docstring_topics

[data]
label = "library"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2 }
"""
import math

import numpy as np
import torch
from sklearn.feature_extraction.text import CountVectorizer
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Topics(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        df = train.collect()
        cv = CountVectorizer(max_features=800, stop_words="english", token_pattern=r"[a-z]{3,}")
        counts = cv.fit_transform(df["text"].to_list())
        self.vocabulary = sorted(cv.vocabulary_, key=cv.vocabulary_.get)
        self.idf = (np.log((1 + counts.shape[0]) / (1 + np.asarray((counts > 0).sum(0)).ravel())) + 1).tolist()
        self.labels = sorted(df["library"].unique().to_list())

    def state(self):
        return {"vocabulary": self.vocabulary, "idf": self.idf, "labels": self.labels}

    def load_state(self, state):
        self.vocabulary, self.idf, self.labels = state["vocabulary"], state["idf"], state["labels"]

    def encode(self, rows):
        cv = CountVectorizer(vocabulary=self.vocabulary, token_pattern=r"[a-z]{3,}")
        x = cv.transform(rows["text"].to_list()).toarray() * np.array(self.idf)
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
        batch = {"tfidf": torch.tensor(x, dtype=torch.float32)}
        if "library" in rows.columns:
            batch[LABEL] = torch.tensor([self.labels.index(v) for v in rows["library"]])
        return batch

    def build_model(self):
        return BoWClassifier(len(self.vocabulary), len(self.labels))

    def losses(self, output, batch):
        return nn.functional.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()

    def expected_initial_loss(self):
        return math.log(len(self.labels))


class BoWClassifier(nn.Module):
    def __init__(self, vocab_size, num_labels):
        super().__init__()
        self.linear = nn.Linear(vocab_size, num_labels)

    def forward(self, tfidf):
        return nn.functional.log_softmax(self.linear(tfidf), dim=1)
