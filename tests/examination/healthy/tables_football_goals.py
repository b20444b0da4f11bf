"""Goals of home and away side: attack and defence of every team, form and rest, two Poisson rates
(after Maher and Dixon-Coles).

data: football_matches

[data]
label = "goals"
time = "played_on"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.3 }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

FORM = ["home_for_5", "home_against_5", "away_for_5", "away_against_5"]
REST = ["home_rest", "away_rest"]
MOST = 10  # goals of one side in the table of results


class GoalsNet(nn.Module):
    def __init__(self, n_teams, start):
        super().__init__()
        self.attack = nn.Embedding(n_teams, 1)
        self.defence = nn.Embedding(n_teams, 1)
        nn.init.normal_(self.attack.weight, std=0.05)
        nn.init.normal_(self.defence.weight, std=0.05)
        self.level = nn.Parameter(torch.tensor(start))
        self.extra = nn.Sequential(
            nn.Linear(len(FORM) + len(REST) + 2, 16), nn.Tanh(), nn.Linear(16, 2)
        )

    def forward(self, home, away, x):
        home_log_rate = self.attack(home) - self.defence(away)
        away_log_rate = self.attack(away) - self.defence(home)
        log_rates = torch.cat([home_log_rate, away_log_rate], dim=1)
        return log_rates + self.level + self.extra(x)


def result_probabilities(rates):
    """[N, 2] rates -> [N, 3]: home wins, draw, away wins, from independent Poissons."""
    k = np.arange(MOST + 1)
    log_factorial = np.cumsum(np.log(np.maximum(k, 1)))
    p = np.exp(k * np.log(rates[:, :, None]) - rates[:, :, None] - log_factorial)
    table = p[:, 0, :, None] * p[:, 1, None, :]
    home = np.tril(table, -1).sum((1, 2))
    draw = np.trace(table, axis1=1, axis2=2)
    away = np.triu(table, 1).sum((1, 2))
    found = np.stack([home, draw, away], 1)
    return found / found.sum(1, keepdims=True)


class FootballGoals(Task):
    kind = "statistic"
    metrics = {"result_log_loss": "minimize", "goals_mae": "minimize"}
    serves_predictions = True
    prediction_names = ("home_goals", "away_goals")

    def fit(self, train):
        df = train.collect()
        goals = np.array(df["goals"].to_list(), dtype=float)
        self.fitted = {
            "teams": sorted(set(df["home"]) | set(df["away"])),
            "level": np.log(goals.mean(0)).tolist(),
            "form_mean": [df[c].mean() for c in FORM],
            "form_std": [df[c].std() for c in FORM],
        }

    def encode(self, rows):
        number = {team: i for i, team in enumerate(self.fitted["teams"], start=1)}
        columns = []
        for c, mean, std in zip(FORM, self.fitted["form_mean"], self.fitted["form_std"]):
            columns.append(
                ((rows[c] - mean) / std).fill_null(0.0).to_numpy()
            )  # first match: average form
        for c in REST:
            columns.append((rows[c] < 5).to_numpy().astype(float))
        columns.append((rows["league"] == "second").to_numpy().astype(float))
        columns.append(rows["home_for_5"].is_null().to_numpy().astype(float))
        batch = {
            "home": torch.tensor([number.get(t, 0) for t in rows["home"]]),
            "away": torch.tensor([number.get(t, 0) for t in rows["away"]]),
            "x": torch.tensor(np.stack(columns, 1), dtype=torch.float32),
        }
        if "goals" in rows.columns:
            batch[LABEL] = torch.tensor(rows["goals"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return GoalsNet(len(self.fitted["teams"]) + 1, self.fitted["level"])

    def losses(self, output, batch):
        nll = nn.functional.poisson_nll_loss(
            output, batch[LABEL], log_input=True, full=True, reduction="none"
        )
        return nll.sum(dim=1)

    def predict(self, output):
        return output.exp()

    def statistic(self, output, batch):
        return torch.cat([self.predict(output), batch[LABEL]], dim=1)

    def score(self, predictions, labels):
        rates, goals = predictions[:, :2], predictions[:, 2:]
        result = 1 - np.sign(goals[:, 0] - goals[:, 1]).astype(int)
        chances = result_probabilities(rates)[np.arange(len(rates)), result]
        return {
            "result_log_loss": float(-np.log(np.clip(chances, 1e-9, 1)).mean()),
            "goals_mae": float(np.abs(rates - goals).mean()),
        }
