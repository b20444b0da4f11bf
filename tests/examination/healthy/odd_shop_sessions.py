"""Will this visit end in a purchase? Events and log dwell times through a packed LSTM, last state.

data: shop_sessions

[data]
label = "bought"
time = "visited"
features = ["device", "events", "seconds"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LEN = 16
PAD = 0
OTHER = 1
DEVICES = ["phone", "desktop", "tablet", "unknown"]


class SessionLSTM(nn.Module):
    def __init__(self, n_events, emb_dim=16, hidden=32):
        super().__init__()
        self.event_emb = nn.Embedding(n_events, emb_dim, padding_idx=PAD)
        self.device_emb = nn.Embedding(len(DEVICES), 4)
        self.lstm = nn.LSTM(emb_dim + 1, hidden, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(hidden + 4, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)
        )

    def forward(self, events, dwell, lengths, device):
        x = torch.cat([self.event_emb(events), dwell.unsqueeze(-1)], dim=-1)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(packed)
        return self.head(torch.cat([h[-1], self.device_emb(device)], dim=-1)).squeeze(-1)


class PurchaseInSession(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision", "log_loss")
    tokens = "events"

    def fit(self, train):
        df = train.select("events", "seconds").collect()
        names = df["events"].explode().unique().to_list()
        log_seconds = df["seconds"].explode().log1p()
        self.fitted = {
            "events": sorted(names),
            "mean": float(log_seconds.mean()),
            "std": float(log_seconds.std()),
        }

    def encode(self, rows):
        number = {name: i + 2 for i, name in enumerate(self.fitted["events"])}
        n = rows.height
        events = torch.full((n, MAX_LEN), PAD)
        dwell = torch.zeros(n, MAX_LEN)
        lengths = torch.ones(n, dtype=torch.long)
        visits = zip(rows["events"].to_list(), rows["seconds"].to_list())
        for i, (path, seconds) in enumerate(visits):
            path, seconds = path[-MAX_LEN:], seconds[-MAX_LEN:]  # the newest events
            k = len(path)
            events[i, :k] = torch.tensor([number.get(e, OTHER) for e in path])
            logs = torch.log1p(torch.tensor(seconds))
            dwell[i, :k] = (logs - self.fitted["mean"]) / self.fitted["std"]
            lengths[i] = max(k, 1)
        device = [DEVICES.index(d) if d in DEVICES else 3 for d in rows["device"]]
        batch = {
            "events": events,
            "dwell": dwell,
            "lengths": lengths,
            "device": torch.tensor(device),
        }
        if "bought" in rows.columns:
            batch[LABEL] = torch.tensor(rows["bought"].to_list()).float()
        return batch

    def build_model(self):
        return SessionLSTM(len(self.fitted["events"]) + 2)

    def losses(self, output, batch):
        bce = nn.functional.binary_cross_entropy_with_logits
        return bce(output, batch[LABEL], reduction="none")
