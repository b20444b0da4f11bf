"""Which hotel of a search is booked: utilities of two to eight candidates, those that are not there get minus infinity.

data: hotel_searches

[data]
label = "booked"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MOST = 8


class Utility(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 1, bias=False))

    def forward(self, hotels, nights, there):
        nights = nights[:, None, None].expand(-1, hotels.shape[1], 1)
        utility = self.mlp(torch.cat([hotels, nights], -1)).squeeze(-1)
        return utility.masked_fill(~there, float("-inf"))


class HotelChoice(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy", "top_3_accuracy")

    def encode(self, rows):
        def padded(name):
            lists = [torch.tensor(v, dtype=torch.float32) for v in rows[name].to_list()]
            lists.append(torch.zeros(MOST))  # so that each batch is as wide
            return pad_sequence(lists, batch_first=True, padding_value=float("nan"))[:-1]

        price, stars, km = padded("price"), padded("stars"), padded("km")
        hotels = torch.stack([(price / 90).log(), (stars - 3) / 1.4, torch.log1p(km) - 1], -1)
        batch = {
            "hotels": hotels.nan_to_num(0.0),
            "nights": torch.tensor(rows["nights"].to_list(), dtype=torch.float32) / 4 - 1,
            "there": ~price.isnan(),
        }
        if "booked" in rows.columns:
            batch[LABEL] = torch.tensor(rows["booked"].to_list())
        return batch

    def build_model(self):
        return Utility()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
