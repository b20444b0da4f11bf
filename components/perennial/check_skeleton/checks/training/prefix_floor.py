"""The least loss of texts that begin alike and go on differently."""

import math

import torch
from torch import Tensor

from perennial.check_skeleton.checks.model.sequences import find_target_offset
from perennial.check_skeleton.models import measure_loss
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import Batch

UNSEEN_SHARE = 1e-6


def measure_prefix_floor(subject: Subject, output: Tensor, batch: Batch) -> float:
    """Return the least loss of texts with common prefixes, from the shares of the next tokens."""
    found = find_target_offset(subject, batch)
    if isinstance(found, str) or found.offset != 1:
        return -math.inf
    tokens, wanted = batch[found.tokens], found.wanted
    scores = torch.full_like(output, math.log(UNSEEN_SHARE))
    for place in range(tokens.shape[1]):
        _, group = torch.unique(tokens[:, : place + 1], dim=0, return_inverse=True)
        counts = torch.zeros(int(group.max()) + 1, output.shape[-1])
        rows = (wanted[:, place] >= 0).nonzero().flatten()
        at = (group[rows], wanted[rows, place])
        counts.index_put_(at, torch.ones(len(rows)), accumulate=True)
        shares = counts / counts.sum(dim=1, keepdim=True).clamp_min(1)
        scores[:, place] = shares.clamp_min(UNSEEN_SHARE).log()[group].to(output.dtype)
    return measure_loss(subject.task.losses, scores.log_softmax(dim=-1), batch)
