"""Tags of forum questions, several at once: tf-idf of word pairs, one hidden layer, a sigmoid per tag.

data: forum_questions

[data]
label = "tags"
features = ["title"]
text = ["title"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
"""
import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

from perennial.engine.task import LABEL, Task

N_TAGS = 8


class TagModel(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(n_features, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, N_TAGS))

    def forward(self, tfidf):
        return self.mlp(tfidf)


class ForumTags(Task):
    kind = "statistic"
    metrics = {"bce": "minimize", "hamming_loss": "minimize"}
    serves_predictions = True

    def vectorizer(self, **known):
        return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, norm="l2", **known)

    def fit(self, train):
        titles = train.select("title").collect()["title"].to_list()
        fitted = self.vectorizer(min_df=3, max_features=2000).fit(titles)
        self.fitted = {
            "vocabulary": {word: int(i) for word, i in fitted.vocabulary_.items()},
            "idf": [float(v) for v in fitted.idf_],
        }

    def encode(self, rows):
        vectorizer = self.vectorizer(vocabulary=self.fitted["vocabulary"])
        vectorizer.idf_ = np.array(self.fitted["idf"])
        X = vectorizer.transform(rows["title"].to_list()).toarray()
        batch = {"tfidf": torch.tensor(X, dtype=torch.float32)}
        if "tags" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tags"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TagModel(len(self.fitted["idf"]))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none").mean(dim=1)

    def predict(self, output):
        return torch.sigmoid(output)

    def statistic(self, output, batch):
        wrong = (output > 0) != (batch[LABEL] > 0.5)
        return torch.stack([self.losses(output, batch).double(), wrong.double().mean(1)], dim=1)

    def score(self, predictions, labels):
        bce, wrong = np.average(predictions, axis=0, weights=labels)
        return {"bce": float(bce), "hamming_loss": float(wrong)}
