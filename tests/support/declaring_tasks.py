"""Tasks that declare metrics of the catalogue, rightly and wrongly."""

from typing import ClassVar

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import Task
from tiny_training import TinyTask


class Catalogued(TinyTask):
    """Leaves all metrics to the engine."""

    metrics: ClassVar = directions_of("rmse", "r2")
    score = Task.score


class WithOwn(Catalogued):
    """One of its own beside them."""

    metrics: ClassVar = {**directions_of("rmse", "r2"), "bias": "minimize"}

    def score(self, predictions, labels):
        bias = abs(float((predictions - labels).mean()))
        return super().score(predictions, labels) | {"bias": bias}


class Unknown(Catalogued):
    metrics: ClassVar = {"rsme": "minimize"}


class OfAnotherKind(Catalogued):
    metrics: ClassVar = directions_of("roc_auc")


class WrongWayRound(Catalogued):
    metrics: ClassVar = {"rmse": "maximize"}


class WithoutStatistics(Catalogued):
    kind = "statistic"
    metrics: ClassVar = directions_of("perplexity")

    def statistic(self, output, batch):
        return self.losses(output, batch)
