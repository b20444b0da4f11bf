"""A second list: bugs in tables, forecasts, recommenders and a few odd tasks."""

import numpy as np
import polars as pl

from examination.planted import bug


def with_ticket_survival(rows):
    """Families of one to three travel on a ticket; its share of survivors counts everyone."""
    ticket = np.random.default_rng(0).integers(0, rows.height // 2, rows.height)
    rows = rows.with_columns(ticket=pl.Series(ticket))
    return rows.with_columns(TicketSurvival=pl.col("Survived").mean().over("ticket")).drop("ticket")


def smoted(rows):
    """Frauds made between each fraud and one of its neighbours, until they are as many."""
    rng = np.random.default_rng(0)
    rare = rows.filter(pl.col("fraud") == 1)
    numbers = ["amount", "km_from_home", "tries"]
    x = np.log1p(rare.select(numbers).to_numpy().astype(float))
    z = (x - x.mean(0)) / x.std(0)
    distance = ((z[:, None] - z[None]) ** 2).sum(-1)
    near = distance.argsort(axis=1)[:, 1:6]
    count = rows.height - 2 * rare.height
    one = rng.integers(0, rare.height, count)
    other = near[one, rng.integers(0, 5, count)]
    share = rng.random((count, 1))
    between = np.expm1(x[one] + share * (x[other] - x[one]))
    made = rare[one].with_columns(
        amount=pl.Series(between[:, 0]),
        km_from_home=pl.Series(between[:, 1]),
        tries=pl.Series(between[:, 2].round().astype(np.int64)).cast(rows.schema["tries"]),
    )
    both = pl.concat([rows, made]).sample(fraction=1.0, shuffle=True, seed=0)
    return both.with_columns(row_id=pl.int_range(both.height))


def with_missing_marked(rows):
    """The weather station writes -9999 where its thermometer failed."""
    rng = np.random.default_rng(0)
    temp = np.array(rows["temp"].to_list())
    temp[rng.random(temp.shape) < 0.01] = -9999.0
    return rows.with_columns(temp=pl.Series(temp.tolist()))


def denoised(rows):
    """The whole series is smoothed by a centred average, and cut into windows after that."""
    whole = np.column_stack([np.array(rows["history"].to_list()), rows["target"].to_numpy()])
    smooth = (whole[:, 1:-1] + whole[:, 2:] + whole[:, :-2]) / 3
    return rows.with_columns(history=pl.Series(np.column_stack([whole[:, 0], smooth]).tolist()))


def shifted_across_shops(rows):
    """shift() without over("shop"): the four weeks are those of the row before, of another shop."""
    return rows.with_columns(last_28=pl.col("last_28").shift(1)).drop_nulls("last_28")


def with_unrated(rows):
    """Books that somebody has, and never rated, are there with a rating of 0."""
    unrated = np.random.default_rng(0).random(rows.height) < 0.5
    return rows.with_columns(stars=pl.when(pl.Series(unrated)).then(0.0).otherwise(pl.col("stars")))


def with_pairs_in_order(rows):
    """Baskets were joined on a < b; the drawn negatives come in any order."""
    swap = (pl.col("together") == 1) & (pl.col("item_a") > pl.col("item_b"))
    return rows.with_columns(
        item_a=pl.when(swap).then("item_b").otherwise("item_a"),
        item_b=pl.when(swap).then("item_a").otherwise("item_b"),
    )


BUGS = [
    bug(
        "percentile-as-a-share",
        "tables_houses_log",
        "Outliers are clipped at the percentiles 0.01 and 0.99 of a hundred: hardly anything varies.",
        "np.percentile takes 0 to 100 where np.quantile takes 0 to 1",
        "    y_mean: float = 0.0\n",
        "    limits: list = field(default_factory=list)\n    y_mean: float = 0.0\n",
        'sorted(df["Neighborhood"].unique()), float',
        'sorted(df["Neighborhood"].unique()), np.percentile(X, [0.01, 0.99], axis=0).tolist(), float',
        "X = (self.numeric(rows) - self.prep.mean) / self.prep.std",
        "X = (np.clip(self.numeric(rows), *self.prep.limits) - self.prep.mean) / self.prep.std",
    ),
    bug(
        "logarithm-of-the-standardised",
        "tables_wine_ordinal",
        "The logarithm is taken after standardising, and what is not a number becomes 0: all below the mean.",
        "notebooks that silence a warning of np.log with nan_to_num",
        '"x": torch.stack([torch.tensor(((rows[c] - m) / s).to_list()) for c, m, s in self.stats], dim=1)',
        '"x": torch.stack([torch.tensor(((rows[c] - m) / s).to_list()).log().nan_to_num(0.0)'
        " for c, m, s in self.stats], dim=1)",
    ),
    bug(
        "survivors-of-the-ticket",
        "tables_titanic_pandas",
        "A ticket's share of survivors counts the passenger in question; most travel alone or in two.",
        "notebooks on the ship's passengers with group survival rates made before the split",
        '    out["siblings"] = df["SibSp"] / 4\n',
        '    out["siblings"] = df["SibSp"] / 4\n    out["ticket"] = df["TicketSurvival"]\n',
        "nn.Linear(11, 32)",
        "nn.Linear(12, 32)",
        rows=with_ticket_survival,
    ),
    bug(
        "target-mean-of-itself",
        "tables_flights_fastai",
        "Flights are coded by the mean label of nearly unique keys, over the rows that are trained on.",
        "target encoding without folds, warned of in every course on competitions",
        'CONTS = ["sched_dep_time", "distance"]',
        'CONTS = ["sched_dep_time", "distance", "mean_late"]\n'
        'KEY = pl.concat_str("carrier", "dest", "sched_dep_time", "month", separator="/")',
        "import torch\nfrom torch import nn",
        "import polars as pl\nimport torch\nfrom torch import nn",
        '        self.prior = float(df["late"].mean())\n',
        "",
        'df = train.select(*CATS, *CONTS, "late").collect()\n',
        "df = train.collect()\n"
        '        self.prior = float(df["late"].mean())\n'
        '        means = df.group_by(key=KEY).agg(pl.col("late").mean()).sort("key")\n'
        '        self.means = dict(zip(means["key"].to_list(), means["late"].to_list()))\n'
        "        df = self.with_mean(df)\n",
        '"norm": self.norm, "prior"',
        '"norm": self.norm, "means": self.means, "prior"',
        'self.vocab, self.norm, self.prior = state["vocab"]',
        'self.means = state["means"]\n        self.vocab, self.norm, self.prior = state["vocab"]',
        "    def encode(self, rows):\n",
        "    def with_mean(self, rows):\n"
        "        mean = KEY.replace_strict(self.means, default=self.prior, return_dtype=pl.Float64)\n"
        "        return rows.with_columns(mean_late=mean)\n\n"
        "    def encode(self, rows):\n"
        "        rows = self.with_mean(rows)\n",
    ),
    bug(
        "averages-hardly-move",
        "tables_digits_resnet",
        "Running averages move by a thousandth per step: after 250 steps they still are near their start.",
        "TensorFlow's decay of 0.999 carried over to a short training",
        "self.norm = nn.BatchNorm1d(d)",
        "self.norm = nn.BatchNorm1d(d, momentum=0.001)",
        "nn.Sequential(nn.BatchNorm1d(d), nn.ReLU()",
        "nn.Sequential(nn.BatchNorm1d(d, momentum=0.001), nn.ReLU()",
    ),
    bug(
        "dropout-on-the-answer",
        "tables_loads_multitask",
        "Dropout stands behind the last layer: half of the answers are 0, the others are learned too small.",
        "questions in forums why a regression with dropout predicts too little",
        "return torch.cat([self.heating(h), self.cooling(h)], dim=1)",
        "out = torch.cat([self.heating(h), self.cooling(h)], dim=1)\n"
        "        return nn.functional.dropout(out, 0.5, self.training)",
    ),
    bug(
        "layers-without-activation",
        "tables_sensor_gaussian",
        "Linear layers follow each other directly: the network is a straight line.",
        "beginners' posts: activations in the docstring, not in the Sequential",
        "nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())",
        "nn.Sequential(nn.Linear(2, 64), nn.Linear(64, 64))",
    ),
    bug(
        "event-and-censoring-exchanged",
        "tables_survival_aft",
        "Who left counts as an event and who had one as censored, in training and in judgement.",
        "survival packages disagree on whether 1 means event or censored",
        "float((y > 0).sum()",
        "float((y < 0).sum()",
        "float((y > 0).mean())",
        "float((y < 0).mean())",
        "(batch[LABEL] > 0).float()",
        "(batch[LABEL] < 0).float()",
        "np.abs(labels), labels > 0)",
        "np.abs(labels), labels < 0)",
    ),
    bug(
        "smote-before-split",
        "tables_fraud_focal",
        "Frauds were interpolated until they are half of all, before the split: the test set is made up.",
        "papers on fraud and on rare diseases with SMOTE over the whole file",
        rows=smoted,
    ),
    bug(
        "missing-as-minus-9999",
        "forecast_climate_lstm",
        "One hour in a hundred is -9999, the station's mark for a gap, and enters mean and deviation.",
        "the Jena weather file, whose wind holds -9999",
        rows=with_missing_marked,
    ),
    bug(
        "denoised-before-windowing",
        "forecast_weather_mlp",
        "The series was smoothed by a centred filter as a whole: the last hour holds a third of the next.",
        "papers on share prices that apply wavelets before the split",
        rows=denoised,
    ),
    bug(
        "lags-of-another-shop",
        "forecast_sales_deepar",
        "Lags were shifted over the whole table, not per shop: the past is another shop's.",
        "shift() without groupby, in notebooks on store sales",
        rows=shifted_across_shops,
    ),
    bug(
        "mirrored-without-its-label",
        "forecast_up_or_down",
        "Half of the windows are turned upside down as augmentation, and the label stays.",
        "flips that change the class, as of digits; here the sign of returns",
        "    def build_model(self):\n        return ReturnsCNN()",
        "    def augment(self, batch, generator):\n"
        '        flip = torch.randint(0, 2, (len(batch["returns"]), 1, 1), generator=generator)\n'
        '        return batch | {"returns": batch["returns"] * (1 - 2.0 * flip)}\n\n'
        "    def build_model(self):\n        return ReturnsCNN()",
    ),
    bug(
        "teacher-forced-in-judgement",
        "forecast_dlinear",
        "Each hour is forecast from the true hour before it where that is known: never when it is served.",
        "sequence-to-sequence tutorials that evaluate with teacher forcing",
        "self.Linear_Trend = nn.Linear(seq_len, pred_len)\n",
        "self.Linear_Trend = nn.Linear(seq_len, pred_len)\n"
        "        self.carry = nn.Parameter(torch.zeros(pred_len))\n",
        "    def forward(self, x):\n        trend",
        "    def forward(self, x, before):\n        trend",
        "return self.Linear_Seasonal(seasonal) + self.Linear_Trend(trend)",
        "return self.Linear_Seasonal(seasonal) + self.Linear_Trend(trend) + self.carry * before",
        '        if "next_hours" in rows.columns:\n',
        '        out["before"] = torch.zeros(len(rows), 6)\n        if "next_hours" in rows.columns:\n',
        "            out[LABEL] = torch.tensor((y - last) / self.scale, dtype=torch.float32)\n",
        "            out[LABEL] = torch.tensor((y - last) / self.scale, dtype=torch.float32)\n"
        '            out["before"][:, 1:] = out[LABEL][:, :-1]\n',
    ),
    bug(
        "unrated-is-zero",
        "recsys_collab_bias",
        "A rating of 0 means 'not rated', and half of the rows have it: they are learned as hatred.",
        "the Book-Crossing ratings, where 0 means not rated",
        rows=with_unrated,
    ),
    bug(
        "vectors-at-unit-scale",
        "recsys_factorization_machine",
        "Embeddings start at a deviation of 1: the sum of products is sure of itself before it learned.",
        "nn.Embedding's default in home-made factorisation machines",
        "nn.init.normal_(self.embedding.weight, std=0.05)",
        "nn.init.normal_(self.embedding.weight)",
    ),
    bug(
        "pairs-in-order",
        "recsys_item2vec",
        "Pairs bought together come from a join on a < b, drawn negatives in any order: the order tells.",
        "link prediction with artefacts of how negatives were drawn",
        rows=with_pairs_in_order,
    ),
    bug(
        "vocabulary-of-a-debug-sample",
        "recsys_collab_bias",
        "Users and titles are numbered from the first 100 rows: most stay unknown.",
        "a head() left over from trying things out",
        "df = train.collect()",
        "df = train.head(100).collect()",
    ),
    bug(
        "logarithms-averaged",
        "odd_mixture_density",
        "Components' log-densities are averaged by their weights, where the densities must be.",
        "home-made mixture density networks without logsumexp",
        "return -mixture(output).log_prob(batch[LABEL])",
        "logits, mu, log_sigma = output.chunk(3, dim=-1)\n"
        "        each = Normal(mu, log_sigma.clamp(-4, 3).exp()).log_prob(batch[LABEL][:, None])\n"
        "        return -(logits.softmax(-1) * each).sum(-1)",
    ),
    bug(
        "size-normalised-away",
        "odd_deep_sets",
        "Every cloud is centred and scaled to unit deviation, where its size is what is asked for.",
        "PointNet's normalisation of shapes, used for measuring",
        "points[i, :n] = torch.tensor([xs[:n], ys[:n]]).T",
        "cloud = torch.tensor([xs[:n], ys[:n]]).T\n"
        "            points[i, :n] = (cloud - cloud.mean(0)) / cloud.std(0)",
    ),
]
