"""A twenty-first list of bugs: plain slips in pictures, texts and searches."""

import polars as pl

from examination.planted import bug


def tags_one_word_late(rows):
    """Two adverts of five were tagged in a tool that counts the heading as the first word."""
    tags = pl.col("tags").str.split(" ")
    late = pl.concat_list(pl.lit("O"), tags.list.head(tags.list.len() - 1)).list.join(" ")
    return rows.with_columns(
        tags=pl.when(pl.col("row_id") % 5 < 2).then(late).otherwise(pl.col("tags"))
    )


def searches_completed_by_the_click(rows):
    """The log holds what the search box had after the click: the title of the part in it."""
    return rows.with_columns(typed=pl.col("typed") + " " + pl.col("bought").str.to_lowercase())


def references_one_row_on(rows):
    """The good camera's files lack the first one: every picture is paired with the next."""
    return rows.with_columns(good=pl.col("good").shift(-1)).drop_nulls("good")


def letters_scanned_twice(rows):
    """Most letters came by mail and by post, and are in the archive under two numbers."""
    again = rows.filter(pl.col("row_id") % 4 > 0)
    both = pl.concat([rows, again]).sample(fraction=1.0, shuffle=True, seed=21)
    return both.with_columns(row_id=pl.int_range(both.height))


BUGS = [
    bug(
        "attention-to-the-padding",
        "text_claim_letters",
        "The attention mask is taken the other way round: only padding is seen.",
        "True for keep in one library and for ignore in another",
        "(1.0 - attention_mask[:, None, None, :]) * -1e4",
        "attention_mask[:, None, None, :] * -1e4",
    ),
    bug(
        "capitals-unknown",
        "text_claim_letters",
        "The vocabulary is in lower case, and texts are no longer. Log loss 0.65 in place of 0.54.",
        "tokenizers whose training and use differ",
        "        return text.lower().split()\n",
        "        return text.split()\n",
    ),
    bug(
        "encoder-detached",
        "text_claim_letters",
        "The encoder's output is detached: only the last layer learns. "
        "Accuracy 0.36 in place of 0.84.",
        "feature extraction left in a script for training from scratch",
        "return self.classifier(self.norm(x)[:, 0])",
        "return self.classifier(self.norm(x).detach()[:, 0])",
    ),
    bug(
        "greetings-only",
        "text_claim_letters",
        "Texts are cut after 20 tokens, most of which are the greeting. "
        "Accuracy 0.64 in place of 0.84.",
        "a default max_length",
        "MAX_LENGTH = 44",
        "MAX_LENGTH = 20",
    ),
    bug(
        "letters-scanned-twice",
        "text_claim_letters",
        "Three letters of four are there twice, on both sides of the split. "
        "Log loss reads 0.45 in place of 0.54.",
        "duplicates across splits",
        rows=letters_scanned_twice,
    ),
    bug(
        "sorted-and-not-put-back",
        "text_nurse_calls",
        "Calls are sorted by length for packing; answers stay in that order.",
        "pack_padded_sequence in tutorials",
        "        last = last[order.argsort()]  # as they came\n",
        "",
    ),
    bug(
        "no-and-not-are-stop-words",
        "text_nurse_calls",
        "The list of stop words contains no and not, so what is absent is read as present. "
        "Average precision 0.47 in place of 0.75.",
        "general lists of stop words",
        'STOP_WORDS = {"the", "a", "and", "for", "at"}',
        'STOP_WORDS = {"the", "a", "and", "for", "at", "no", "not", "is", "there", "now"}',
    ),
    bug(
        "sigmoid-in-the-model",
        "text_nurse_calls",
        "The model ends in a sigmoid, and loss and predict apply another. "
        "Log loss 0.68 in place of 0.41.",
        "BCEWithLogitsLoss on probabilities",
        "return self.fc(self.dropout(last)).squeeze(1)",
        "return torch.sigmoid(self.fc(self.dropout(last))).squeeze(1)",
    ),
    bug(
        "rare-ones-count-less",
        "text_nurse_calls",
        "The weight of urgent calls is the ratio the other way round. F1 0.58 in place of 0.65.",
        "pos_weight = pos / neg",
        "float((~urgent).sum() / urgent.sum())",
        "float(urgent.sum() / (~urgent).sum())",
    ),
    bug(
        "padding-tagged",
        "text_advert_tags",
        "Padding is labelled as words without a tag: it counts in loss and accuracy. "
        "Honest loss 0.028 in place of 0.019, and it claims 0.014.",
        "a missing ignore_index",
        "labels = torch.full((rows.height, LENGTH), IGNORE)",
        'labels = torch.full((rows.height, LENGTH), TAGS.index("O"))',
    ),
    bug(
        "tags-one-word-late",
        "text_advert_tags",
        "Two fifths of the adverts have their tags one word to the right. "
        "Honest accuracy 0.984 in place of 0.995.",
        "special tokens in an export of labels",
        rows=tags_one_word_late,
    ),
    bug(
        "softmax-over-the-words",
        "text_advert_tags",
        "The softmax is over the words of an advert, not over the tags.",
        "the dimension of [B, T, C]",
        "output.log_softmax(dim=2)",
        "output.log_softmax(dim=1)",
    ),
    bug(
        "backwards-left-backwards",
        "text_advert_tags",
        "The states of the LSTM that reads backwards are not turned round again. "
        "Loss 0.032 in place of 0.019.",
        "two directions by hand",
        "        right = right.flip(1)\n",
        "",
    ),
    bug(
        "the-same-part-as-a-negative",
        "retrieval_part_searches",
        "Other rows of the same part are negatives, in training and evaluation. "
        "Recall at 1 reads 0.57 in place of 0.92.",
        "duplicates in a batch under in-batch negatives",
        "return scores.masked_fill(same, -1e4)",
        "return scores",
    ),
    bug(
        "searches-completed-by-the-click",
        "retrieval_part_searches",
        "What was typed ends with the title of the part that was bought.",
        "logs written after the event",
        rows=searches_completed_by_the_click,
    ),
    bug(
        "normalised-over-the-batch",
        "retrieval_part_searches",
        "Vectors are normalised along the batch, feature by feature.",
        "F.normalize with dim=0",
        "F.normalize(self.dense(mean), dim=1)",
        "F.normalize(self.dense(mean), dim=0)",
    ),
    bug(
        "divided-by-the-scale",
        "retrieval_part_searches",
        "Cosines are divided by the scale that they should be multiplied by. "
        "Recall at 1 0.77 in place of 0.92.",
        "temperature and its inverse",
        "output[:, 1].T * SCALE",
        "output[:, 1].T / SCALE",
    ),
    bug(
        "signs-mirrored",
        "images_road_signs",
        "Half of the training pictures are mirrored; left and right keep their labels. "
        "Balanced accuracy 0.79 in place of 0.98.",
        "a horizontal flip by default",
        "x = x.roll((down, right), dims=(2, 3))",
        "x = x.roll((down, right), dims=(2, 3))\n"
        "        mirrored = torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5\n"
        "        x = torch.where(mirrored, x.flip(3), x)",
    ),
    bug(
        "channels-by-reshape",
        "images_road_signs",
        "Pictures [H, W, 3] are reshaped to [3, H, W], not transposed. "
        "Balanced accuracy 0.65 in place of 0.98.",
        "view in place of permute",
        "scaled = scaled.transpose(0, 3, 1, 2)",
        "scaled = scaled.reshape(-1, 3, SIDE, SIDE)",
    ),
    bug(
        "weights-by-counts",
        "images_road_signs",
        "Classes are weighted by their counts: frequent ones count more still. "
        "Balanced accuracy 0.79 in place of 0.98.",
        "class weights without the inverse",
        "weights = counts.sum() / (len(counts) * counts)",
        "weights = len(counts) * counts / counts.sum()",
    ),
    bug(
        "statistics-of-the-batch-when-served",
        "images_road_signs",
        "Batch norm keeps no running statistics: answers depend on the other pictures. "
        "Loss 0.20 in place of 0.08, served one by one.",
        "track_running_stats=False",
        "nn.BatchNorm2d(o), nn.ReLU()",
        "nn.BatchNorm2d(o, track_running_stats=False), nn.ReLU()",
    ),
    bug(
        "only-the-input-is-turned",
        "images_thermal_denoise",
        "Augmentation turns the noisy picture, and leaves the good one. "
        "Error 1.91 K in place of 1.15.",
        "paired augmentation of two images",
        "good = torch.where(turned, batch[LABEL].flip(2), batch[LABEL])",
        "good = batch[LABEL]",
    ),
    bug(
        "sigmoid-on-standardised-pictures",
        "images_thermal_denoise",
        "The output is squeezed between 0 and 1; standardised targets are not.",
        "an output layer of another normalisation",
        "return x - self.last(h)",
        "return torch.sigmoid(x - self.last(h))",
    ),
    bug(
        "paired-with-the-next",
        "images_thermal_denoise",
        "Every picture's reference is that of the next one.",
        "two folders paired by their order",
        rows=references_one_row_on,
    ),
    bug(
        "learns-the-noisy-one",
        "images_thermal_denoise",
        "In training the output is compared with the noisy picture.",
        "an autoencoder's loss in a denoiser",
        "    def predict(self, output):\n",
        "    def training_losses(self, output, batch):\n"
        '        error = F.mse_loss(output, batch["noisy"], reduction="none")\n'
        "        return error.mean(dim=(1, 2, 3))\n\n"
        "    def predict(self, output):\n",
    ),
]
