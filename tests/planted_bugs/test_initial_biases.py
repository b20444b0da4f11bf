"""Models that start at no prior: right where the loss that is minimised weighs the classes alike."""

import numpy as np
import pytest

import other_styles as styles
from mixed_numbers import subject_of
from perennial.check_skeleton.checks.loss.losses import check_initial_bias

X, SCORE = styles.numbers_table()
RARE = (np.quantile(SCORE, 0.95) < SCORE).astype(int)


class StartsAtEqualShares(styles.WeightedTraining):
    """Class weights in what is minimised: the classes are equally likely there."""

    def build_model(self):
        return styles.Classes.build_model(self)


class NoWeights(StartsAtEqualShares):
    """The same start, for a loss that counts each row once."""

    training_losses = styles.Classes.training_losses


class WeighsOtherwise(StartsAtEqualShares):
    """The frequent class is asked for more loudly still."""

    def training_losses(self, output, batch):
        weights = np.array(self.fitted["shares"]) * len(self.fitted["shares"])
        losses = styles.Classes.losses(self, output, batch)
        return losses * output.new_tensor(weights)[batch["label"]]


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [
        (styles.WeightedTraining, "passed"),
        (StartsAtEqualShares, "passed"),
        (NoWeights, "warned"),
        (WeighsOtherwise, "warned"),
    ],
)
def test_the_start_suits_one_of_the_losses(task_type, outcome, tmp_path):
    subject = subject_of(task_type, styles.table_of(X, RARE), tmp_path)
    result = check_initial_bias(subject)
    assert result.outcome == outcome, result.measured
