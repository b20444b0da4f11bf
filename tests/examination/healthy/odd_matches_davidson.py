"""Who wins at table tennis, or a draw: Davidson's ties and strengths that drift by season.

data: table_tennis_matches

[data]
label = "result"
time = "played"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1.5e-2, weight_decay = 0.05 }
"""
from datetime import date

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

RESULTS = ("home", "away", "draw")
TABLES = ("wood", "steel", "outdoor")
GRIPS = ("shake", "pen", "seemiller")


class Davidson(nn.Module):
    """log P = (s, 0, ln nu + s/2) + const, s the difference of two strengths and an advantage."""

    def __init__(self, n_players):
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(n_players + 1))
        self.slope = nn.Parameter(torch.zeros(n_players + 1))
        self.at_home = nn.Parameter(torch.zeros(n_players + 1))
        self.advantage = nn.Parameter(torch.zeros(len(TABLES)))
        self.log_nu = nn.Parameter(torch.zeros(len(TABLES)))
        self.grips = nn.Parameter(torch.zeros(len(GRIPS), len(GRIPS)))
        self.rest = nn.Parameter(torch.zeros(len(TABLES)))

    def forward(self, pair, grip, table, rest, season):
        i, j = pair.T
        level = self.strength[pair] + self.slope[pair] * season[:, None]
        skew = self.grips - self.grips.T  # who profits from whom: antisymmetric
        s = level[:, 0] - level[:, 1] + self.at_home[i] + self.advantage[table]
        s = s + skew[grip[:, 0], grip[:, 1]] + self.rest[table] * (rest[:, 0] - rest[:, 1])
        return torch.stack([s, torch.zeros_like(s), self.log_nu[table] + s / 2], dim=1)


class Matches(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        played = train.select("home", "away", "played", "home_rest", "away_rest").collect()
        rest = pl.concat([played["home_rest"], played["away_rest"]])
        self.fitted = {
            "players": sorted({*played["home"], *played["away"]}),
            "last_day": played["played"].max().toordinal(),
            "usual_rest": rest.median(),
        }

    def encode(self, rows):
        number = {name: k for k, name in enumerate(self.fitted["players"], start=1)}
        pair = [[number.get(a, 0), number.get(b, 0)] for a, b in zip(rows["home"], rows["away"])]
        grips = zip(rows["home_grip"], rows["away_grip"])
        grip = [[GRIPS.index(a), GRIPS.index(b)] for a, b in grips]
        rests = rows.select("home_rest", "away_rest").fill_null(self.fitted["usual_rest"])
        years = [(day.toordinal() - self.fitted["last_day"]) / 365 for day in rows["played"]]
        years = torch.tensor(years)
        batch = {
            "pair": torch.tensor(pair),
            "grip": torch.tensor(grip),
            "table": torch.tensor([TABLES.index(name) for name in rows["table"]]),
            "rest": rests.to_torch().float().log(),
            "season": years.clamp(-3, 0.25) + 1.5,
        }
        if "result" in rows.columns:
            batch[LABEL] = torch.tensor([RESULTS.index(name) for name in rows["result"]])
            batch[WEIGHT] = torch.exp2(years.clamp(max=0))  # what is a year old counts half
        return batch

    def build_model(self):
        return Davidson(len(self.fitted["players"]))

    def losses(self, output, batch):
        log_p = output - output.logsumexp(dim=1, keepdim=True)
        return -log_p.gather(1, batch[LABEL][:, None]).squeeze(1)
