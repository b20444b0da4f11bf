"""A learned model of a pendulum, as in model-based control: it predicts changes of the state and is unrolled for five torques.

data: pendulum_rollouts

[data]
label = "states_after"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 4e-3 }
"""
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

HORIZON = 5


class DynamicsModel(nn.Module):
    """s' = s + scale * f(sin, cos, speed, torque); the angle itself is not seen, it is periodic."""

    def __init__(self, change_mean, change_std, speed_std, hidden=64):
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(4, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2)
        )
        self.speed_std = speed_std
        self.register_buffer("change_mean", torch.tensor(change_mean))
        self.register_buffer("change_std", torch.tensor(change_std))

    def step(self, s, u):
        angle, speed = s[:, 0], s[:, 1]
        z = torch.stack([angle.sin(), angle.cos(), speed / self.speed_std, u / 1.2], dim=1)
        return s + self.change_mean + self.change_std * self.f(z)

    def forward(self, state, torques):
        path = []
        for t in range(HORIZON):
            state = self.step(state, torques[:, t])
            path.append(state)
        return torch.stack(path, dim=1)  # (B, T, 2)


class PendulumRollout(Task):
    kind = "statistic"
    metrics = {"final_angle_error": "minimize", "rollout_mse": "minimize"}

    def fit(self, train):
        df = train.select("state", "states_after").collect()
        now = torch.tensor(df["state"].to_list())
        after = torch.tensor(df["states_after"].to_list()).view(-1, HORIZON, 2)
        change = torch.cat([now[:, None], after], dim=1).diff(dim=1).reshape(-1, 2)
        self.fitted = {
            "change_mean": change.mean(0).tolist(),
            "change_std": change.std(0).tolist(),
            "speed_std": float(now[:, 1].std()),
            "spread": (after - now[:, None]).std(0).tolist(),
        }

    def encode(self, rows):
        batch = {
            "state": torch.tensor(rows["state"].to_list(), dtype=torch.float32),
            "torques": torch.tensor(rows["torques"].to_list(), dtype=torch.float32),
        }
        if "states_after" in rows.columns:
            after = torch.tensor(rows["states_after"].to_list(), dtype=torch.float32)
            batch[LABEL] = after.view(-1, HORIZON, 2)
        return batch

    def augment(self, batch, generator):
        """Mirror: left and right are alike."""
        sign = torch.where(torch.rand(len(batch["state"]), generator=generator) < 0.5, -1.0, 1.0)
        return {
            **batch,
            "state": batch["state"] * sign[:, None],
            "torques": batch["torques"] * sign[:, None],
            LABEL: batch[LABEL] * sign[:, None, None],
        }

    def build_model(self):
        f = self.fitted
        return DynamicsModel(f["change_mean"], f["change_std"], f["speed_std"])

    def losses(self, output, batch):
        spread = torch.tensor(self.fitted["spread"], device=output.device)
        z = (output - batch[LABEL]) / spread
        return nn.functional.huber_loss(z, torch.zeros_like(z), reduction="none").mean(dim=(1, 2))

    def predict(self, output):
        return output.flatten(1)

    def statistic(self, output, batch):
        error = output - batch[LABEL]
        return torch.stack([error[:, -1, 0].abs(), error.pow(2).mean((1, 2))], dim=1)

    def score(self, predictions, labels):
        last, mse = (predictions * labels[:, None]).sum(0) / labels.sum()
        return {"final_angle_error": float(last), "rollout_mse": float(mse)}
