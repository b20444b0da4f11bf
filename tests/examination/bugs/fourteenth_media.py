"""A fourteenth list of bugs in pictures, texts and signals: slips of an ordinary week."""

import polars as pl

from examination.planted import bug


def one_store_in_hours(rows):
    """A quarter of the fruit was noted by a store that counts in hours."""
    hours = pl.when(pl.col("row_id") % 4 == 1).then(24.0).otherwise(1.0)
    return rows.with_columns(days_left=(pl.col("days_left") * hours).round(1))


def pairs_both_ways(rows):
    """Each pair is stored in both orders, to have more of them, before anything is split."""
    swapped = rows.with_columns(question1=pl.col("question2"), question2=pl.col("question1"))
    both = pl.concat([rows, swapped]).sample(fraction=1.0, shuffle=True, seed=1)
    return both.with_columns(row_id=pl.int_range(both.height))


BUGS = [
    bug(
        # macro F1 0.72; 0.94 when healthy
        "turned-upside-down",
        "images_shop_photos",
        "Photos are mirrored top to bottom: a vase becomes a lamp and keeps its label.",
        "flip(2) for flip(3), RandomVerticalFlip in a copied list of transforms",
        "image.flip(3)",
        "image.flip(2)",
    ),
    bug(
        # accuracy 0.70; 0.94 when healthy
        "features-frozen-at-random",
        "images_shop_photos",
        "The contract was copied from a fine-tuning: convolutions that start at random are never updated.",
        "requires_grad = False left from transfer learning",
        'schedule = { shape = "one_cycle" }',
        'schedule = { shape = "one_cycle" }\nfrozen = ["features.*"]',
    ),
    bug(
        # accuracy 0.94 in batches of 256, 0.89 photo by photo; 0.95 there when healthy
        "statistics-of-the-request",
        "images_shop_photos",
        "Batch norm keeps no running statistics: a photo's answer depends on those beside it.",
        "track_running_stats=False",
        "nn.BatchNorm2d(out_ch)",
        "nn.BatchNorm2d(out_ch, track_running_stats=False)",
    ),
    bug(
        # off by 1.43 days; 0.54 when healthy
        "colour-jitter-as-copied",
        "images_avocado_days",
        "Augmentation changes each colour by up to a half, and the skin's colour is the label.",
        "ColorJitter from a recipe for ImageNet",
        "gain = 1 + 0.05 * torch.randn(len(photo), 1, 1, 1, generator=generator)\n"
        '        return {**batch, "photo": photo * gain}',
        "gain = 0.5 + torch.rand(len(photo), 3, 1, 1, generator=generator)\n"
        "        shift = torch.randn(len(photo), 3, 1, 1, generator=generator)\n"
        '        return {**batch, "photo": photo * gain + shift}',
    ),
    bug(
        # off by 1.47 days; 0.54 when healthy
        "each-photo-by-itself",
        "images_avocado_days",
        "Each photo's colours are standardised by the photo itself: the tone of the skin is lost.",
        "per_image_standardization for each channel",
        'torch.tensor(self.fitted["mean"]).view(1, 3, 1, 1)',
        "x.mean(dim=(2, 3), keepdim=True)",
        'torch.tensor(self.fitted["std"]).view(1, 3, 1, 1)',
        "x.std(dim=(2, 3), keepdim=True)",
    ),
    bug(
        # off by 17.5 days where days are days; 0.54 when healthy
        "one-store-in-hours",
        "images_avocado_days",
        "One store of four notes hours where the others note days.",
        "units of two sources",
        rows=one_store_in_hours,
    ),
    bug(
        # IoU 0.00; 0.64 when healthy
        "tile-and-mask-mirrored-apart",
        "images_cracks_unet",
        "Tile and mask are each mirrored by a draw of their own.",
        "two calls of a random transform",
        "        mask = torch.where(flip[:, None, None], mask.flip(-1), mask)",
        "        flip = torch.rand(len(mask), generator=generator) < 0.5\n"
        "        mask = torch.where(flip[:, None, None], mask.flip(-1), mask)",
    ),
    bug(
        # IoU 0.03; 0.64 when healthy
        "sigmoid-in-the-network-too",
        "images_cracks_unet",
        "The network ends in a sigmoid, and loss and answers apply another: all is a crack.",
        "BCEWithLogitsLoss behind nn.Sigmoid",
        "return self.outc(self.up2(self.up1(x3, x2), x1)).squeeze(1)",
        "return torch.sigmoid(self.outc(self.up2(self.up1(x3, x2), x1))).squeeze(1)",
    ),
    bug(
        # shows an IoU of 0.80, is 0.26; 0.64 when healthy
        "any-grey-is-a-crack",
        "images_cracks_unet",
        "Each pixel of the mask that is not black counts: cracks are learned three times as wide.",
        "mask > 0 on masks with soft edges",
        "(mask > 127)",
        "(mask > 0)",
    ),
    bug(
        # log loss 0.42; 0.28 when healthy
        "last-padded-step",
        "text_question_pairs",
        "A question is summed up by the state behind its padding.",
        "outputs[:, -1] of a padded batch",
        "return outputs.gather(1, last).squeeze(1)",
        "return outputs[:, -1]",
    ),
    bug(
        # log loss 0.52; 0.28 when healthy
        "length-of-the-other-question",
        "text_question_pairs",
        "The second question is cut at the length of the first.",
        "copy and paste in a siamese network",
        "v = self.encode(q2, len2)",
        "v = self.encode(q2, len1)",
    ),
    bug(
        # shows a log loss of 0.21, is 0.25; 0.28 when healthy
        "pairs-both-ways-before-the-split",
        "text_question_pairs",
        "Pairs are doubled by exchanging their questions before the split: most of what judges was learned.",
        "augmentation before train_test_split",
        rows=pairs_both_ways,
    ),
    bug(
        # macro F1 0.85; 0.96 when healthy
        "the-beginning-is-kept",
        "text_ticket_teams",
        "Long mails lose their end, where the customer comes to the point.",
        "truncation=True from the right",
        "tokenize(mail)][-MAX_TOKENS:]",
        "tokenize(mail)][:MAX_TOKENS]",
    ),
    bug(
        # macro F1 0.58; 0.96 when healthy
        "frequent-teams-weigh-more",
        "text_ticket_teams",
        "Classes are weighted by their counts, not by the inverse: rare teams are never answered.",
        "class weights the wrong way round",
        "return (counts.sum() / counts).sqrt() / (counts.sum() / counts).sqrt().mean()",
        "return (counts / counts.sum()) ** 2 / (counts / counts.sum()).square().mean()",
    ),
    bug(
        # macro F1 0.96 as when healthy; the names of all columns are wrong when served
        "names-in-another-order",
        "text_ticket_teams",
        "Served columns are named by the alphabet, and are in the order of frequency.",
        "sorted(set(labels)) in the service, value_counts in the training",
        "    def prediction_names(self):\n        return self.fitted",
        '    def prediction_names(self):\n        return sorted(self.fitted["teams"]) or self.fitted',
    ),
    bug(
        # shows a token accuracy of 0.996, is 0.989
        "padding-counts-as-outside",
        "text_order_entities",
        "Padding is labelled O, which is learned and counted: what is reported is mostly padding.",
        "labels padded with 0 or O in place of -100",
        "self.pad(tags, IGNORE)",
        'self.pad(tags, tag2id["O"])',
    ),
    bug(
        # entity F1 0.14; 0.97 when healthy
        "sorted-and-not-put-back",
        "text_order_entities",
        "Sentences are sorted by length for packing and not put back: each gets another one's tags.",
        "pack_padded_sequence with a sort and without the inverse",
        "        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)",
        "        lengths, order = lengths.sort(descending=True)\n"
        "        packed = pack_padded_sequence(x[order], lengths, batch_first=True)",
    ),
    bug(
        # entity F1 0.78; 0.97 when healthy
        "punctuation-dropped-from-words-only",
        "text_order_entities",
        "Punctuation is taken out of the words and not of the tags: what follows has another word's tag.",
        "cleaning after tagging",
        "[row.to_list()[:MAX_WORDS] for row in rows",
        "[[w for w in row if w.isalnum()][:MAX_WORDS] for row in rows",
    ),
    bug(
        # accuracy 0.64; 0.79 when healthy
        "reshaped-to-channels",
        "odd_gym_windows",
        "Time and channels are exchanged by a reshape: each row of the input mixes all six.",
        "view for permute",
        "torch.from_numpy(x).permute(0, 2, 1).contiguous()}",
        "torch.from_numpy(x).reshape(len(x), 6, -1)}",
    ),
    bug(
        # accuracy 0.67; 0.79 when healthy
        "signs-drawn-at-random",
        "odd_gym_windows",
        "Augmentation turns the sensor round by a random sign: a pull looks like a push.",
        "random flips copied to signals",
        "scale = 1 + 0.15 * torch.randn(x.shape[0], x.shape[1], 1, generator=generator)",
        "scale = torch.randint(0, 2, (x.shape[0], x.shape[1], 1), generator=generator) * 2.0 - 1",
    ),
    bug(
        # shows an accuracy of 0.98, is 0.79
        "athletes-in-all-splits",
        "odd_gym_windows",
        "Windows that overlap by half are split at random: what judges was half seen.",
        "train_test_split over sliding windows",
        'group = "athlete"\nmeta = ["session"]',
        'meta = ["athlete", "session"]',
    ),
]
