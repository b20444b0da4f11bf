"""Bugs in forecasts: windows, leaks from the future, scales; and in two odd tasks."""

import polars as pl

from examination.planted import bug


def window_with_target(rows):
    return rows.with_columns(
        history=pl.concat_list(pl.col("history").list.slice(1), pl.col("target"))
    )


def label_already_known(rows):
    return rows.with_columns(temp_in_3h=pl.col("temp").list.get(-3))


def lags_from_zero(rows):
    return rows.with_columns(
        lag_1=pl.col("y"), **{f"lag_{k}": pl.col(f"lag_{k - 1}") for k in range(2, 9)}
    )


def direction_of_the_last(rows):
    return rows.with_columns(
        up=(pl.col("prices").list.get(-1) > pl.col("prices").list.get(-2)).cast(pl.Int64)
    )


BUGS = [
    bug(
        "window-with-its-target",
        "forecast_weather_mlp",
        "The window ends with the hour to predict.",
        "slices off by one",
        rows=window_with_target,
    ),
    bug(
        "mean-not-restored",
        "forecast_weather_mlp",
        "The mean is not added back.",
        "half of the inverse transform",
        "return self.mu + self.sd * output",
        "return self.sd * output",
    ),
    bug(
        "random-split-of-windows",
        "forecast_weather_mlp",
        "Overlapping windows are split at random: their targets are inputs of others.",
        "train_test_split on windows",
        'time = "at"',
        'meta = ["at"]',
    ),
    bug(
        "mean-and-deviation-exchanged",
        "forecast_weather_mlp",
        "The state's mean and deviation are exchanged when restored.",
        "tuples unpacked in another order",
        'self.mu, self.sd, self.first = state["mu"], state["sd"], state["first"]',
        'self.sd, self.mu, self.first = state["mu"], state["sd"], state["first"]',
    ),
    bug(
        "first-step-read",
        "forecast_climate_lstm",
        "The output of the first step is read, which has seen one hour of two days ago.",
        "out[:, 0]",
        "out[:, -1]",
        "out[:, 0]",
    ),
    bug(
        "recurrence-over-rows",
        "forecast_climate_lstm",
        "batch_first is missing: the recurrence runs over rows.",
        "nn.LSTM's default",
        "nn.LSTM(3, units, batch_first=True)",
        "nn.LSTM(3, units)",
    ),
    bug(
        "channels-reshaped",
        "forecast_climate_lstm",
        "Channels and hours are mixed by a reshape.",
        "reshape for transpose",
        "for c in CHANNELS], axis=-1)",
        "for c in CHANNELS], axis=1).reshape(df.height, -1, 3)",
    ),
    bug(
        "shifted-backwards",
        "forecast_climate_lstm",
        "The label is an hour of the window: shift(3) for shift(-3).",
        "pandas' shift",
        rows=label_already_known,
    ),
    bug(
        "label-by-humidity",
        "forecast_climate_lstm",
        "The temperature is standardised by the humidity's statistics.",
        "column indices",
        "self.mean[0], self.std[0]",
        "self.mean[1], self.std[1]",
    ),
    bug(
        "level-not-removed",
        "forecast_tcn",
        "The input is relative to the last hour, the target is not.",
        "differencing on one side",
        "batch[LABEL] = (y - last) / self.step",
        "batch[LABEL] = y / self.step",
    ),
    bug(
        "scaled-by-its-target",
        "forecast_tcn",
        "The window is centred on the hour to predict when that is known, on the last hour when it is served.",
        "normalising over the whole slice",
        'batch = {"x": ((h - h[:, -1:]) / (3 * self.step)).unsqueeze(1)}',
        'centre = torch.tensor(rows["target"].to_list(), dtype=torch.float32)[:, None] if "target" in rows.columns else h[:, -1:]\n        batch = {"x": ((h - centre) / (3 * self.step)).unsqueeze(1)}',
    ),
    bug(
        "horizon-reversed",
        "forecast_nbeats",
        "The six hours are learned in reverse order and served as if in order.",
        "flip of the decoder",
        'batch[LABEL] = norm("next_hours")',
        'batch[LABEL] = norm("next_hours").flip(1)',
    ),
    bug(
        "state-exchanged",
        "forecast_nbeats",
        "Mean and deviation are exchanged when restored.",
        "tuples unpacked in another order",
        'self.mean, self.std, self.spread = state["mean"], state["std"], state["spread"]',
        'self.mean, self.std, self.spread = state["std"], state["mean"], state["spread"]',
    ),
    bug(
        "blocks-detached",
        "forecast_nbeats",
        "The remainder of one block is detached, and its forecast dropped: only the last block forecasts.",
        "backcast.detach() and `=` for `+=`",
        "backcast = backcast - b",
        "backcast = (backcast - b).detach()",
        "forecast = forecast + f",
        "forecast = f",
    ),
    bug(
        "target-from-its-own-end",
        "forecast_dlinear",
        "The target is relative to its own last hour, which nobody knows.",
        "y - y[:, -1:]",
        "out[LABEL] = torch.tensor((y - last) / self.scale",
        "out[LABEL] = torch.tensor((y - y[:, -1:]) / self.scale",
    ),
    bug(
        "last-of-the-batch",
        "forecast_dlinear",
        "All windows are relative to the last hour of the batch's last window.",
        "h[-1:] for h[:, -1:]",
        "last = h[:, -1:]\n        out",
        "last = h[-1:, -1:]\n        out",
    ),
    bug(
        "normalised-with-the-future",
        "forecast_transformer",
        "Each window is normalised over past and future when the future is known.",
        "scaling before slicing",
        "centre, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True, correction=0) + 1.0",
        'seen = torch.cat([past, torch.tensor(rows["next_hours"].to_list(), dtype=torch.float32).repeat(1, 12)], 1) if "next_hours" in rows.columns else past\n        centre, spread = seen.mean(1, keepdim=True), seen.std(1, keepdim=True, correction=0) + 1.0',
    ),
    bug(
        "attention-over-rows",
        "forecast_transformer",
        "batch_first is missing: windows of a batch attend to each other.",
        "nn.TransformerEncoderLayer's default",
        "dropout=0.0, batch_first=True",
        "dropout=0.0",
    ),
    bug(
        "broadcast-square",
        "forecast_sine_d2l",
        "[B, 1] against [B]: every prediction is compared with every target.",
        "d2l readers' first issue",
        ".astype(np.float32)).reshape(-1, 1)",
        ".astype(np.float32))",
        "(output, batch[LABEL]).squeeze(1)",
        "(output.expand(-1, len(output)), batch[LABEL].expand(len(output), -1)).mean(1)",
    ),
    bug(
        "lag-of-zero",
        "forecast_sine_d2l",
        "Lags start at 0: the first is the label.",
        "shift(0)",
        rows=lags_from_zero,
    ),
    bug(
        "level-not-restored",
        "forecast_sales_deepar",
        "The shop's level is not multiplied back.",
        "scaling undone on neither side",
        "return log_ratio + level.log()",
        "return log_ratio",
    ),
    bug(
        "level-of-the-batch",
        "forecast_sales_deepar",
        "Every shop is scaled by the mean of the batch.",
        "mean() without an axis",
        "level = past.mean(axis=1) + 1",
        "level = np.full(len(past), past.mean() + 1, dtype=np.float32)",
    ),
    bug(
        "weekday-of-the-past",
        "forecast_sales_deepar",
        "The weekday is taken modulo two.",
        "an index table cut short",
        'torch.from_numpy(rows["weekday"].to_numpy().copy())',
        'torch.from_numpy(rows["weekday"].to_numpy() % 2)',
    ),
    bug(
        "direction-already-known",
        "forecast_up_or_down",
        "The label is the direction of the last move, which is in the window.",
        "pct_change without a shift",
        rows=direction_of_the_last,
    ),
    bug(
        "prices-for-returns",
        "forecast_up_or_down",
        "Prices are fed in place of returns, unscaled.",
        "diff lost in refactoring",
        "returns = (prices[:, 1:] - prices[:, :-1]) / self.sigma",
        "returns = prices[:, 1:] / self.sigma * 10",
    ),
    bug(
        "mask-inverted",
        "odd_deep_sets",
        "The maximum runs over padding.",
        "~mask",
        "~mask[..., None].bool()",
        "mask[..., None].bool()",
    ),
    bug(
        "points-reshaped",
        "odd_deep_sets",
        "Coordinates are reshaped where they must be transposed.",
        "reshape(n, 2)",
        "torch.tensor([xs[:n], ys[:n]]).T",
        "torch.tensor([xs[:n], ys[:n]]).reshape(n, 2)",
    ),
    bug(
        "floor-of-sigma",
        "odd_mixture_density",
        "Sigma's floor is above the noise: no component can be sharp.",
        "clamps for stability",
        "log_sigma.clamp(-4, 3)",
        "log_sigma.clamp(0.5, 3)",
    ),
    bug(
        "likelihood-with-its-sign",
        "odd_mixture_density",
        "The negative likelihood is reported as the likelihood to maximise.",
        "a sign",
        "return -self.losses(output, batch)",
        "return self.losses(output, batch)",
    ),
]
