"""Right answers: from scores of candidates to what the metrics of retrieval read."""

import torch
from torch import Tensor

from perennial.contracts.errors import BadTaskError


def right_answers(scores: Tensor, gains: Tensor, places: int) -> Tensor:
    """Return `ahead`, `tied` and `gain` of each query's right answers, [B, 3 · places].

    What `statistic` returns for a task whose `statistics` are `("ahead", "tied", "gain") * places`.
    A query with fewer right answers leaves places empty; one whose scores are no numbers gets none.

    Args:
        scores: Of each candidate, shape [B, K], higher is better; minus infinity where a query has
            fewer candidates than others.
        gains: What each candidate is worth as an answer, shape [B, K]; 0 where it is wrong.
        places: Right answers that a query may have.

    Raises:
        BadTaskError: a query has more, or one that is not a candidate.
    """
    most = int((gains > 0).sum(dim=1).max()) if len(gains) else 0
    if most > places:
        raise BadTaskError(
            f"a query has {most} right answers, but there is room for {places}",
            evidence=f"`places` is {places}; metrics of retrieval need every right answer",
            action="raise `places`, and how often `statistics` names ahead, tied and gain",
        )
    if bool(((gains > 0) & (scores == -torch.inf)).any()):
        raise BadTaskError(
            "a right answer has the score minus infinity, which marks it as not a candidate",
            action="set its gain to 0 if it is not a candidate, else give it a finite score",
        )
    found = torch.zeros(len(scores), places, 3, dtype=torch.float64, device=scores.device)
    for place, (own, gain) in enumerate(_largest(scores, gains, places)):
        found[:, place, 0] = (scores > own).sum(dim=1)
        found[:, place, 1] = (scores == own).sum(dim=1)
        found[:, place, 2] = gain
    found[found[..., 2] == 0] = 0.0
    found[scores.isnan().any(dim=1)] = torch.nan
    return found.flatten(1)


def _largest(scores: Tensor, gains: Tensor, places: int) -> list[tuple[Tensor, Tensor]]:
    """Score [B, 1] and gain [B] of the candidates with the largest gains, one place after another.

    One by one, so that memory holds [B, K] comparisons and not [B, places, K].
    """
    largest, at = gains.topk(min(places, gains.shape[1]), dim=1)
    own = scores.gather(1, at)
    return [(own[:, [place]], largest[:, place]) for place in range(own.shape[1])]
