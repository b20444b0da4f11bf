"""Forecasts of several steps: the next values of a series, from windows and other columns.

Use it by name in a contract: `task = "perennial.tasks.forecasting:TabularForecast"`. The label is a
column of lists of numbers, one for each step, all of one length.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch
from perennial.tasks.columns.tabular_numbers import is_window, read_windows
from perennial.tasks.tabular import NumberTask, TabularState

# Metrics whose best constants are also the losses'.
_METRICS = {"squared": "forecast_rmse", "quantile": "forecast_pinball"}


class ForecastState(TabularState):
    """What the task learns from the training split."""

    starts: tuple[float, ...] = ()
    """First output of each step: about its best constant, in standard deviations."""


class TabularForecast(NumberTask):
    """Several numbers, one for each step: their means, medians or quantiles, as `loss` says."""

    kind: Literal["statistic"] = "statistic"
    metrics: Mapping[str, Direction] = directions_of("forecast_rmse", "forecast_mae")
    statistics: ClassVar[tuple[str, ...]] = ("loss", "squared", "absolute", "pinball")
    serves_predictions = True
    fitted: ForecastState

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.fitted = ForecastState(numeric={}, categories={})
        first = _METRICS.get(self.regression.loss, "forecast_mae")
        self.metrics = {**directions_of(first), **self.metrics}

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean over the steps of the chosen loss of standardised labels, shape [B]."""
        target = (batch[LABEL] - self.fitted.target_mean) / self.fitted.target_scale
        return self.regression.losses(output, target).mean(dim=1)

    def predict(self, output: Tensor) -> Tensor:
        """Return the value of each step in the label's own unit, shape [B, H]."""
        return output * self.fitted.target_scale + self.fitted.target_mean

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        """Loss, and mean errors over the steps in the label's unit, of each row: float64 [B, 4].

        The pinball loss is at the median unless the options name a quantile.
        """
        # Squares of 32 bits end at 1e38, and are 0 below 1e-45.
        error = self.predict(output).double() - batch[LABEL].double()
        share = 0.5 if self.regression.quantile is None else self.regression.quantile
        pinball = torch.maximum((1.0 - share) * error, -share * error)
        means = [each.mean(dim=1) for each in (error.square(), error.abs(), pinball)]
        return torch.stack([self.losses(output, batch), *means], dim=1).double()

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the label's name with the number of each step, from 1."""
        return [f"{self.columns.label}_{step}" for step in self._output_keys()]

    def _label_state(self, train: pl.LazyFrame) -> dict[str, object]:
        labels = train.select(self.columns.label).drop_nulls().collect().to_series()
        if not is_window(labels.dtype):
            raise BadDataError(
                f"the label {labels.name!r} is {labels.dtype}, not a list of numbers",
                action="write the values of all steps as one list; for one number, use "
                "perennial.tasks.tabular:TabularRegression",
            )
        rows = train.drop_nulls(self.columns.label)
        state, starts = self._fit_target(rows, _read_complete(labels))
        return {**state, "starts": tuple(starts.tolist())}

    def _encode_label(self, labels: pl.Series) -> NDArray[np.float32]:
        return _read_complete(labels, len(self.fitted.starts)).astype(np.float32)

    def _initial_output(self) -> Tensor:
        return torch.tensor(self.fitted.starts)

    def _output_keys(self) -> Sequence[Hashable]:
        return range(1, len(self.fitted.starts) + 1)

    def _describe_label(self, value: Tensor) -> str:
        return f"{value[0].item():.4g} … {value[-1].item():.4g}, {len(value)} values"


def _read_complete(labels: pl.Series, steps: int | None = None) -> NDArray[np.float64]:
    """Return labels [B, H] of which no number is missing.

    Raises:
        BadDataError: one is, or lists differ in length.
    """
    values = read_windows(labels, steps)
    if not np.isfinite(values).all():
        raise BadDataError(
            f"the label {labels.name!r} has lists in which a number is missing or not finite",
            evidence=f"{(~np.isfinite(values)).any(axis=1).sum():,} of {len(values):,} rows",
            action="leave out rows of which the values of all steps are not known yet",
        )
    return values
