"""A nineteenth list of bugs: slips in the idioms of tutorials, courses and starter notebooks."""

import numpy as np
import polars as pl

from examination.planted import bug


def bills_of_the_transported_deleted(rows):
    """The accounts of passengers that had vanished were deleted before the export."""
    gone = rows["transported"].to_numpy() & (np.random.default_rng(19).random(rows.height) < 0.8)
    return rows.with_columns(
        pl.when(pl.Series(gone)).then(None).otherwise(pl.col(name)).alias(name)
        for name in ["spa", "deck"]
    )


def places_the_other_way_round(rows):
    """One of the vendors writes the place of the end as longitude, latitude."""
    swapped = pl.Series(np.random.default_rng(19).random(rows.height) < 0.15)
    lat, lon = pl.col("dropoff_lat"), pl.col("dropoff_lon")
    return rows.with_columns(
        dropoff_lat=pl.when(swapped).then(lon).otherwise(lat),
        dropoff_lon=pl.when(swapped).then(lat).otherwise(lon),
    )


def hours_until_the_export(rows):
    """Each month is exported at its end; what is on its way has the hours until then."""
    end = pl.col("ordered_at").dt.month_end().dt.truncate("1d") + pl.duration(days=1)
    so_far = (end - pl.col("ordered_at")).dt.total_minutes() / 60
    return rows.with_columns(hours=pl.min_horizontal("hours", so_far.round(1)))


def litres_per_second(rows):
    """Two districts' telemetry changed to litres per second; billing keeps m3 an hour."""
    changed = pl.col("district").is_in(["D2", "D5"]) & (pl.col("hour").dt.month() >= 7)
    litres = pl.col("flow").list.eval((pl.element() / 3.6).round(2))
    return rows.with_columns(flow=pl.when(changed).then(litres).otherwise(pl.col("flow")))


def negatives_among_the_played(rows):
    """Songs "not played" are drawn from all songs: some of them the listener does play."""
    rng = np.random.default_rng(19)
    played = rows.filter(pl.col("plays") > 0)
    drawn = played[np.flatnonzero(rng.random(played.height) < 0.35)]
    none = drawn.with_columns(plays=pl.lit(0, pl.Int64), row_id=pl.col("row_id") + 10_000)
    return pl.concat([rows, none.cast(dict(rows.schema))]).sample(
        fraction=1.0, shuffle=True, seed=19
    )


def sessions_as_sets(rows):
    """The query collects each session's recipes as a set."""
    return rows.with_columns(pl.col("opened").list.unique().list.sort())


def another_list_of_labels(rows):
    """The second batch came as numbers, in another order of labels than the first's."""
    first = ["sadness", "joy", "love", "anger", "fear", "surprise"]
    second = dict(zip(sorted(first), first, strict=True))
    named = pl.col("emotion").replace_strict(second)
    return rows.with_columns(
        emotion=pl.when(pl.col("batch") == "b").then(named).otherwise(pl.col("emotion"))
    )


def keywords_by_the_annotators(rows):
    """Keywords come from those who labelled: they noted one where a disaster was reported."""
    kept = np.random.default_rng(19).random(rows.height) < 0.15
    noted = (pl.col("target") == 1) | pl.Series(kept)
    return rows.with_columns(keyword=pl.when(noted).then(pl.col("keyword")))


def retweets_as_posts(rows):
    """Posts that were passed on are in the export once for each time, under new numbers."""
    rng = np.random.default_rng(19)
    again = []
    for row in rows.iter_rows(named=True):
        for k in range(int(rng.poisson(2.5)) if rng.random() < 0.6 else 0):
            text = f"{row['text'].split(' http')[0]} http://t.co/{int(rng.integers(1e8)):08x}"
            again.append(row | {"text": text, "row_id": 10_000 + 20 * row["row_id"] + k})
    return pl.concat([rows, pl.DataFrame(again, schema=rows.schema)])


def counted_in_both_directions(rows):
    """Two parks' new counters count who enters and who leaves, from June on."""
    new = pl.col("park").is_in(["Bach", "Garten", "Insel"]) & (pl.col("day") >= pl.date(2023, 6, 1))
    twice = pl.col("walkers") * 2
    return rows.with_columns(walkers=pl.when(new).then(twice).otherwise(pl.col("walkers")))


def degrees_fahrenheit(rows):
    """One station's history is in degrees Fahrenheit; what is to be predicted is not."""
    there = pl.col("station") == "S4"
    warm = pl.col("temperature").list.eval((pl.element() * 1.8 + 32).round(1))
    return rows.with_columns(
        temperature=pl.when(there).then(warm).otherwise(pl.col("temperature")),
    )


BUGS = [
    bug(
        "relu-on-the-logit",
        "tables_spaceship_transported",
        "A ReLU follows the last layer: no logit is negative, no probability below a half.",
        "blocks of Linear and ReLU repeated once too often, PyTorch forums",
        "nn.Linear(24, 1),",
        "nn.Linear(24, 1),\n            nn.ReLU(),",
    ),
    bug(
        "hard-answers-as-probabilities",
        "tables_spaceship_transported",
        "The answers are rounded to 0 and 1 for a submission, and are taken for probabilities.",
        "Kaggle notebooks that round before they score",
        "return torch.sigmoid(output)",
        "return torch.sigmoid(output).round()",
    ),
    bug(
        "scaled-by-the-rows-at-hand",
        "tables_spaceship_transported",
        "Inputs are standardised by the mean and spread of the rows that come together.",
        "StandardScaler.fit_transform in the preprocessing of train and test",
        '(X.to_numpy() - np.array(self.fitted["mean"])) / np.array(self.fitted["std"])',
        "(X.to_numpy() - X.to_numpy().mean(0)) / (X.to_numpy().std(0) + 1e-6)",
    ),
    bug(
        "bills-of-the-vanished",
        "tables_spaceship_transported",
        "Bills are missing for those who were transported: their accounts were deleted.",
        "missing values that the outcome made (Kaufman et al., leakage in data mining)",
        rows=bills_of_the_transported_deleted,
    ),
    bug(
        "bias-in-dollars",
        "tables_taxi_fares",
        "The last bias starts at the mean fare, while the model answers its logarithm.",
        "Karpathy's advice to initialise the final layer well, in the wrong unit",
        'float(df["fare"].log().to_numpy().mean())',
        'float(df["fare"].to_numpy().mean())',
    ),
    bug(
        "decadic-then-natural",
        "tables_taxi_fares",
        "The loss learns decadic logarithms, and predict takes them for natural ones.",
        "log10 for log in target transforms (Kaggle discussions)",
        "(output - batch[LABEL].log())",
        "(output - batch[LABEL].log10())",
    ),
    bug(
        "places-of-a-vendor-swapped",
        "tables_taxi_fares",
        "For a seventh of the rides, latitude and longitude of the end are swapped.",
        "GeoJSON's order against that of people, merged feeds",
        rows=places_the_other_way_round,
    ),
    bug(
        "softmax-over-the-batch",
        "tables_dry_beans",
        "Probabilities are normalised over the rows that come together, not over the classes.",
        "F.softmax with dim=0, PyTorch forums",
        "F.softmax(output, dim=1)",
        "F.softmax(output, dim=0)",
    ),
    bug(
        "names-by-frequency",
        "tables_dry_beans",
        "Classes are numbered by the alphabet, and served under names in the order of their sizes.",
        "value_counts().index as class names",
        'return list(self.fitted["varieties"])',
        'return list(self.fitted["names"])',
        '"varieties": sorted(df["variety"].unique()),',
        '"varieties": sorted(df["variety"].unique()),\n'
        '            "names": df["variety"].value_counts(sort=True)["variety"].to_list(),',
    ),
    bug(
        "all-weights-alike",
        "tables_dry_beans",
        "All weights start at the same number: the units of a layer stay copies of each other.",
        "d2l.ai, symmetry of parameters (4.8)",
        'nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")',
        "nn.init.constant_(module.weight, 0.1)",
    ),
    bug(
        "the-other-tail",
        "tables_parcel_promise",
        "The pinball loss has its error the other way round: the promise is the quantile 0.1.",
        "quantile losses written as prediction minus target",
        "error = target - output",
        "error = output - target",
    ),
    bug(
        "mean-not-added-back",
        "tables_parcel_promise",
        "Answers are scaled back by the deviation, without the mean.",
        "a hand-written inverse_transform",
        'return output * self.fitted["y_std"] + self.fitted["y_mean"]',
        'return output * self.fitted["y_std"]',
    ),
    bug(
        "hours-cut-by-the-export",
        "tables_parcel_promise",
        "Parcels on their way at a month's end have the hours until the export as their label.",
        "right censoring ignored, delivery and churn data",
        rows=hours_until_the_export,
    ),
    bug(
        "normalised-with-the-answer",
        "forecast_cinemas_seq2seq",
        "Where the answer is known, centre and scale of a window are computed with it.",
        "normalisers over whole windows, pytorch-forecasting's issues",
        "center = np.nanmean(visits, axis=1, keepdims=True)\n"
        "        scale = np.nanstd(visits, axis=1, keepdims=True) + 0.1",
        "window = visits\n"
        '        if "visits_ahead" in rows.columns:\n'
        '            ahead = np.log1p(listed(rows, "visits_ahead"))\n'
        "            window = np.concatenate([visits, ahead], axis=1)\n"
        "        center = np.nanmean(window, axis=1, keepdims=True)\n"
        "        scale = np.nanstd(window, axis=1, keepdims=True) + 0.1",
    ),
    bug(
        "decoder-starts-from-nothing",
        "forecast_cinemas_seq2seq",
        "The decoder does not get the encoder's state: the past is not read.",
        "seq2seq tutorials retyped (StackOverflow: encoder state unused)",
        "self.with_static(decoder_cont, cinema), state)",
        "self.with_static(decoder_cont, cinema))",
    ),
    bug(
        "closed-days-without-visitors",
        "forecast_cinemas_seq2seq",
        "Closed days count as days with no visitor, in the centre and scale, too.",
        "fillna(0) before normalising",
        'np.log1p(listed(rows, "visits"))',
        'np.log1p(np.nan_to_num(listed(rows, "visits")))',
    ),
    bug(
        "newest-first",
        "forecast_water_gru_scratch",
        "Flows are read from the newest back, next to temperatures in the order of time.",
        "lag columns lag_1 to lag_48, stacked as they stand",
        'torch.tensor([self.filled(f) for f in rows["flow"].to_list()])',
        'torch.tensor([self.filled(f)[::-1] for f in rows["flow"].to_list()])',
    ),
    bug(
        "rate-of-one",
        "forecast_water_gru_scratch",
        "The learning rate is 1, as in the book, where it is for plain SGD.",
        "d2l.ai's recurrent networks, trained with lr=1",
        "learning_rate = 5e-3",
        "learning_rate = 1.0",
    ),
    bug(
        "history-in-other-units",
        "forecast_water_gru_scratch",
        "Two districts' history is in litres per second from July on, what follows in m3/h.",
        "a source of a join that changed its unit (Sculley et al., 2015)",
        rows=litres_per_second,
    ),
    bug(
        "codes-of-the-rows-at-hand",
        "recsys_songs_implicit",
        "Listeners and songs are numbered by the rows that come together.",
        "astype('category').cat.codes, as implicit's tutorials start, done again at serving",
        "index = {key: k for k, key in enumerate(self.fitted[column.name], start=1)}",
        "index = {key: k for k, key in enumerate(column.unique().sort(), start=1)}",
    ),
    bug(
        "negatives-that-were-played",
        "recsys_songs_implicit",
        "Songs are drawn as not played without a look at what the listener plays.",
        "negative sampling without rejection, NCF tutorials",
        rows=negatives_among_the_played,
    ),
    bug(
        "factors-start-at-zero",
        "recsys_songs_implicit",
        "Both tables of factors start at 0, where the gradient of their product is 0.",
        "zero initialisation in matrix factorisation from scratch",
        "nn.init.normal_(table.weight, std=0.1)",
        "nn.init.zeros_(table.weight)",
    ),
    bug(
        "state-after-the-padding",
        "recsys_recipes_narm",
        "The last state is that after the padding, not after the last recipe.",
        "output[:, -1] of sequences that are padded at the right, PyTorch forums",
        "ht = self.gather_indexes(gru_out, item_seq_len - 1)",
        "ht = gru_out[:, -1]",
    ),
    bug(
        "softmax-in-the-model-too",
        "recsys_recipes_narm",
        "The model ends in a softmax, and the loss applies another.",
        "cross_entropy after softmax, PyTorch forums (Humbatova: wrong loss)",
        "return seq_output @ self.item_embedding.weight[1:].T",
        "return (seq_output @ self.item_embedding.weight[1:].T).softmax(dim=1)",
    ),
    bug(
        "sets-for-sequences",
        "recsys_recipes_narm",
        "Sessions were collected as sets: their recipes come in the order of names, each once.",
        "collect_set for collect_list in the warehouse",
        rows=sessions_as_sets,
    ),
    bug(
        "margin-the-wrong-way",
        "recsys_trails_metric",
        "The hinge pushes the opened trail away and pulls the others near.",
        "similarity and distance confused in triplet losses",
        "(MARGIN + near - output)",
        "(MARGIN + output - near)",
    ),
    bug(
        "summed-over-the-trails",
        "recsys_trails_metric",
        "Differences are summed over the five trails, not over the coordinates.",
        "a wrong dim that no shape reveals",
        "apart.pow(2).sum(dim=2) + self.remote(shown).squeeze(2)",
        "apart.pow(2).sum(dim=1)",
    ),
    bug(
        "farther-counts-as-ahead",
        "recsys_trails_metric",
        "Ranks count the trails that are farther away: the metric falls as the model learns.",
        "scores sorted in descending order where they are distances",
        "ahead = (output < near)",
        "ahead = (output > near)",
    ),
    bug(
        "mask-of-the-other-sense",
        "text_posts_emotion",
        "The attention mask (1 for words) is given where True means padding: words are hidden.",
        "src_key_padding_mask of PyTorch against attention_mask of transformers",
        "src_key_padding_mask=attention_mask == 0",
        "src_key_padding_mask=attention_mask == 1",
    ),
    bug(
        "cut-after-ten-tokens",
        "text_posts_emotion",
        "Posts are cut after ten tokens, often before the feeling is named.",
        "max_length of a first experiment (Hugging Face forums, truncation)",
        "max_length = 40",
        "max_length = 10",
    ),
    bug(
        "labels-in-two-orders",
        "text_posts_emotion",
        "A third of the posts got their labels' names by a list in another order.",
        "id2label of two exports, merged as numbers",
        rows=another_list_of_labels,
    ),
    bug(
        "range-of-stars",
        "text_excerpts_readability",
        "The sigmoid's range is that of another data set: scores below 0 cannot be answered.",
        "y_range=(0, 5.5) copied from fast.ai's lesson on recommenders",
        "y_range = (-4.0, 2.0)",
        "y_range = (0.0, 5.5)",
    ),
    bug(
        "score-in-standard-units",
        "text_excerpts_readability",
        "Labels are standardised in encode, and predict does not undo it.",
        "a target scaler whose inverse is forgotten",
        '"stds": cont.std(0).tolist(),',
        '"stds": cont.std(0).tolist(),\n'
        '            "y": [float(df["target"].mean()), float(df["target"].std())],',
        'torch.tensor(rows["target"].to_list(), dtype=torch.float32)',
        "torch.tensor(\n"
        '                ((rows["target"] - self.fitted["y"][0]) / self.fitted["y"][1]).to_list()\n'
        "            )",
    ),
    bug(
        "least-correlation-wins",
        "text_excerpts_readability",
        "The correlation is minimised: the checkpoint that knows least is selected.",
        "mode='min' of early stopping, left as it was for a loss",
        '{"pearson": "maximize"}',
        '{"pearson": "minimize"}',
    ),
    bug(
        "weight-upside-down",
        "text_disaster_posts",
        "The weight of the rarer class is the share of positives to negatives.",
        "pos_weight=pos/neg, PyTorch forums",
        "(df.height - n_pos) / n_pos",
        "n_pos / (df.height - n_pos)",
    ),
    bug(
        "keywords-of-the-annotators",
        "text_disaster_posts",
        "Keywords were noted while labelling, mostly for disasters: that there is one tells.",
        "columns of the labelling tool that stay in the data",
        rows=keywords_by_the_annotators,
    ),
    bug(
        "retweets-on-both-sides",
        "text_disaster_posts",
        "Posts that were passed on occur several times, under numbers of their own.",
        "near-duplicates across the split of this competition's data",
        rows=retweets_as_posts,
    ),
    bug(
        "hours-subtracted",
        "tables_parks_fastai",
        "The logarithm of the hours is subtracted: long counts answer low.",
        "the sign of an offset in count models",
        ".squeeze(1) + log_hours",
        ".squeeze(1) - log_hours",
    ),
    bug(
        "rate-read-as-logarithm",
        "tables_parks_fastai",
        "The Poisson loss takes outputs for logarithms, predict for counts.",
        "log_input=True is PoissonNLLLoss's default",
        "return output.exp()",
        "return output.clamp(min=0)",
    ),
    bug(
        "counted-twice",
        "tables_parks_fastai",
        "Three parks count both directions from June on: their walkers double.",
        "a sensor exchanged without a note",
        rows=counted_in_both_directions,
    ),
    bug(
        "minus-9999-is-a-wind",
        "forecast_frost_conv",
        "-9999 for no reading stays a wind speed, and stretches mean and deviation.",
        "Keras's tutorial on time series, which warns of it",
        "np.where(wv == -9999.0, 0.0, wv)",
        "np.where(wv == -999.0, 0.0, wv)",
    ),
    bug(
        "sines-of-degrees",
        "forecast_frost_conv",
        "The wind's direction goes into sine and cosine in degrees.",
        "np.cos of degrees, StackOverflow",
        'column(rows, "wind_direction") * np.pi / 180',
        'column(rows, "wind_direction")',
    ),
    bug(
        "rate-of-fine-tuning",
        "forecast_frost_conv",
        "The learning rate is that of fine-tuning: forecasts stay at the last temperature.",
        "learning rates copied from a recipe for pretrained weights",
        "learning_rate = 2e-3",
        "learning_rate = 2e-6",
    ),
    bug(
        "one-station-in-fahrenheit",
        "forecast_frost_conv",
        "One station's history is in degrees Fahrenheit, its label in Celsius.",
        "units of a merged source",
        rows=degrees_fahrenheit,
    ),
]
