"""Text classification whose answer depends on padding."""

import pytest
import torch

from perennial.tasks.text_classification import TextClassification, TextEncoder
from planted import Bug, require_caught
from planted import planted as planted_bug

BUGS: list[Bug] = []
SIZES = {"context_length": 48, "width": 32, "heads": 2}


def planted(hint, outcome="failed"):
    return planted_bug(
        BUGS, "padding_independence", hint, material="topics", outcome=outcome, options=SIZES
    )


class Classification(TextClassification):
    encoder = TextEncoder

    def build_model(self):
        prior = torch.tensor(self.fitted.class_shares).log()
        return self.encoder(self.options, prior)


@planted("exclude it from means")
class PaddingInTheMean(Classification):
    """padding enters the mean"""

    class encoder(TextEncoder):
        def pool(self, hidden, is_text):
            return hidden.mean(dim=1)


@planted("padding affects outputs", outcome="warned")
class NoMask(Classification):
    """attention looks at padding"""

    class encoder(TextEncoder):
        def forward(self, tokens, length):
            is_text = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
            hidden = self.embedding(tokens)
            for block in self.blocks:
                hidden = block(hidden)
            return self.head(self.pool(self.norm(hidden), is_text[:, :, None]))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_padding_that_moves_an_answer_is_found(bug, workshop):
    require_caught(bug, workshop)
