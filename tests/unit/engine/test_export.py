"""A trained model leaves as one file, and what does not fit comes back as a clear error."""

import safetensors.torch
from torch import nn

from components.engine.export import WEIGHTS_FILE, write_weights


class Tied(nn.Module):
    """Shares one matrix between input and output, as language models do."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.output = nn.Linear(3, 7, bias=False)
        self.output.weight = self.embed.weight


def test_tied_weights_are_exported_and_loaded(tmp_path):
    model, other = Tied(), Tied()
    digest = write_weights(model, tmp_path)
    other.load_state_dict(safetensors.torch.load_file(tmp_path / WEIGHTS_FILE))
    assert (other.output.weight == model.embed.weight).all()
    assert write_weights(other, tmp_path) == digest
