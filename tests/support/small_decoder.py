"""A small language model for tests of layouts, on the snapshot and the ranks of `tiny_training`."""

from typing import ClassVar, Literal

import numpy as np
import torch
from torch.nn import functional

from perennial.contracts.data import ModelSection
from perennial.engine.task import LABEL, WEIGHT, Task
from perennial.tasks.decoder import Decoder, DecoderOptions, decoder_plan
from tiny_training import FEATURES, tiny_job

LENGTH = 16
VOCABULARY = 32
IGNORED = -100


class SmallDecoderOptions(DecoderOptions):
    vocab_size: int = VOCABULARY
    context_length: int = LENGTH
    layers: int = 2
    heads: int = 4
    width: int = 32
    has_plan: bool = True
    attention_dropout: bool = True


class SmallDecoderTask(Task):
    """Predicts the next of 16 tokens made from a row's numbers; some rows have fewer."""

    Options = SmallDecoderOptions
    kind: Literal["statistic"] = "statistic"
    metrics: ClassVar = {"loss_per_token": "minimize"}

    def encode(self, rows):
        x = rows.select([f"x{index}" for index in range(FEATURES)]).to_numpy()
        steps = np.arange(LENGTH + 1)
        waves = x[:, :1] * 3 + np.sin(steps * (1 + np.abs(x[:, 1:2]))) * 8 + steps % 3
        tokens = torch.from_numpy(waves.round().astype(np.int64) % VOCABULARY)
        label = tokens[:, 1:].clone()
        lengths = torch.from_numpy(4 + (np.abs(x[:, 2]) * 9).astype(np.int64)).clamp(max=LENGTH)
        label[torch.arange(LENGTH) >= lengths[:, None]] = IGNORED
        return {"tokens": tokens[:, :-1].contiguous(), LABEL: label, WEIGHT: lengths.float()}

    def build_model(self):
        model = Decoder(self.options)
        if not self.options.attention_dropout:
            for block in model.blocks:
                block.attention.core.dropout = 0.0
        return model

    def blocks(self, model):
        return list(model.blocks)

    def losses(self, output, batch):
        label = batch[LABEL]
        losses = functional.cross_entropy(
            output.transpose(1, 2), label, ignore_index=IGNORED, reduction="none"
        )
        return losses.sum(1) / (label != IGNORED).sum(1).clamp(min=1)

    def auxiliary_losses(self, model):
        return model.balance_losses()

    def score(self, predictions, labels):
        return {"loss_per_token": float((predictions * labels).sum() / labels.sum())}

    def expected_initial_loss(self):
        return float(np.log(VOCABULARY))

    def parallel_plan(self):
        if not self.options.has_plan:
            return None
        return decoder_plan(self.options)


def decoder_job(root, options=None, **changes):
    """A job of the small decoder, like `tiny_job`."""
    options = options or SmallDecoderOptions()
    model = ModelSection(
        name="decoder",
        task="small_decoder:SmallDecoderTask",
        options=options.model_dump(mode="json"),
    )
    return tiny_job(root, **changes).model_copy(update={"model": model})
