"""Rooms sold of a night, from ten days before: what is on the books, plus a pickup from the
booking curve, last year and the calendar.

data: hotel_nights

[data]
label = "sold"
time = "night"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CURVE = 7  # 90, 60, 45, 30, 21, 14 and 10 days before


class PickupNet(nn.Module):
    def __init__(self, n_hotels, n_in):
        super().__init__()
        self.hotel = nn.Embedding(n_hotels + 1, 4)
        self.weekday = nn.Embedding(7, 3)
        self.mlp = nn.Sequential(
            nn.Linear(n_in + 7, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1)
        )

    def forward(self, hotel, weekday, features, on_books, rooms):
        h = torch.cat([features, self.hotel(hotel), self.weekday(weekday)], dim=1)
        pickup = self.mlp(h).squeeze(1)  # as a share of the house
        share = on_books / rooms + pickup
        return torch.stack([share, rooms], dim=1)


class RoomsPickup(Task):
    kind = "regression"
    metrics = directions_of("wape", "mae", "rmse")

    def fit(self, train):
        df = train.collect()
        rate = df["rate"].to_numpy()
        self.fitted = {
            "hotels": sorted(set(df["hotel"])),
            "rate": {h: float(df.filter(hotel=h)["rate"].mean()) for h in sorted(set(df["hotel"]))},
            "mean_rate": float(rate.mean()),
            "occupancy": float((df["sold"] / df["rooms"]).mean()),
        }

    def curve(self, rows):
        """Shares of the house [rows, CURVE]; a gap repeats the reading before it."""
        out = np.zeros((rows.height, CURVE), dtype=np.float32)
        for i, (books, rooms) in enumerate(zip(rows["on_books"].to_list(), rows["rooms"])):
            last = 0.0
            for j in range(CURVE):
                if books[j] is not None:
                    last = books[j] / rooms
                out[i, j] = last
        return out

    def encode(self, rows):
        f = self.fitted
        rooms = rows["rooms"].to_numpy().astype(np.float32)
        curve = self.curve(rows)
        last_year = rows["last_year"].cast(float).to_numpy() / rooms
        unknown = np.isnan(last_year)
        day = rows["night"].dt.ordinal_day().to_numpy() * (2 * np.pi / 365.25)
        usual = np.array([f["rate"].get(h, f["mean_rate"]) for h in rows["hotel"]])
        features = np.column_stack(
            [
                curve,
                np.diff(curve, axis=1),
                np.where(unknown, f["occupancy"], last_year),
                unknown,
                np.sin(day),
                np.cos(day),
                rows["event"].to_numpy(),
                rows["rate"].to_numpy() / usual - 1,
            ]
        )
        number = {h: i for i, h in enumerate(f["hotels"], 1)}
        batch = {
            "hotel": torch.tensor([number.get(h, 0) for h in rows["hotel"]]),
            "weekday": torch.tensor((rows["night"].dt.weekday() - 1).to_list()).long(),
            "features": torch.tensor(features, dtype=torch.float32),
            "on_books": torch.tensor(curve[:, -1] * rooms),
            "rooms": torch.tensor(rooms),
        }
        if "sold" in rows.columns:
            batch[LABEL] = torch.tensor(rows["sold"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return PickupNet(len(self.fitted["hotels"]), 2 * CURVE - 1 + 6)

    def losses(self, output, batch):
        share, rooms = output.unbind(1)
        return nn.functional.smooth_l1_loss(share, batch[LABEL] / rooms, reduction="none", beta=0.1)

    def predict(self, output):
        share, rooms = output.unbind(1)
        return share.clamp(0, 1) * rooms

    def baseline(self, rows):
        """The house's usual share of occupancy, or what is booked already."""
        usual = self.fitted["occupancy"] * rows["rooms"].to_numpy()
        return np.maximum(usual, self.curve(rows)[:, -1] * rows["rooms"].to_numpy())
