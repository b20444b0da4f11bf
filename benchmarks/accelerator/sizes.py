"""Sizes: how much is trained, on a GPU and where there is none."""

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.throughput.cells import SEED, Subject, blocks_of, language
from perennial.tasks.decoder import DecoderOptions
from perennial.tasks.picture_networks import RESNETS, ResNet

CLASSES = 1000


@dataclass(frozen=True)
class Sizes:
    """How much is trained.

    Attributes:
        decoder: The language model.
        sequences: Of an update.
        resnet: The image model.
        pixels: Of a picture's side.
        pictures: Of an update.
        steps: Updates of each contender in each round.
    """

    decoder: DecoderOptions
    sequences: int
    resnet: str
    pixels: int
    pictures: int
    steps: int

    @classmethod
    def fitting(cls, device_type: str, sequences: int | None, pictures: int | None) -> "Sizes":
        """A decoder of 1.0 billion parameters and ResNet-50 on GPUs, next to nothing elsewhere."""
        if device_type != "cuda":
            tiny = DecoderOptions(context_length=64, layers=2, heads=2, width=64)
            return cls(tiny, sequences or 2, "small", 32, pictures or 8, steps=4)
        # Heads of 128 and a hidden layer of 5,632 = 44 · 128: whole tiles of the tensor cores.
        decoder = DecoderOptions(
            vocab_size=32_768, context_length=2048, layers=17, heads=16, width=2048,
            ffn_multiplier=4.125,
        )  # fmt: skip
        return cls(decoder, sequences or 8, "resnet50", 224, pictures or 256, steps=20)

    def language(self) -> Subject:
        """Random tokens for the decoder."""
        return language(self.decoder, rows=64 * self.sequences, batch_size=self.sequences)

    def images(self) -> Subject:
        """Random pictures in the form that the reference task gives: float32, channels first."""
        random = np.random.default_rng(SEED)
        rows = 4 * self.pictures
        pixels = random.normal(size=(rows, 3, self.pixels, self.pixels)).astype(np.float32)
        labels = torch.from_numpy(random.integers(0, CLASSES, rows))
        return Subject(
            self._build_resnet, torch.from_numpy(pixels), labels, self.pictures, blocks_of,
            "image", convolves=True,
        )  # fmt: skip

    def _build_resnet(self) -> ResNet:
        return ResNet(
            RESNETS[self.resnet], 3, torch.zeros(CLASSES), dropout=0.0, channels_last=True
        )
