"""The decoder of `small_decoder`, in a training that a signal stops."""

import os
import signal

import torch

from small_decoder import SmallDecoderOptions, SmallDecoderTask


class StoppingDecoderOptions(SmallDecoderOptions):
    stop_call: int = -1
    """The training pass, counted from 0 on the process of the last stage, that asks to stop."""


class StoppingDecoderTask(SmallDecoderTask):
    Options = StoppingDecoderOptions

    def __init__(self, options, columns):
        super().__init__(options, columns)
        self.calls = 0

    def losses(self, output, batch):
        if torch.is_grad_enabled():
            if self.calls == self.options.stop_call:
                os.kill(os.getpid(), signal.SIGTERM)
            self.calls += 1
        return super().losses(output, batch)
