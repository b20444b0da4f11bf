"""Which desk wrote a headline: a deep pyramid CNN over words (Johnson and Zhang, 2017), tested on later news.

data: desk_headlines

[data]
label = "desk"
time = "published"
features = ["headline", "standfirst"]
text = ["headline", "standfirst"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 2e-3 }
"""
import re
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Config:
    pad_size = 24
    min_freq = 2
    embed = 48
    num_filters = 48
    dropout = 0.3


PAD, UNK = '<PAD>', '<UNK>'


def tokenizer(text):
    return re.findall(r'[a-z]+|[^a-z\s]', text.lower())


class DPCNN(nn.Module):
    def __init__(self, n_vocab, num_classes):
        super(DPCNN, self).__init__()
        self.embedding = nn.Embedding(n_vocab, Config.embed, padding_idx=0)
        self.conv_region = nn.Conv2d(1, Config.num_filters, (3, Config.embed), padding=(1, 0))
        self.conv = nn.Conv2d(Config.num_filters, Config.num_filters, (3, 1), padding=(1, 0))
        self.conv2 = nn.Conv2d(Config.num_filters, Config.num_filters, (3, 1), padding=(1, 0))
        self.max_pool = nn.MaxPool2d(kernel_size=(3, 1), stride=2)
        self.dropout = nn.Dropout(Config.dropout)
        self.fc = nn.Linear(Config.num_filters, num_classes)

    def forward(self, words):
        x = self.embedding(words).unsqueeze(1)   # [batch, 1, seq, embed]
        x = self.conv_region(x)                  # [batch, filters, seq, 1]
        x = x + self.conv2(F.relu(self.conv(F.relu(x))))
        while x.size(2) > 2:
            x = self._block(x)
        return self.fc(self.dropout(x.amax(dim=(2, 3))))

    def _block(self, x):
        px = self.max_pool(F.pad(x, (0, 0, 0, 1)))
        x = self.conv(F.relu(px))
        x = self.conv2(F.relu(x))
        return x + px  # short cut


class Headlines(Task):
    kind = 'multiclass'
    metrics = directions_of('accuracy', 'macro_f1', 'log_loss')

    def sentences(self, rows):
        both = zip(rows['headline'], rows['standfirst'].fill_null(''))
        return [tokenizer(headline + ' . ' + standfirst) for headline, standfirst in both]

    def fit(self, train):
        df = train.collect()
        vocab_dic = Counter(word for words in self.sentences(df) for word in words)
        kept = sorted(word for word, n in vocab_dic.items() if n >= Config.min_freq)
        self.fitted = {'vocab': [PAD, UNK, *kept], 'class_list': sorted(df['desk'].unique().to_list())}

    def encode(self, rows):
        ids = {word: i for i, word in enumerate(self.fitted['vocab'])}
        contents = torch.zeros(rows.height, Config.pad_size, dtype=torch.long)
        for i, words in enumerate(self.sentences(rows)):
            words = words[:Config.pad_size]
            contents[i, :len(words)] = torch.tensor([ids.get(word, ids[UNK]) for word in words])
        batch = {'words': contents}
        if 'desk' in rows.columns:
            class_ids = {name: i for i, name in enumerate(self.fitted['class_list'])}
            batch[LABEL] = torch.tensor([class_ids[name] for name in rows['desk']])
        return batch

    def augment(self, batch, generator):
        words = batch['words']
        dropped = (torch.rand(words.shape, generator=generator) < 0.05) & (words > 0)
        return {**batch, 'words': words.masked_fill(dropped, 1)}

    def build_model(self):
        return DPCNN(len(self.fitted['vocab']), len(self.fitted['class_list']))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction='none')

    @property
    def prediction_names(self):
        return self.fitted['class_list']
