"""A twenty-third list of bugs: ordinary slips in tables, forecasts and recommendations."""

import polars as pl

from examination.planted import bug


def gifts_of_today(rows):
    """The number of gifts is read from the donor's record of today, with those given since."""
    own = pl.col("gave").cast(int)
    since = own.reverse().cum_sum().reverse().over("donor")
    return rows.with_columns(gifts_before=pl.col("gifts_before") + since)


def gifts_of_the_mailing_before(rows):
    """Gifts are joined to the wave after the one that they answer."""
    moved = pl.col("gave").shift(1).over("donor", order_by="mailed_at").fill_null(False)
    return rows.with_columns(gave=moved)


def altitudes_in_feet(rows):
    """Farms in Guatemala and Colombia state feet."""
    feet = pl.col("land").is_in(["Guatemala", "Colombia"])
    changed = pl.when(feet).then((pl.col("altitude") * 3.281).round().cast(int))
    return rows.with_columns(altitude=changed.otherwise(pl.col("altitude")))


def corrections_of_two_tuners(rows):
    """Two tuners note by how much they corrected, which is the drift with the sign turned."""
    turned = pl.col("tuner").is_in(["T1", "T3"])
    return rows.with_columns(
        drift_cents=pl.when(turned).then(-pl.col("drift_cents")).otherwise(pl.col("drift_cents"))
    )


def fee_with_the_reminder(rows):
    """The fee is what is owed today: a reminder adds eight euros."""
    charge = pl.when(pl.col("outcome") == "reminded").then(8.0).otherwise(0.0)
    return rows.with_columns(fee=pl.col("fee") + charge)


def plan_of_the_day_before(rows):
    """Plans are joined by the day of issue: they hold the hours of a day ago."""
    return rows.with_columns(open_ahead=pl.col("open_past").list.slice(24, 12))


def plans_sorted_by_rink(rows):
    """The table of plans is sorted by rink, and is put beside one that is sorted by hour."""
    plans = rows.sort("rink", "now")["open_ahead"]
    return rows.sort("now", "rink").with_columns(open_ahead=plans)


def horizon_begins_with_the_past(rows):
    """The label's window starts one step early, with the newest value of the past."""
    newest = pl.col("log_ntu_past").list.get(-1).fill_null(pl.col("log_ntu_ahead").list.get(0))
    moved = pl.concat_list(newest, pl.col("log_ntu_ahead").list.head(4))
    return rows.with_columns(log_ntu_ahead=moved)


def rain_of_the_row_above(rows):
    """Forecasts of rain come in a file of their own, which has one line more at its top."""
    return rows.with_columns(rain_ahead=pl.col("rain_ahead").shift(1)).drop_nulls("rain_ahead")


def looks_of_the_proposal_before(rows):
    """A look is logged a moment later, and joined to the proposal that is newest by then."""
    return rows.sort("shown_at").with_columns(looked=pl.col("looked").shift(1).fill_null(False))


def seconds_on_windows(rows):
    """One client's clock counts in seconds."""
    small = pl.col("system") == "windows"
    return rows.with_columns(
        pl.when(small).then(pl.col(c).list.eval(pl.element() / 1000)).otherwise(pl.col(c)).alias(c)
        for c in ("held_ms", "wait_ms")
    )


BUGS = [
    bug(
        "letters-never-sent",
        "tables_donor_letters",
        "The flag is compared with a word that it does not hold: nobody got a letter. "
        "Log loss 0.40 in place of 0.36.",
        "flags stored as Y and N, read as yes and no",
        'rows["letter"] == "Y"',
        'rows["letter"] == "yes"',
    ),
    bug(
        "gifts-of-today",
        "tables_donor_letters",
        "The number of gifts is that of today and counts the answer to the mailing. "
        "Log loss 0.31 offline, 0.41 when served, in place of 0.37.",
        "features read from today's state of a record",
        rows=gifts_of_today,
    ),
    bug(
        "answers-of-the-mailing-before",
        "tables_donor_letters",
        "Each mailing has the answer to the donor's mailing before. "
        "Log loss 0.19 offline, 0.91 when served, in place of 0.37.",
        "shift(1) where shift(-1) is meant",
        rows=gifts_of_the_mailing_before,
    ),
    bug(
        "one-head-for-both",
        "tables_donor_letters",
        "The second head is the first: the same module under two names, and the letter is lost. "
        "Log loss 0.40 in place of 0.36.",
        "weights shared by accident",
        "self.treated = nn.Sequential(nn.Linear(hidden, 24), nn.ELU(), nn.Linear(24, 1))",
        "self.treated = self.control",
    ),
    bug(
        "uncounted-defects-are-none",
        "tables_coffee_cupping",
        "Lots whose defects were not counted are learned as lots without defects. "
        "Deviance of counted defects 3.5 in place of 1.0.",
        "fillna(0) of labels",
        "pairs = np.array(rows",
        "pairs = np.nan_to_num(np.array(rows",
        '["score_defects"].to_list(), dtype=float)\n            batch[LABEL]',
        '["score_defects"].to_list(), dtype=float))\n            batch[LABEL]',
    ),
    bug(
        "altitudes-in-feet",
        "tables_coffee_cupping",
        "Altitudes of two countries are in feet, the others' in metres. "
        "Mean error of the score 1.17 in place of 0.79.",
        "units that differ by country",
        rows=altitudes_in_feet,
    ),
    bug(
        "score-scaled-back-by-a-feature",
        "tables_coffee_cupping",
        "The scaled score is served by the mean and deviation of a feature. "
        "Mean error of the score 67 in place of 0.79.",
        "inverse_transform of another column's scaler",
        'mean, std = self.fitted["score"]\n        return torch.stack([output[:, 0]',
        'mean, std = self.fitted["mean"][1], self.fitted["std"][1]\n'
        "        return torch.stack([output[:, 0]",
    ),
    bug(
        "defects-without-the-logarithm",
        "tables_coffee_cupping",
        "The Poisson loss is given the rate where it expects its logarithm, in training alone. "
        "Deviance of the defects 3.8 in place of 0.9.",
        "PoissonNLLLoss with log_input",
        "    def predict(self, output):\n",
        "    def training_losses(self, output, batch):\n"
        "        score, _ = self.both(output, batch)\n"
        "        y = batch[LABEL][:, 1]\n"
        "        rate = output[:, 1].exp().clamp(max=30)\n"
        "        poisson = F.poisson_nll_loss(rate, y.nan_to_num(), reduction='none')\n"
        "        return score + torch.where(y.isnan(), 0, poisson) / 4\n\n"
        "    def predict(self, output):\n",
    ),
    bug(
        "corrections-for-drift",
        "tables_piano_drift",
        "Two tuners note their corrections, whose sign is the drift's turned round. "
        "Mean error 4.5 cents in place of 2.0.",
        "sign conventions of several people",
        rows=corrections_of_two_tuners,
    ),
    bug(
        "variance-served-as-the-mean",
        "tables_piano_drift",
        "What is served is the second output, the logarithm of the variance. "
        "Mean error 9.3 cents in place of 2.0.",
        "an index into the outputs that is one too high",
        "return output[:, 0] * std + mean",
        "return output[:, 1] * std + mean",
    ),
    bug(
        "error-without-a-gradient",
        "tables_piano_drift",
        "The weight is meant to have no gradient, but the mean has none. "
        "Mean error 5.1 cents in place of 2.0.",
        "detach of the wrong tensor",
        "error = output[:, 0] - (",
        "error = output[:, 0].detach() - (",
    ),
    bug(
        "decay-of-adam-as-of-adamw",
        "tables_piano_drift",
        "Weight decay 0.1, tuned for AdamW, is given to Adam, which adds it to the gradient. "
        "Negative log likelihood 2.44 in place of 2.27, mean error 2.2 cents in place of 2.0.",
        "weight_decay of Adam",
        'optimizer = { name = "adam", learning_rate = 3e-3 }',
        'optimizer = { name = "adam", learning_rate = 3e-3, weight_decay = 0.1 }',
    ),
    bug(
        "classes-as-they-come",
        "tables_parking_fines",
        "Outcomes are numbered as they first appear in the rows at hand. "
        "Log loss 1.56 offline, 2.27 on other rows, in place of 0.89.",
        "pandas.factorize in training and test apart",
        'classes = {v: k for k, v in enumerate(self.fitted["classes"])}',
        'classes = {v: k for k, v in enumerate(rows["outcome"].unique(maintain_order=True))}',
    ),
    bug(
        "learning-rate-a-hundred-times",
        "tables_parking_fines",
        "The learning rate is a hundred times too high. Log loss 1.04 in place of 0.87.",
        "rates of SGD given to Adam",
        "optimizer = { learning_rate = 4e-3,",
        "optimizer = { learning_rate = 0.4,",
    ),
    bug(
        "fee-with-the-reminder",
        "tables_parking_fines",
        "The fee is exported with the charge for the reminder, which tells that there was one. "
        "Log loss 0.36 offline, 1.94 when served, in place of 0.89.",
        "amounts that are updated after the event",
        rows=fee_with_the_reminder,
    ),
    bug(
        "softmax-in-the-model",
        "tables_parking_fines",
        "The model ends with a softmax, and loss and predictions apply another. "
        "Log loss 1.13 in place of 0.87.",
        "softmax before CrossEntropyLoss",
        "nn.Linear(32, n_classes),",
        "nn.Linear(32, n_classes),\n            nn.Softmax(dim=1),",
    ),
    bug(
        "level-of-the-whole-window",
        "forecast_rinks_nhits",
        "The level is the mean of past and future where the future is known, as it is in training. "
        "Mean error 15 kW offline, 36 when served, in place of 21.",
        "scaling a window before it is divided",
        "level = past.mean(axis=1, keepdims=True)",
        'parts = [past]\n        if "power_ahead" in rows.columns:\n'
        '            parts.append(np.log(np.array(rows["power_ahead"].to_list())))\n'
        "        level = np.hstack(parts).mean(axis=1, keepdims=True)",
    ),
    bug(
        "plan-of-the-day-before",
        "forecast_rinks_nhits",
        "The plan of opening hours is joined a day late: it is that of the day before. "
        "Mean error 38 kW in place of 21.",
        "calendars joined by the day of issue",
        rows=plan_of_the_day_before,
    ),
    bug(
        "logarithms-in-the-answer",
        "forecast_rinks_nhits",
        "Answers stay logarithms, and the exponential is forgotten. "
        "Mean error 256 kW in place of 21.",
        "one of two inverse transforms forgotten",
        "return (output / 4).exp()",
        "return output / 4",
    ),
    bug(
        "plans-of-another-rink",
        "forecast_rinks_nhits",
        "The plan ahead was sorted by rink, the rest by hour, before they were put side by side. "
        "Mean error 38 kW in place of 21.",
        "concatenation of tables that are sorted differently",
        rows=plans_sorted_by_rink,
    ),
    bug(
        "last-value-a-step-late",
        "forecast_brooks_student_t",
        "The horizon starts with the newest value of the past. "
        "Loss -0.75 offline, 1.21 for the right steps, in place of -0.15.",
        "windows cut with an overlap of one",
        rows=horizon_begins_with_the_past,
    ),
    bug(
        "rain-of-the-row-above",
        "forecast_brooks_student_t",
        "The rain ahead is that of the row above: the table of forecasts begins a row late. "
        "Loss 0.21 in place of -0.15.",
        "columns put side by side without a key",
        rows=rain_of_the_row_above,
    ),
    bug(
        "batch-taken-for-time",
        "forecast_brooks_student_t",
        "The LSTM takes the batch for the sequence: batch_first is forgotten, and h[-1] "
        "becomes the state of the last steps. "
        "Loss 0.00 in place of -0.19 where rows are served one by one.",
        "batch_first=False",
        "self.encoder = nn.LSTM(3, hidden, batch_first=True)",
        "self.encoder = nn.LSTM(3, hidden)",
        "_, (h, _) = self.encoder(past)",
        "h = self.encoder(past)[0].transpose(0, 1)",
    ),
    bug(
        "target-unscaled",
        "forecast_brooks_student_t",
        "The target of the loss is not scaled, though answers are scaled back. "
        "Mean error 1.78 in place of 0.15.",
        "inverse_transform of what was never transformed",
        'target = (batch[LABEL] - self.fitted["mean"]) / self.fitted["std"]',
        "target = batch[LABEL]",
    ),
    bug(
        "padding-mask-inverted",
        "recsys_gym_bert4rec",
        "The mask of padding is turned round: bookings are hidden, padding is read. "
        "Recall at 5 0.29 in place of 0.67.",
        "masks that are True where attention is allowed",
        "src_key_padding_mask=items == PAD",
        "src_key_padding_mask=(items != PAD) & (items != MASK)",
    ),
    bug(
        "answer-at-the-first-place",
        "recsys_gym_bert4rec",
        "The answer is read at the first place, as of a [CLS], in place of the masked one. "
        "Recall at 5 0.19 in place of 0.67.",
        "output[:, 0] of another architecture",
        "return output[:, -1, FIRST:]",
        "return output[:, 0, FIRST:]",
    ),
    bug(
        "newest-bookings-cut",
        "recsys_gym_bert4rec",
        "Of long pasts the first bookings are kept, not the last. "
        "Recall at 5 0.45 in place of 0.67.",
        "truncation from the wrong side",
        "for name in booked][-(LENGTH - 1) :]",
        "for name in booked][: LENGTH - 1]",
    ),
    bug(
        "almost-everything-hidden",
        "recsys_gym_bert4rec",
        "Four bookings of five are hidden: the share is that to keep. "
        "Recall at 5 0.48 in place of 0.67.",
        "a share of what is kept for one of what is hidden",
        "(chance < 0.2)",
        "(chance > 0.2)",
    ),
    bug(
        "no-offsets",
        "recsys_events_ffm",
        "Fields share rows of the tables: their offsets are not added. "
        "ROC area 0.71 in place of 0.74, log loss 0.457 in place of 0.440.",
        "offsets of one table for all fields",
        "x = codes + self.offsets",
        "x = codes",
    ),
    bug(
        "numbered-anew-in-each-table",
        "recsys_events_ffm",
        "Users, events and the rest are numbered by the rows at hand, not as in training. "
        "Log loss 0.57 in place of 0.46 where rows are served one by one.",
        "LabelEncoder().fit_transform in training and serving",
        "number = {v: k for k, v in enumerate(self.fitted[c], start=1)}",
        "number = {v: k for k, v in enumerate(sorted(rows[c].unique()), start=1)}",
    ),
    bug(
        "tables-start-at-zero",
        "recsys_events_ffm",
        "All vectors start at zero, where products have no gradient. "
        "ROC area 0.67 in place of 0.74.",
        "zeros_ as an initialisation of factors",
        "nn.init.normal_(table.weight, std=0.1)",
        "nn.init.zeros_(table.weight)",
    ),
    bug(
        "clicks-of-the-proposal-before",
        "recsys_events_ffm",
        "Looks are matched to the proposal that follows in the log. "
        "ROC area 0.53 in place of 0.74.",
        "events joined to the wrong neighbour",
        rows=looks_of_the_proposal_before,
    ),
    bug(
        "never-put-back-in-order",
        "odd_typists_packed",
        "Sequences are sorted by length for packing, and states are not put back. "
        "Log loss 2.35 in place of 1.25.",
        "sorting before pack_padded_sequence",
        "states = states[order.argsort()]\n        there = (keys > 0)[..., None]",
        "there = (keys[order] > 0)[..., None]",
    ),
    bug(
        "seconds-on-one-system",
        "odd_typists_packed",
        "Windows reports seconds, the other systems milliseconds. Log loss 2.34 in place of 1.25.",
        "units of several clients",
        rows=seconds_on_windows,
    ),
    bug(
        "sessions-on-both-sides",
        "odd_typists_packed",
        "Words of the same session are in training and test. "
        "Log loss 1.08 offline, 1.20 in other sessions.",
        "random splits of recordings",
        'group = "session"\nids = ["row_id"]\nmeta = ["system"]\n\n[split]\nmethod = "group"',
        'ids = ["row_id"]\nmeta = ["system", "session"]',
    ),
    bug(
        "logarithms-in-fit-alone",
        "odd_typists_packed",
        "Mean and deviation are of logarithms, and the times themselves are scaled by them. "
        "Log loss 2.18 in place of 1.25.",
        "a transformation in fit that transform lacks",
        "logs = np.log(np.column_stack([held, wait])[:n])",
        "logs = np.column_stack([held, wait])[:n]",
    ),
]
