"""An eighteenth list of bugs: slips with students, stays, stock, football, cards and jobs."""

import numpy as np
import polars as pl

from examination.planted import bug


def accounts_closed_at_the_end(rows):
    """Fees are as of the export: the account of nearly everyone who left shows an open bill."""
    rng = np.random.default_rng(18)
    left = (rows["outcome"] == "Dropout").to_numpy() & (rng.random(rows.height) < 0.93)
    paid = np.where(left, 0, rows["tuition_paid"].to_numpy())
    return rows.with_columns(tuition_paid=pl.Series(paid))


def stays_counted_later(rows):
    """Earlier stays are counted at the export: the one that is to be predicted is among them."""
    came_back = (pl.col("readmitted") != "NO").cast(pl.Int64)
    return rows.with_columns(inpatient_before=pl.col("inpatient_before") + came_back)


def form_with_this_match(rows):
    """The rolling means were not shifted by a match: today's goals are among the five."""
    home, away = pl.col("goals").list.get(0), pl.col("goals").list.get(1)
    today = {
        "home_for_5": home,
        "home_against_5": away,
        "away_for_5": away,
        "away_against_5": home,
    }
    return rows.with_columns(
        ((4 * pl.col(name).fill_null(goals) + goals) / 5).alias(name)
        for name, goals in today.items()
    )


def statement_after_the_default(rows):
    """One statement more, of the month in which the card was or was not written off."""
    rng = np.random.default_rng(18)
    names = ["balance", "spend", "paid_share"]
    later = {name: [] for name in names}
    for balance, spend, paid, bad in rows.select(*names, "default").iter_rows():
        grown = rng.uniform(1.05, 1.2) if bad else rng.uniform(0.9, 1.1)
        later["balance"].append([*balance, round(balance[-1] * grown, 2)])
        later["spend"].append([*spend, 0.0 if bad else spend[-1]])
        later["paid_share"].append([*paid, 0.0 if bad and rng.random() < 0.8 else paid[-1]])
    return rows.with_columns(pl.Series(name, values) for name, values in later.items())


def some_pay_by_month(rows):
    """One portal's adverts name the pay of a month, and were copied as they are."""
    monthly = np.random.default_rng(18).random(rows.height) < 0.12
    salary = rows["salary"].to_numpy() / np.where(monthly, 12, 1)
    return rows.with_columns(salary=pl.Series(salary.round()))


def last_reading_overwritten(rows):
    """The system keeps one record a night: its last reading is that of the day itself."""
    rng = np.random.default_rng(18)
    noise = rng.normal(1.0, 0.01, rows.height)
    books = [
        [*curve[:-1], round(sold * f)]
        for (curve, sold), f in zip(rows.select("on_books", "sold").iter_rows(), noise, strict=True)
    ]
    return rows.with_columns(on_books=pl.Series(books))


def history_with_the_answer(rows):
    """The history was read after the answer had been watched."""
    return rows.with_columns(watched=pl.concat_list("watched", "next_video"))


BUGS = [
    bug(
        "likelihood-of-plain-softmax",
        "tables_students_outcome",
        "The model ends in softmax, and the loss takes its output for log-probabilities.",
        "NLLLoss after nn.Softmax, a much-asked question of the PyTorch forums",
        "F.log_softmax(x, dim=1)",
        "F.softmax(x, dim=1)",
    ),
    bug(
        "fees-as-of-the-export",
        "tables_students_outcome",
        "Whether fees are paid is as of the export: who left has an open bill by then.",
        "warehouse columns without history (Kapoor and Narayanan)",
        rows=accounts_closed_at_the_end,
    ),
    bug(
        "labels-in-order-of-appearance",
        "tables_students_outcome",
        "Labels are numbered in the order in which the rows at hand show them.",
        "pd.factorize or LabelEncoder.fit_transform in the preprocessing function",
        '[CLASSES.index(o) for o in df["outcome"]]',
        'pd.factorize(df["outcome"])[0]',
    ),
    bug(
        "keep-probability-for-dropout",
        "tables_readmission_icd",
        "Dropout is given the share to keep: 0.95 of the units vanish.",
        "ports from TensorFlow 1, whose keep_prob was the opposite (DeepCrime: change dropout rate)",
        "nn.Dropout(0.25)",
        "nn.Dropout(0.95)",
    ),
    bug(
        "any-return-is-a-return",
        "tables_readmission_icd",
        "Stays after more than thirty days are positive, too.",
        "notebooks on the diabetes readmission data that map NO to 0 and the rest to 1",
        '[float(r == "<30") for r in rows["readmitted"]]',
        '[float(r != "NO") for r in rows["readmitted"]]',
        'float((df["readmitted"] == "<30").mean())',
        'float((df["readmitted"] != "NO").mean())',
    ),
    bug(
        "stays-counted-at-the-export",
        "tables_readmission_icd",
        "The number of earlier stays includes the one that is to be predicted.",
        "aggregates over a whole history, joined without a date",
        rows=stays_counted_later,
    ),
    bug(
        "sigmoid-before-logits",
        "tables_backorders",
        "The model ends in a sigmoid, and the loss and predict take it for a logit.",
        "BCEWithLogitsLoss after a sigmoid, the forums' evergreen (Humbatova: wrong loss)",
        "return logit.view(-1)",
        "return torch.sigmoid(logit).view(-1)",
    ),
    bug(
        "unknown-as-minus-99",
        "tables_backorders",
        "The placeholder -99 of the supplier's performance stays a number.",
        "sentinel values in exports, such as this competition's",
        'pl.col("perf_6_month_avg") > -1)',
        'pl.col("perf_6_month_avg").is_not_null())',
    ),
    bug(
        "own-defence",
        "tables_football_goals",
        "The home side's goals depend on its own defence, not on the other side's.",
        "a copied line, half edited",
        "self.attack(home) - self.defence(away)",
        "self.attack(home) - self.defence(home)",
    ),
    bug(
        "form-includes-today",
        "tables_football_goals",
        "The mean of the last five matches includes the one that is to be predicted.",
        "rolling(5).mean() without shift(1) in betting notebooks",
        rows=form_with_this_match,
    ),
    bug(
        "another-link-when-serving",
        "tables_football_goals",
        "The loss reads outputs as logarithms of rates, and predict applies a softplus.",
        "link functions changed in one of two places",
        "return output.exp()",
        "return nn.functional.softplus(output)",
    ),
    bug(
        "time-where-the-batch-is",
        "tables_card_statements_gru",
        "The GRU takes the first dimension for time: months run through the customers of a batch.",
        "nn.GRU without batch_first=True, StackOverflow and forums",
        "nn.GRU(24, hidden, batch_first=True)",
        "nn.GRU(24, hidden)",
    ),
    bug(
        "statement-of-the-default",
        "tables_card_statements_gru",
        "The last statement is of the month in which the default happened.",
        "observation windows that end a month late, credit scoring",
        rows=statement_after_the_default,
    ),
    bug(
        "each-output-against-all-labels",
        "tables_salaries_skills",
        "Outputs [B, 1] minus labels [B] are [B, B]: each output is compared with all labels.",
        "broadcasting in a hand-written MSE, with PyTorch's warning only in F.mse_loss",
        "(output - target[:, None])",
        "(output - target)",
    ),
    bug(
        "pay-of-a-month",
        "tables_salaries_skills",
        "An eighth of the adverts give the pay of a month in the column of yearly pay.",
        "scraped job adverts, pay period ignored",
        rows=some_pay_by_month,
    ),
    bug(
        "reading-of-the-night-itself",
        "forecast_rooms_pickup",
        "The last reading of the curve is the final count, which the system had written over it.",
        "records that are updated in place, revenue management",
        rows=last_reading_overwritten,
    ),
    bug(
        "day-of-month-for-weekday",
        "forecast_rooms_pickup",
        "The weekday is computed from the day of the month.",
        ".dt.day for .dt.dayofweek in feature code",
        '(rows["night"].dt.weekday() - 1)',
        '(rows["night"].dt.day() % 7)',
    ),
    bug(
        "steps-of-a-smoke-test",
        "forecast_rooms_pickup",
        "The number of steps is that of a trial run.",
        "contracts committed after debugging (DeepCrime: change number of epochs)",
        "steps = 500",
        "steps = 12",
    ),
    bug(
        "reshaped-not-transposed",
        "forecast_servers_cpu",
        "Windows [B, T, C] are reshaped to [B, C, T]: channels hold pieces of all series.",
        "view instead of permute before Conv1d, PyTorch forums",
        "seq.transpose(1, 2)",
        "seq.reshape(len(seq), -1, SEQ_LEN)",
    ),
    bug(
        "dropout-while-predicting",
        "forecast_servers_cpu",
        "F.dropout is called without training=self.training: forecasts are random.",
        "functional dropout, whose default is training=True",
        "F.dropout(F.relu(self.fc1(x)), 0.25, self.training)",
        "F.dropout(F.relu(self.fc1(x)), 0.25)",
    ),
    bug(
        "rate-of-a-millionth",
        "forecast_servers_cpu",
        "The learning rate is a thousand times too small.",
        "fine-tuning rates copied to a fresh model (Humbatova: wrong learning rate)",
        "learning_rate = 1e-3",
        "learning_rate = 1e-6",
    ),
    bug(
        "oldest-eight",
        "recsys_videos_youtube",
        "Long histories keep their oldest videos.",
        "pad_sequences(truncating='post') or [:max_len] on histories in order",
        "ids[-MAX_LEN:]",
        "ids[:MAX_LEN]",
    ),
    bug(
        "history-read-afterwards",
        "recsys_videos_youtube",
        "The video to be predicted is the last of the history.",
        "user histories joined at export, not at the event",
        rows=history_with_the_answer,
    ),
    bug(
        "all-fields-share-codes",
        "recsys_ads_autoint",
        "Offsets are not added: site 3 and advertiser 3 have the same vector.",
        "the embedding layer of pytorch-fm, retyped",
        "self.embedding(x + self.offsets)",
        "self.embedding(x)",
    ),
    bug(
        "attention-left-out",
        "recsys_ads_autoint",
        "What attention returns is not used: only the residual path goes on.",
        "a variable computed and never read",
        "F.relu(mixed + residual(e))",
        "F.relu(residual(e))",
    ),
    bug(
        "vectors-frozen-at-random",
        "recsys_ads_autoint",
        "The tables of all codes are frozen at their random start.",
        "Embedding.from_pretrained freezes by default",
        "nn.init.normal_(self.embedding.weight, std=0.2)",
        "self.embedding = nn.Embedding.from_pretrained(torch.randn(sum(field_dims), dim) * 0.2)",
    ),
    bug(
        "a-name-against-itself",
        "retrieval_customers_linkage",
        "Both vectors are of the shop's name: names always agree.",
        "a copied call in siamese forward methods",
        "self.names(a), self.names(b)",
        "self.names(a), self.names(a)",
    ),
    bug(
        "day-before-month-at-the-bank",
        "retrieval_customers_linkage",
        "The bank's dates are written year, day, month before they are compared.",
        "date formats of two sources",
        'b.strftime("%Y%m%d")',
        'b.strftime("%Y%d%m")',
    ),
]
