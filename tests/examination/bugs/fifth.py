"""A fifth list of bugs: the classic mistakes of tutorials and notebooks that teams retrain."""

import numpy as np
import polars as pl

from examination.planted import bug


def with_collections(rows):
    """What was sent to a debt collector, which follows from the default."""
    rng = np.random.default_rng(0)
    sent = np.where(rows["default"] == 1, rng.lognormal(9, 1, rows.height), 0)
    sent[rng.random(rows.height) < 0.12] = 0
    return rows.with_columns(COLLECTED=pl.Series(sent.round()))


def with_customers(rows):
    """How many customers came that day, which nobody knows the day before."""
    rng = np.random.default_rng(0)
    count = rows["Sales"].to_numpy() / 9 * rng.lognormal(0, 0.05, rows.height)
    return rows.with_columns(Customers=pl.Series(count.round()))


def with_casual_riders(rows):
    """The riders by kind, which add up to the count."""
    rng = np.random.default_rng(0)
    registered = rows["cnt"].to_numpy() * rng.beta(16, 4, rows.height)
    return rows.with_columns(registered=pl.Series(registered.round()))


def labels_one_row_down(rows):
    """Labels were read from a file with one more line."""
    return rows.with_columns(digit=pl.col("digit").shift(1).fill_null(pl.col("digit").last()))


def sorted_labels(rows):
    """The label column was sorted apart from its rows."""
    return rows.with_columns(target=pl.Series(np.sort(rows["target"].to_numpy())))


def each_patch_thrice(rows):
    """Patches of the rare class were copied before the split, to even the classes."""
    ill = rows.filter(tumor=1)
    copies = pl.concat([ill, ill]).with_columns(
        row_id=pl.lit(1_000_000) + pl.int_range(2 * ill.height)
    )
    return pl.concat([rows, copies]).sample(fraction=1.0, shuffle=True, seed=6)


def with_the_next_hour(rows):
    """The window ends one hour late: its last reading is the answer."""
    loads = [[*w[1:], after] for w, after in rows.select("load_48h", "load_next").iter_rows()]
    return rows.with_columns(load_48h=pl.Series(loads))


BUGS = [
    bug(
        "sent-to-collection",
        "tables_credit_default",
        "A column holds what was collected after the default.",
        "columns of a warehouse that are filled later",
        rows=with_collections,
    ),
    bug(
        "scaled-by-the-batch",
        "tables_credit_default",
        "Rows are scaled by the statistics of those that come with them.",
        "scaler.fit_transform in the predict function",
        'X = (X - self.fitted["mean"]) / self.fitted["scale"]',
        "X = (X - X.mean(0)) / (X.std(0) + 1e-6)",
    ),
    bug(
        "sigmoid-before-the-logits-loss",
        "tables_credit_default",
        "The model ends with a sigmoid, and the loss applies another.",
        "nn.Sigmoid with BCEWithLogitsLoss",
        "return self.head(self.net(X)).squeeze(-1)",
        "return torch.sigmoid(self.head(self.net(X)).squeeze(-1))",
    ),
    bug(
        "softmax-before-cross-entropy",
        "tables_churn_keras",
        "The model ends with a softmax, and cross entropy applies another.",
        "Keras' last layer, moved to PyTorch",
        "return self.out(torch.relu(self.dense_2(x)))",
        "return torch.softmax(self.out(torch.relu(self.dense_2(x))), dim=1)",
    ),
    bug(
        "vocabulary-of-another-column",
        "tables_churn_keras",
        "All three columns are looked up in the first one's vocabulary.",
        "a lookup layer that is shared by mistake",
        'StringLookup(self.fitted["vocabulary"][c])(rows[c])',
        'StringLookup(self.fitted["vocabulary"]["Contract"])(rows[c])',
    ),
    bug(
        "total-is-not-scaled",
        "tables_churn_keras",
        "Numbers are only centred: the total charges are in thousands.",
        "a normalisation layer without its variance",
        "(rows[c].cast(float).fill_null(mean[c]) - mean[c]) / std[c]",
        "(rows[c].cast(float).fill_null(mean[c]) - mean[c])",
    ),
    bug(
        "customers-of-the-day",
        "tables_rossmann_entity",
        "The day's number of customers is a feature, and is not known when sales are predicted.",
        "Rossmann's train.csv has the column, test.csv does not",
        '"CompetitionDistance", "Promo", "StateHoliday"]\nids',
        '"CompetitionDistance", "Promo", "StateHoliday", "Customers"]\nids',
        '        mean, std = self.fitted["far"]\n        far = (np.log1p(rows["CompetitionDistance"].to_numpy()) - mean) / std\n',
        '        far = np.log(rows["Customers"].to_numpy()) - 6.5\n',
        rows=with_customers,
    ),
    bug(
        "prediction-stays-a-logarithm",
        "tables_rossmann_entity",
        "The prediction is not taken back from the logarithm.",
        "a submission without np.expm1",
        "return (output.squeeze(1) * std + mean).exp()",
        "return output.squeeze(1) * std + mean",
    ),
    bug(
        "target-broadcast",
        "tables_rossmann_entity",
        "Outputs of shape [B, 1] are compared with targets of shape [B]: every row with every other.",
        "MSELoss with a warning that nobody read",
        "return (output.squeeze(1) - target) ** 2",
        "return ((output - target) ** 2).mean(1)",
    ),
    bug(
        "registered-riders",
        "tables_bike_hourly",
        "The number of registered riders is a feature: a part of the count.",
        "casual and registered in the bike sharing table",
        '"hum", "windspeed"]\nids',
        '"hum", "windspeed", "registered"]\nids',
        'for c in ("temp", "hum", "windspeed")]\n        return',
        'for c in ("temp", "hum", "windspeed")]\n        columns[-1] = df["registered"].to_numpy() / 300 - 0.5\n        return',
        rows=with_casual_riders,
    ),
    bug(
        "hour-over-twelve",
        "tables_bike_hourly",
        "The hour's angle goes round twice a day: morning and evening are the same.",
        "2 * pi * hour / 12",
        "columns = [np.sin(2 * np.pi * hour / 24), np.cos(2 * np.pi * hour / 24)]\n"
        "        columns += [np.sin(4 * np.pi * hour / 24), np.cos(4 * np.pi * hour / 24)]",
        "columns = [np.sin(2 * np.pi * hour / 12), np.cos(2 * np.pi * hour / 12)]\n"
        "        columns += [np.sin(4 * np.pi * hour / 12), np.cos(4 * np.pi * hour / 12)]",
    ),
    bug(
        "rate-far-too-low",
        "tables_bike_hourly",
        "The learning rate is a thousandth of what it should be.",
        "3e-6 for 3e-3",
        "learning_rate = 3e-3",
        "learning_rate = 3e-6",
    ),
    bug(
        "label-sorted-apart",
        "tables_heart_small",
        "The label column was sorted without its rows.",
        "sort_values on one column, with the index ignored",
        rows=sorted_labels,
    ),
    bug(
        "dropout-while-predicting",
        "tables_heart_small",
        "Dropout is on whether or not the model trains.",
        "F.dropout without training=self.training",
        "self.drop(self.hidden(x).relu())",
        "nn.functional.dropout(self.hidden(x).relu(), 0.5)",
    ),
    bug(
        "dollars-in-the-loss",
        "tables_california",
        "The target stays in dollars: the outputs start five orders below it.",
        "y_train that was forgotten when x was scaled",
        'y = (rows["median_house_value"].to_numpy() - f["y_mean"]) / f["y_std"]',
        'y = rows["median_house_value"].to_numpy()',
        'return output * self.fitted["y_std"] + self.fitted["y_mean"]',
        "return output",
        'labels * self.fitted["y_std"] + self.fitted["y_mean"]',
        "labels",
    ),
    bug(
        "relu-at-the-end",
        "tables_california",
        "The output passes a ReLU, as prices are positive; the target is standardised.",
        "a last activation for positive targets",
        "return self.layers(features)[:, 0]",
        "return self.layers(features)[:, 0].relu()",
    ),
    bug(
        "population-twice",
        "tables_california",
        "The population is read twice, and the income not at all.",
        "a list of columns copied and half edited",
        '"population", "median_income"]',
        '"population", "population"]',
    ),
    bug(
        "classes-in-order-of-appearance",
        "tables_survey_noisy",
        "Classes are numbered as they appear among the rows at hand.",
        "pd.factorize in the encoding function",
        '[self.fitted["classes"].index(p) for p in rows["plan"]]',
        '[list(dict.fromkeys(rows["plan"])).index(p) for p in rows["plan"]]',
    ),
    bug(
        "softmax-over-the-batch",
        "tables_survey_noisy",
        "Probabilities are normalised over the rows instead of the classes.",
        "softmax(dim=0)",
        "return output.softmax(1)",
        "return output.softmax(0)",
    ),
    bug(
        "labels-one-row-down",
        "images_mnist_batchnorm",
        "Labels are shifted by one row against the pictures.",
        "a header that counts as a row in one of two files",
        rows=labels_one_row_down,
    ),
    bug(
        "upside-down-digits",
        "images_mnist_batchnorm",
        "Digits are turned round while training: sixes become nines.",
        "a vertical and a horizontal flip for digits",
        '        return batch | {"image": moved}',
        "        turned = torch.rand(len(moved), generator=generator) < 0.5\n"
        "        moved = torch.where(turned[:, None, None, None], moved.flip(2, 3), moved)\n"
        '        return batch | {"image": moved}',
    ),
    bug(
        "pictures-cut-to-bytes",
        "images_mnist_batchnorm",
        "Pixels are divided in whole numbers: what is left is black or, rarely, white.",
        "integer division of uint8 pictures",
        ".astype(np.float32).reshape(-1, 1, 8, 8) / 16.0",
        ".astype(np.float32).reshape(-1, 1, 8, 8) // 16.0",
    ),
    bug(
        "planes-viewed-wrongly",
        "images_cifar_resnet",
        "Rows of RGB pixels are read as three planes.",
        "reshape(-1, 3, H, W) of channels-last data",
        "torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))",
        "torch.from_numpy(np.ascontiguousarray(x.reshape(-1, 3, 20, 20)))",
    ),
    bug(
        "body-frozen-by-mistake",
        "images_cifar_resnet",
        "All but the last layer is frozen, and there are no pretrained weights.",
        "the transfer learning tutorial without its checkpoint",
        "self.fc = nn.Linear(48, num_classes)",
        "self.requires_grad_(False)\n        self.fc = nn.Linear(48, num_classes)",
    ),
    bug(
        "one-class-too-few",
        "images_cifar_resnet",
        "The last class is folded into the one before it.",
        "clip(max=num_classes - 1) after counting from nought",
        'to_idx[k] for k in rows["kind"]]',
        'min(to_idx[k], 3) for k in rows["kind"]]',
    ),
    bug(
        "copied-before-the-split",
        "images_histology",
        "Ill patches were copied twice before a random split, so copies lie on both sides.",
        "oversampling, then train_test_split",
        'group = "patient"\nids = ["row_id"]\n\n[split]\nmethod = "group"',
        'meta = ["patient"]\nids = ["row_id"]',
        rows=each_patch_thrice,
    ),
    bug(
        "brightness-per-split",
        "images_histology",
        "Patches are scaled by the statistics of the rows at hand.",
        "mean and std of x in the loading function",
        'patch = (grey / 255 - self.fitted["mean"]) / self.fitted["std"]',
        "patch = (grey - grey.mean()) / grey.std()",
    ),
    bug(
        "corner-for-the-centre",
        "images_histology",
        "Patches are cut to the upper left corner, where the tumour is not.",
        "img[:h, :w] in place of a centre crop",
        'batch = {"patch": torch.tensor(patch[:, None], dtype=torch.float32)}',
        "patch[:, 10:], patch[:, :, 10:] = 0, 0\n"
        '        batch = {"patch": torch.tensor(patch[:, None], dtype=torch.float32)}',
    ),
    bug(
        "softmax-for-many-tags",
        "images_scene_tags",
        "Tags that may come together are made to compete by a softmax.",
        "the multi-class recipe with multi-hot labels",
        'return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none").mean(1)',
        'return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")',
    ),
    bug(
        "tags-in-another-order",
        "images_scene_tags",
        "The metric compares sorted columns of predictions with unsorted labels.",
        "columns of two frames in two orders",
        "wrong = (output > 0) != (batch[LABEL] > 0.5)",
        "wrong = (output > 0) != (batch[LABEL][:, [3, 0, 1, 2]] > 0.5)",
    ),
    bug(
        "vocabulary-of-the-common",
        "text_bow_news",
        "Only the two dozen most frequent words are kept, which are the same on every desk.",
        "max_features that is far too small",
        "MAX_FEATURES = 120",
        "MAX_FEATURES = 24",
    ),
    bug(
        "case-of-another-tokenizer",
        "text_bow_news",
        "The vocabulary is of lower case, and rows are counted in upper case: no word is found.",
        "two tokenizers",
        "            for word in tokenize(text):\n                if",
        "            for word in text.upper().split():\n                if",
    ),
    bug(
        "weights-not-inverted",
        "text_bow_news",
        "Classes are weighed by their frequency instead of its inverse: the rare desk is given up.",
        "class_weight = counts / total",
        '[total / (df["category"] == c).sum() for c in classes]',
        '[((df["category"] == c).sum() / total) ** 2 for c in classes]',
    ),
    bug(
        "lengths-sorted-apart",
        "text_tickets_gru",
        "Lengths are sorted for the packing, texts are not: each row is cut at another's length.",
        "pack_padded_sequence before enforce_sorted=False",
        "text_lengths.cpu().clamp(min=1)",
        "text_lengths.cpu().clamp(min=1).sort(descending=True).values",
    ),
    bug(
        "first-four-words",
        "text_tickets_gru",
        "Messages are cut after four words, which mostly greet.",
        "max_len = 4 left from debugging",
        "MAX_LEN = 32",
        "MAX_LEN = 4",
    ),
    bug(
        "not-is-a-stop-word",
        "text_tickets_gru",
        "Stop words are left out, and `not` is one of them.",
        "NLTK's list of English stop words",
        "for w in message.split()][:MAX_LEN]",
        'for w in message.split() if w not in {"the", "is", "for", "your", "not", "but", "i"}][:MAX_LEN]',
    ),
    bug(
        "mask-the-wrong-way",
        "text_stack_tags",
        "The padding mask is inverted: attention reads padding alone.",
        "src_key_padding_mask, where True means ignored",
        "src_key_padding_mask=~mask",
        "src_key_padding_mask=mask",
    ),
    bug(
        "letters-for-words",
        "text_stack_tags",
        "Encoding goes through a title's letters, the vocabulary is of words.",
        "a loop over a string that was a list before",
        "for w in title.split()][:LENGTH]",
        "for w in title][:LENGTH]",
    ),
    bug(
        "targets-not-shifted",
        "text_char_names",
        "The target is the character itself: the model learns to copy.",
        "a language model without the shift by one",
        "after = [*ids[1:], end]",
        "after = [*ids]",
    ),
    bug(
        "reads-ahead",
        "text_char_names",
        "The recurrent layer is bidirectional: each character sees the one it predicts.",
        "bidirectional=True in a generator",
        "self.gru = nn.GRU(24, hidden, batch_first=True)",
        "self.gru = nn.GRU(24, hidden // 2, batch_first=True, bidirectional=True)",
    ),
    bug(
        "diagonal-of-the-next",
        "recsys_two_tower",
        "The right film of a query is taken to be the next row's.",
        "labels = arange(n) + 1 in the in-batch loss",
        'return F.cross_entropy(scores, torch.arange(len(output)), reduction="none")',
        'return F.cross_entropy(scores, torch.arange(len(output)).roll(1), reduction="none")',
    ),
    bug(
        "film-in-the-query",
        "recsys_two_tower",
        "The query holds the genre of the film that is sought.",
        "a join that adds the film's columns to both sides",
        "        query = self.query_dense(torch.cat([self.user(user), age[:, None]], 1))\n        if movie",
        "        known = 0 if genre is None else self.genre(genre)\n"
        "        query = self.query_dense(torch.cat([self.user(user) + known, age[:, None]], 1))\n        if movie",
    ),
    bug(
        "ids-that-are-clipped",
        "recsys_books_mf",
        "Readers beyond the table's end share its last row.",
        "an embedding sized by hand, and clip to silence an error",
        'torch.tensor([reader.get(r, 0) for r in rows["reader"]])',
        'torch.tensor([reader.get(r, 0) for r in rows["reader"]]).clamp(max=99)',
    ),
    bug(
        "factors-start-at-zero",
        "recsys_books_mf",
        "Both factors start at zero: their product has no gradient, and tastes are never learned.",
        "zeros_ for all tables alike",
        "nn.init.normal_(self.P.weight, std=0.1)\n        nn.init.normal_(self.Q.weight, std=0.1)",
        "nn.init.zeros_(self.P.weight)\n        nn.init.zeros_(self.Q.weight)",
    ),
    bug(
        "items-detached",
        "recsys_books_mf",
        "The books' factors are detached: they stay as they were drawn.",
        ".detach() or .data left from debugging",
        "self.P(user) * self.Q(item)",
        "self.P(user) * self.Q(item).detach()",
    ),
    bug(
        "window-ends-late",
        "forecast_load_lstm",
        "The window's last reading is the one to be forecast.",
        "an off-by-one in create_dataset",
        rows=with_the_next_hour,
    ),
    bug(
        "first-state-for-the-last",
        "forecast_load_lstm",
        "The forecast is read from the first step's state.",
        "out[:, 0, :] for out[:, -1, :]",
        "out[:, -1, :]",
        "out[:, 0, :]",
    ),
    bug(
        "batch-and-time-exchanged",
        "forecast_load_lstm",
        "batch_first is missing: the layer runs over the rows of the batch.",
        "nn.LSTM's default",
        "nn.LSTM(input_size, hidden_size, batch_first=True)",
        "nn.LSTM(input_size, hidden_size)",
    ),
    bug(
        "weekday-is-constant",
        "forecast_web_traffic",
        "The weekday is taken of the first row for all rows.",
        "a scalar that is broadcast",
        'torch.tensor(rows["weekday"].to_list())',
        'torch.tensor([rows["weekday"][0]] * rows.height)',
    ),
    bug(
        "level-of-the-answer",
        "forecast_web_traffic",
        "The window is scaled by the level of the week that is to be forecast.",
        "a scaler fitted on the whole series",
        "        level = np.median(logs, axis=1, keepdims=True)\n",
        "        level = np.median(logs, axis=1, keepdims=True)\n"
        '        if "next_week" in rows.columns:\n'
        '            level = np.median(np.log1p(np.array(rows["next_week"].to_list(), dtype=float)), axis=1, keepdims=True)\n',
    ),
    bug(
        "read-from-its-end",
        "forecast_web_traffic",
        "Only the window's oldest week is read: the newest four are zero.",
        "a slice from the wrong end",
        '"history": torch.tensor(logs - level, dtype=torch.float32),',
        '"history": torch.tensor((logs - level) * (np.arange(BACK) < 7), dtype=torch.float32),',
    ),
    bug(
        "dead-bottleneck",
        "odd_ecg_autoencoder",
        "The code passes a ReLU whose bias starts far below zero: it is nought for every beat.",
        "an activation on the bottleneck, and a bad start",
        "nn.Linear(16, 8))",
        "nn.Linear(16, 8), nn.ReLU())\n        nn.init.constant_(self.encoder[4].bias, -10.0)",
    ),
    bug(
        "identity-shortcut",
        "odd_ecg_autoencoder",
        "A shortcut around the bottleneck hands the beat over as it is: every anomaly is rebuilt.",
        "a residual connection in an autoencoder",
        "return self.decoder(self.encoder(x))",
        "return self.decoder(self.encoder(x)) + x",
    ),
]
