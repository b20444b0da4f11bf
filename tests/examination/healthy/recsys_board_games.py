"""The game that is borrowed next: two towers as in TensorFlow Recommenders, softmax with logQ.

Cross-entropy over all games 4.1; 4.6 by how often each is borrowed.

data: board_games

[data]
label = "next_game"
time = "at"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.05 }
schedule = { shape = "cosine" }
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

TEMPERATURE = 0.15
LONGEST = 12


class TwoTowers(nn.Module):
    """Scores [B, games]: cosines of the member with each game, over a temperature."""

    def __init__(self, n_games, n_ages, dim=24):
        super().__init__()
        self.game = nn.Embedding(n_games + 1, dim, padding_idx=0)
        self.age = nn.Embedding(n_ages + 1, 4)
        self.member_tower = nn.Sequential(
            nn.Linear(dim + 4 + 1, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, dim)
        )
        self.game_tower = nn.Linear(dim, dim)
        self.n_games = n_games

    def forward(self, played, age, players):
        count = (played > 0).sum(dim=1, keepdim=True).clamp(min=1)
        mean = self.game(played).sum(dim=1) / count
        member = self.member_tower(torch.cat([mean, self.age(age), players], dim=1))
        games = self.game_tower(self.game.weight[1:])
        return F.normalize(member, dim=1) @ F.normalize(games, dim=1).T / TEMPERATURE


class BoardGames(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("recall_at_10", "mean_reciprocal_rank")
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        known = sorted(set(df["played"].explode()) | set(df["next_game"]))
        taken = df["next_game"].value_counts()
        counts = dict(zip(taken["next_game"], taken["count"], strict=False))
        total = df.height + len(known)
        self.fitted = {
            "games": known,
            "ages": sorted(df["age_group"].unique()),
            "shares": [(counts.get(g, 0) + 1) / total for g in known],
        }

    def encode(self, rows):
        lookup = {name: k for k, name in enumerate(self.fitted["games"], start=1)}
        played = torch.zeros(rows.height, LONGEST, dtype=torch.long)
        for i, names in enumerate(rows["played"]):
            ids = [lookup.get(name, 0) for name in names][-LONGEST:]
            played[i, : len(ids)] = torch.tensor(ids)
        ages = {name: k for k, name in enumerate(self.fitted["ages"], start=1)}
        batch = {
            "played": played,
            "age": torch.tensor([ages.get(v, 0) for v in rows["age_group"]]),
            "players": torch.tensor(rows["players"].to_list()).float()[:, None] / 6,
        }
        if "next_game" in rows.columns:
            batch[LABEL] = torch.tensor([lookup.get(v, 1) - 1 for v in rows["next_game"]])
        return batch

    def build_model(self):
        return TwoTowers(len(self.fitted["games"]), len(self.fitted["ages"]))

    def training_losses(self, output, batch):
        """Against the other games of the batch; each is corrected by how often it is there."""
        games = batch[LABEL].unique()
        log_q = torch.tensor(self.fitted["shares"], device=output.device).log()
        scores = output[:, games] - log_q[games]
        own = torch.searchsorted(games, batch[LABEL])
        return F.cross_entropy(scores, own, reduction="none")

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def statistic(self, output, batch):
        own = output.gather(1, batch[LABEL][:, None])
        return torch.stack([(output > own).sum(1), (output == own).sum(1)], dim=1).double()
