"""An eighth list of bugs, in tables, forecasts, recommendations and odd ones: slips of code that everybody makes."""

import polars as pl

from examination.planted import bug


def day_ends_with_its_own_slot(rows):
    """The window is moved on by one: its last reading is the one that is sought."""
    later = pl.concat_list(pl.col("last_day").list.tail(47), pl.col("calls"))
    return rows.with_columns(last_day=later)


def exported_after_the_answers(rows):
    """The export was made after the answers were booked: who answered gave within the month."""
    return rows.with_columns(
        months_since=pl.when("answered").then(0.0).otherwise(pl.col("months_since"))
    )


BUGS = [
    bug(
        # every answer is 1
        "softmax-of-one",
        "tables_boards_orthogonal",
        "A softmax over the single output: it is 1 for every board.",
        "softmax kept when a two-class head became one logit",
        "return self.out(torch.relu(self.hidden(h)))",
        "return self.out(torch.relu(self.hidden(h))).softmax(dim=1)",
    ),
    bug(
        "rate-of-one",
        "tables_boards_orthogonal",
        "A learning rate of 1 with Adam: a hundred times what it should be.",
        "the rate of a linear model's solver",
        "learning_rate = 1e-2",
        "learning_rate = 1.0",
    ),
    bug(
        "squares-of-logits",
        "tables_letters_calibrated",
        "The squared error pulls the logit itself to 0 and 1, and a sigmoid follows when predicting.",
        "MSE from an earlier regression",
        'F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")',
        'F.mse_loss(output, batch[LABEL], reduction="none")',
    ),
    bug(
        "jitter-in-encode",
        "tables_letters_calibrated",
        "The noise that should augment training is drawn in `encode`: also when judging and serving.",
        "augmentation in the shared preprocessing",
        'x = (self.raw(rows) - np.array(self.fitted["mu"])) / np.array(self.fitted["sd"])',
        'x = (self.raw(rows) - np.array(self.fitted["mu"])) / np.array(self.fitted["sd"])\n'
        "        x = x + np.random.normal(scale=0.5, size=x.shape)",
    ),
    bug(
        "exported-after-the-answers",
        "tables_letters_calibrated",
        "The months since the last gift were exported after the answers: 0 for all who answered.",
        "a column that is updated by the outcome",
        rows=exported_after_the_answers,
    ),
    bug(
        "centred-by-the-batch",
        "tables_gut_clr",
        "The log-ratio subtracts the mean over the samples of the batch, not over a sample's taxa.",
        "axis=0 for axis=1",
        "log.mean(axis=1, keepdims=True)",
        "log.mean(axis=0, keepdims=True)",
    ),
    bug(
        "sign-of-the-exponent",
        "tables_claims_gamma",
        "The gamma likelihood multiplies by the mean that should divide: it falls without end.",
        "a likelihood typed from a paper with the other parameter",
        "torch.exp(-log_mu)",
        "torch.exp(log_mu)",
    ),
    bug(
        "zeros-for-minus-ones",
        "tables_wafers_hinge",
        "The hinge gets labels of 0 and 1: a sound chip costs 1 whatever the output.",
        "hinge losses and 0/1 labels",
        "sign = 2 * batch[LABEL] - 1",
        "sign = batch[LABEL]",
    ),
    bug(
        "spread-not-divided",
        "tables_wafers_hinge",
        "Probes are centred and not scaled: some are cut at 6, others stay near 1e-4.",
        "half of a robust scaler",
        ' - self.fitted["median"]) / self.fitted["iqr"]',
        ' - self.fitted["median"])',
    ),
    bug(
        "softmax-before-cross-entropy",
        "tables_oils_prototypes",
        "The loss takes a softmax of the softmax.",
        "probabilities handed to cross_entropy",
        "cross_entropy(output, batch[LABEL]",
        "cross_entropy(output.softmax(dim=1), batch[LABEL]",
    ),
    bug(
        # the network is dead: only the offsets learn
        "weights-of-zero",
        "tables_concrete_tabm",
        "Hidden weights start at zero in front of ReLU: no gradient ever reaches them.",
        "zeros as a placeholder whose initialisation was lost",
        "torch.empty(d_in, d_out)",
        "torch.zeros(d_in, d_out)",
        '        nn.init.kaiming_normal_(self.weight, mode="fan_out")\n',
        "",
    ),
    bug(
        "one-net-for-all-columns",
        "tables_stays_additive",
        "All numbers share one net: `dict.fromkeys` repeats the same object.",
        "[layer] * n and dict.fromkeys",
        "{c: nn.Sequential(ExU(32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)) for c in CENTRES}",
        "dict.fromkeys(CENTRES, nn.Sequential(ExU(32), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)))",
    ),
    bug(
        "normalised-to-nothing",
        "tables_stays_additive",
        "A LayerNorm over a single number gives 0 for every patient.",
        "LayerNorm copied in front of a net of one input",
        "nn.Sequential(ExU(32),",
        "nn.Sequential(nn.LayerNorm(1), ExU(32),",
    ),
    bug(
        "wards-with-capitals",
        "tables_stays_additive",
        "The list of wards has capitals, the data has none: every ward is unknown.",
        "a vocabulary from the documentation, not from the data",
        '["cardiology", "medicine", "neurology", "surgery"]',
        '["Cardiology", "Medicine", "Neurology", "Surgery"]',
    ),
    bug(
        "mean-for-every-patient",
        "tables_stays_additive",
        "The loss is already a mean over the batch, and is repeated for every row.",
        "reduction left at its default",
        'smooth_l1_loss(output, batch[LABEL], reduction="none", beta=2.0)',
        "smooth_l1_loss(output, batch[LABEL], beta=2.0).expand(len(output))",
    ),
    bug(
        "sign-without-a-gradient",
        "tables_phishing_binarized",
        "torch.sign has no gradient: the binary weights stay as they were drawn.",
        "a quantiser without its straight-through part",
        "SignSTE.apply(self.weight)",
        "torch.sign(self.weight)",
    ),
    bug(
        "neighbours-decide",
        "tables_phishing_binarized",
        "Batch norm keeps no running statistics: a prediction depends on what else is asked.",
        "track_running_stats=False",
        "nn.BatchNorm1d(64)",
        "nn.BatchNorm1d(64, track_running_stats=False)",
        "nn.BatchNorm1d(32)",
        "nn.BatchNorm1d(32, track_running_stats=False)",
    ),
    bug(
        "nobody-phishes",
        "tables_phishing_binarized",
        "The label is compared with a word that no row has: all are 0.",
        "== 'Phishing' on lower-case data",
        'rows[self.columns.label] == "phishing"',
        'rows[self.columns.label] == "Phishing"',
    ),
    bug(
        "divergence-of-shares",
        "tables_soil_shares",
        "kl_div gets probabilities where it takes their logarithms.",
        "nn.KLDivLoss, whose first argument is in logs",
        "output.log_softmax(1), batch[LABEL]",
        "output.softmax(1), batch[LABEL]",
    ),
    bug(
        "past-changed-in-place",
        "forecast_tides_fits",
        "The mean is subtracted from the batch itself: at the second pass over a batch it is gone.",
        "in-place arithmetic on an input",
        "torch.fft.rfft((past - mean) / spread, dim=1)",
        "torch.fft.rfft(past.sub_(mean) / spread, dim=1)",
    ),
    bug(
        "day-ends-with-its-own-slot",
        "forecast_calls_negbin",
        "The window ends one slot late: its last reading is what is asked.",
        "off by one in a sliding window",
        rows=day_ends_with_its_own_slot,
    ),
    bug(
        "rate-drops-at-once",
        "forecast_calls_negbin",
        "Milestones are meant in epochs and given as shares: the rate is a ten-thousandth after 16 steps.",
        "milestones copied from a longer training",
        "optimizer = { learning_rate = 3e-3 }",
        "optimizer = { learning_rate = 3e-3 }\n"
        'schedule = { shape = "step", milestones = [0.02, 0.04], factor = 0.01 }',
    ),
    bug(
        "padded-behind",
        "recsys_places_caser",
        "Short trails are padded behind, and the last cell is read as the last place.",
        "the padding's side",
        "trails.append([0] * (LENGTH - len(known)) + known)",
        "trails.append(known + [0] * (LENGTH - len(known)))",
    ),
    bug(
        "dropout-that-never-ends",
        "recsys_places_caser",
        "The functional dropout is not told the mode: it goes on in evaluation and when serving.",
        "F.dropout without training=self.training",
        "self.fc(self.drop(z)).relu()",
        "self.fc(nn.functional.dropout(z, 0.5)).relu()",
    ),
    bug(
        "rates-taken-for-logs",
        "recsys_plays_poisson",
        "The Poisson loss takes the output for a logarithm; what is served is the output.",
        "log_input of poisson_nll_loss",
        "log_input=False",
        "log_input=True",
    ),
    bug(
        "best-action-for-the-taken",
        "odd_lift_returns",
        "The return is fitted to the highest value, not to that of the action that was taken.",
        "max for gather in a hand-written Q loss",
        "return output.gather(1, action[:, None])[:, 0]",
        "return output.max(dim=1).values",
    ),
    bug(
        "years-before-the-last-visit",
        "odd_transplant_deephit",
        "The mask of the censored is inverted: they count for the years in which they were seen alive.",
        "< for >= in a survival mask",
        "year[None] >= interval[:, None]",
        "year[None] < interval[:, None]",
    ),
    bug(
        "state-of-the-last-batch",
        "forecast_glucose_gru",
        "The recurrent state of one batch is where the next one starts.",
        "hidden states kept between batches of unrelated windows",
        "h, _ = self.gru(z)",
        'h0 = getattr(self, "h0", None)\n'
        "        h, state = self.gru(z, h0 if h0 is not None and h0.shape[1] == len(z) else None)\n"
        "        self.h0 = state.detach()",
    ),
    bug(
        "slope-not-rotated",
        "odd_springs_hamiltonian",
        "The energy's gradient is taken for the motion: the symplectic matrix is made and not applied.",
        "a buffer that forward forgets",
        "return vmap(slope)(z) @ self.J.T",
        "return vmap(slope)(z)",
    ),
]
