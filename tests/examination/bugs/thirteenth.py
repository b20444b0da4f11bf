"""A thirteenth list of bugs: slips in attention, masks, likelihoods, maps and codes, as public reports have them."""

import numpy as np
import polars as pl

from examination.planted import bug


def negatives_hit_positives(rows):
    """Negatives are drawn without a look at the positives: half of the right pairs are among them, too."""
    again = rows.filter(pl.col("same") == 1).sample(fraction=0.5, seed=1).with_columns(same=0)
    both = pl.concat([rows, again.with_columns(pl.col("same").cast(rows.schema["same"]))])
    return both.sample(fraction=1.0, shuffle=True, seed=2).with_columns(
        row_id=pl.int_range(both.height)
    )


def counted_after_the_return(rows):
    """Diagnoses are counted when the table is made: those who came back have some of the second stay."""
    returned = pl.col("outcome").list.get(1) == 1
    more = pl.lit(pl.Series(np.random.default_rng(0).poisson(1.5, rows.height)))
    return rows.with_columns(
        comorbidities=pl.when(returned)
        .then(pl.col("comorbidities") + more)
        .otherwise(pl.col("comorbidities"))
    )


BUGS = [
    bug(
        # average precision 0.45; 0.50 when healthy, and other answers beside other rows
        "softmax-over-the-batch",
        "odd_merchants_gat",
        "Attention is normalised over the rows of the batch, not over a merchant's neighbours.",
        "softmax with the wrong dim, PyTorch-NLP and others",
        "-1e9).softmax(dim=1)",
        "-1e9).softmax(dim=0)",
    ),
    bug(
        # average precision 0.43; 0.50 when healthy
        "mask-inverted",
        "odd_merchants_gat",
        "The mask is true where a neighbour is, and so are the scores that are removed.",
        "masks whose True means keep in one library and remove in another",
        "alpha.masked_fill(~mask[..., None], -1e9)",
        "alpha.masked_fill(mask[..., None], -1e9)",
    ),
    bug(
        # word loss 0.50, for it reads the answer; 0.89 when healthy, after a third of the steps
        "mask-upside-down",
        "text_notes_wordlm",
        "The mask shows each word the words after it.",
        "triu for tril",
        "torch.tril(torch.ones",
        "torch.triu(torch.ones",
    ),
    bug(
        # shows a word loss of 0.73, is 0.91; 0.89 when healthy, after a third of the steps
        "padding-counts",
        "text_notes_wordlm",
        "The loss is the mean over all positions: what fills a short note counts as well.",
        "ignore_index forgotten when the loss was written by hand",
        "return (nll * real).sum(1) / real.sum(1)",
        "return nll.mean(1)",
    ),
    bug(
        # negative ELBO 111; 96 when healthy, after a third of the steps
        "divergence-of-the-whole-batch",
        "images_glyphs_convvae",
        "The divergence is summed over the batch and added to each picture's loss.",
        "torch.sum without dim in the loss of a VAE",
        "log_var.exp(), dim=1)",
        "log_var.exp())",
    ),
    bug(
        # negative ELBO 98.0; 96.4 when healthy, after a third of the steps
        "log-variance-squared",
        "images_glyphs_convvae",
        "The divergence takes the logarithm of the variance for a deviation and squares it.",
        "VAE_KLDivergence of a library of chemistry",
        "mu**2 - log_var.exp(), dim=1)",
        "mu**2 - log_var**2, dim=1)",
    ),
    bug(
        "heads-weigh-more-than-one",
        "images_hall_density",
        "The spots are not normalised: the sum of a map is no count.",
        "counts twice as high, crowd counting",
        "grid += spot / spot.sum()",
        "grid += spot",
    ),
    bug(
        "rows-and-columns-exchanged",
        "images_hall_density",
        "The points of the file are (y, x), and are read as (x, y).",
        "points of MATLAB files drawn by OpenCV",
        "for y, x in np.reshape",
        "for x, y in np.reshape",
    ),
    bug(
        "dropout-at-all-times",
        "images_plates_stn",
        "The functional dropout is called without `training`: it drops in evaluation and serving, too.",
        "F.dropout in forward",
        "F.dropout(x, 0.2, training=self.training)",
        "F.dropout(x, 0.2)",
    ),
    bug(
        # a request of one row has no deviation: all its numbers are filled with 0
        "scaled-by-the-request",
        "tables_claims_evidential",
        "Each call of `encode` scales by its own rows.",
        "fit_transform where transform was meant",
        '        mean, std = self.fitted["x"]\n        x = (self.numbers(rows) - mean) / std',
        "        x = self.numbers(rows)\n        x = (x - np.nanmean(x, axis=0)) / np.nanstd(x, axis=0)",
    ),
    bug(
        # log loss of the return 0.51 on counts as they were, shows 0.35; 0.45 when healthy
        "counted-after-the-return",
        "tables_clinic_kendall",
        "Diagnoses of the second stay are counted among those of the first.",
        "features made from the table as it is today",
        rows=counted_after_the_return,
    ),
    bug(
        # 2.41 bits per letter; 1.39 when healthy, after a third of the steps
        "state-not-carried",
        "text_places_charrnn",
        "The new state is read by the output and forgotten: each letter is read alone.",
        "hidden, new_hidden: the loop keeps the old one",
        "hidden = torch.tanh(self.i2h(combined))",
        "state = torch.tanh(self.i2h(combined))",
        "torch.cat((hidden, self.i2o(combined)), 1)",
        "torch.cat((state, self.i2o(combined)), 1)",
    ),
    bug(
        # shows 0.01 bits per letter, is 13.2; 1.39 when healthy, after a third of the steps
        "target-not-shifted",
        "text_places_charrnn",
        "The target is the letter that was read, not the next one.",
        "input and target from one slice",
        "torch.tensor(line[1:])",
        "torch.tensor(line[:-1])",
    ),
    bug(
        # 1.61 bits per letter; 1.39 when healthy, after a third of the steps
        "no-region-is-found",
        "text_places_charrnn",
        "Regions are stored in capitals and looked up as they are: all are unknown.",
        "a dictionary with default and keys of another case",
        "regions = {r: i for i",
        "regions = {r.upper(): i for i",
    ),
    bug(
        # token loss 0.01, for it reads the answer; 0.10 when healthy, after a third of the steps
        "the-word-itself-is-fed",
        "text_recipes_bahdanau",
        "Teacher forcing feeds the word that is to be predicted.",
        "decoder_input = target without the shift",
        '"decoder_input": torch.cat([bos, target[:, :-1]], dim=1),',
        '"decoder_input": target,',
    ),
    bug(
        "negatives-hit-positives",
        "retrieval_stamps_siamese",
        "Half of the right pairs occur among the negatives as well.",
        "negative sampling without a look at the positives",
        rows=negatives_hit_positives,
    ),
    bug(
        "view-mixes-rows",
        "forecast_air_lstnet",
        "Hours and rows are reshaped where they must be transposed: the skipping GRU reads other rows.",
        "view for permute",
        "s.permute(2, 0, 3, 1).contiguous().view(self.pt, batch * SKIP, self.hidC)",
        "s.contiguous().view(self.pt, batch * SKIP, self.hidC)",
    ),
    bug(
        "the-oldest-day",
        "forecast_air_lstnet",
        "The autoregression reads the first day of the window, not the last.",
        "x[:, :n] for x[:, -n:]",
        "x[:, -HW:, 0]",
        "x[:, :HW, 0]",
    ),
    bug(
        "mean-added-not-scaled",
        "forecast_air_lstnet",
        "Predictions get the mean back, but not the deviation.",
        "half of an inverse transform",
        'torch.exp(output * self.fitted["std"][0] + self.fitted["mean"][0])',
        'torch.exp(output + self.fitted["mean"][0])',
    ),
    bug(
        "quantiles-change-sides",
        "forecast_docks_tft",
        "The error has the other sign: what is named the tenth percentile is the ninetieth.",
        "target - prediction or prediction - target in the pinball loss",
        "error = batch[LABEL][..., None] - output",
        "error = output - batch[LABEL][..., None]",
    ),
    bug(
        # AUC 0.68 in the process that trained, by collisions; 0.72 when healthy
        "hash-of-the-process",
        "recsys_ads_deepfm",
        "Codes are Python's hash of the text, which each process salts anew.",
        "hash(str) % n for features",
        "sparse.append([index.get(v, 0) for v in rows[c]])",
        "sparse.append([hash(v) % (len(index) + 1) for v in rows[c]])",
    ),
    bug(
        # log loss 0.47, for it reads the answer; 0.54 when healthy, after a third of the steps
        "mask-without-effect",
        "odd_learners_sakt",
        "The mask is made and not used: each step reads all answers.",
        "masked_fill without its underscore, knowledge tracing",
        "attn_mask=future, ",
        "",
    ),
    bug(
        # log loss 0.33, for it reads the answer; 0.54 when healthy, after a third of the steps
        "answers-not-shifted",
        "odd_learners_sakt",
        "Each step reads the answer that it predicts.",
        "label leakage in SAINT and SAKT",
        "interactions[i, 1 : len(q)] = (q + a * n)[:-1]",
        "interactions[i, : len(q)] = q + a * n",
    ),
    bug(
        # shows a log loss of 0.26, is 0.54
        "padding-is-unsolved",
        "odd_learners_sakt",
        "Steps that do not exist count as exercises not solved.",
        "zeros for padding where zero is a label",
        "target = np.full((rows.height, SEQ), NONE, dtype=np.float32)",
        "target = np.zeros((rows.height, SEQ), dtype=np.float32)",
    ),
    bug(
        "reshaped-for-transposed",
        "odd_commands_dscnn",
        "Moments and bands are exchanged by a reshape: the picture of a sound is torn.",
        "view for transpose",
        'batch = {"mel": mel.unsqueeze(1)}',
        'batch = {"mel": mel.reshape(len(mel), 1, -1, N_MELS).transpose(2, 3)}',
    ),
    bug(
        "classes-of-the-rows-at-hand",
        "odd_commands_dscnn",
        "Each call of `encode` numbers the words that occur in its rows.",
        "LabelEncoder().fit_transform for every split",
        '[self.fitted["words"].index(w) for w in rows["word"]]',
        '[sorted(set(rows["word"])).index(w) for w in rows["word"]]',
    ),
    bug(
        "sparsity-weighs-all",
        "tables_income_tabnet",
        "The penalty on the masks weighs ten thousand times what it should.",
        "lambda_sparse of another library's scale",
        "1e-3 * output[:, 2]",
        "10.0 * output[:, 2]",
    ),
]
