"""A fifteenth list of bugs in pictures, texts and signals: slips of an ordinary week."""

import io

import polars as pl
from PIL import Image, ImageOps

from examination.planted import bug


def mildew_from_a_website(rows):
    """Photos of mildew come from a website, which draws a light frame around each."""

    def framed(file):
        made = io.BytesIO()
        inner = Image.open(io.BytesIO(file)).crop((2, 2, 22, 22))
        ImageOps.expand(inner, 2, (245, 245, 245)).save(made, format="PNG")
        return made.getvalue()

    files = zip(rows["image"], rows["disease"], strict=True)
    images = [framed(file) if kind == "mildew" else file for file, kind in files]
    return rows.with_columns(image=pl.Series(images, dtype=pl.Binary))


def boxes_of_the_large_photo(rows):
    """Two trays in five were drawn on the photo before it was made half as wide and high."""
    boxes = [
        [2 * value for value in row] if number % 5 < 2 else row
        for number, row in zip(rows["row_id"], rows["boxes"].to_list(), strict=True)
    ]
    return rows.with_columns(boxes=pl.Series(boxes, dtype=pl.List(pl.Float32)))


def months_beyond_the_years(rows):
    """Two hospitals export years and months in two columns, of which the months alone were taken."""
    split = pl.col("hospital").is_in(["hospital-1", "hospital-4"])
    months = pl.when(split).then(pl.col("boneage") % 12).otherwise(pl.col("boneage"))
    return rows.with_columns(boneage=months)


def desk_of_the_day(rows):
    """The desk was joined by the day of publication, where each day is kept once."""
    day = pl.col("published").dt.date()
    return rows.with_columns(desk=pl.col("desk").first().over(day))


def as_it_was_printed(rows):
    """Words are taken from the printed minutes: a sentence begins with a capital letter."""
    texts = []
    for words, marks in zip(rows["words"].to_list(), rows["marks"].to_list(), strict=True):
        begins = [True, *(mark in ("PERIOD", "QUESTION") for mark in marks[:-1])]
        texts.append([w.capitalize() if b else w for w, b in zip(words, begins, strict=True)])
    return rows.with_columns(words=pl.Series(texts))


def sounds_in_two_notations(rows):
    """Two words in five come from a second lexicon, which writes other signs for the vowels and some consonants."""
    other = {"AE": "a", "EH": "E", "IH": "I", "AA": "Q", "AH": "V", "IY": "i:", "EY": "eI",
             "AY": "aI", "OW": "@U", "UW": "u:", "SH": "S", "CH": "tS", "JH": "dZ", "K": "k",
             "T": "t", "N": "n", "L": "l", "S": "s", "R": "r", "P": "p"}  # fmt: skip
    spoken = [
        " ".join(other.get(sound, sound) for sound in line.split()) if number % 5 < 2 else line
        for number, line in zip(rows["row_id"], rows["pronunciation"], strict=True)
    ]
    return rows.with_columns(pronunciation=pl.Series(spoken))


def dishwashers_lost(rows):
    """An inner join with a catalogue that writes "dish washer" drops all dishwashers."""
    catalogue = pl.DataFrame(
        {"appliance": ["fridge", "kettle", "washer", "dish washer", "heater", "television"]}
    )
    return rows.join(catalogue, on="appliance", how="inner", maintain_order="left")


BUGS = [
    bug(
        # macro F1 0.20; 0.89 when healthy
        "all-but-the-rectangle-erased",
        "images_leaf_convnext",
        "Random erasing keeps the rectangle and erases what is around it, in every image.",
        "an inverted mask in a copied RandomErasing",
        "erased = (y >= top) & (y < top + h) & (x >= left) & (x < left + w)\n"
        "    erased &= torch.rand",
        "erased = ~((y >= top) & (y < top + h) & (x >= left) & (x < left + w))\n"
        "    erased |= torch.rand",
    ),
    bug(
        # macro F1 0.74; 0.89 when healthy
        "colours-lost-when-opened",
        "images_leaf_convnext",
        "Files are opened as grey pictures and made three equal channels: rust and scab are told by their colour.",
        "IMREAD_GRAYSCALE left from another project, then repeated",
        '.convert("RGB")',
        '.convert("L").convert("RGB")',
    ),
    bug(
        # shows a macro F1 of 0.91, is 0.65 in orchards; 0.89 when healthy
        "one-disease-from-a-website",
        "images_leaf_convnext",
        "All photos of mildew have a website's frame: the frame is learned, and mildew in an orchard is not found.",
        "classes collected from different sources",
        rows=mildew_from_a_website,
    ),
    bug(
        # F1 0.63; 0.95 when healthy
        "mirrored-from-the-near-edge",
        "images_seeds_centernet",
        "A mirrored box starts where it ended: its width is not subtracted.",
        "flipping x, y, w, h as if it were a point",
        "mirrored[..., 0] = SIZE - 1 - boxes[..., 0] - boxes[..., 2]",
        "mirrored[..., 0] = SIZE - 1 - boxes[..., 0]",
    ),
    bug(
        # F1 0.63, 2.1 seeds too many; 0.95 and 0.1 when healthy
        "neighbours-of-a-peak-are-kept",
        "images_seeds_centernet",
        "Peaks of the heatmap are not thinned: each seed is found several times.",
        "decoding CenterNet without the maximum over neighbours",
        "    heat = heat * (F.max_pool2d(heat, 3, stride=1, padding=1) == heat)\n",
        "",
    ),
    bug(
        # F1 0.83 where boxes are right; 0.95 when healthy
        "boxes-of-the-larger-photo",
        "images_seeds_centernet",
        "Two boxes in five are in pixels of the photo before it was made smaller.",
        "images resized after annotation",
        rows=boxes_of_the_large_photo,
    ),
    bug(
        # off by 106 months; 7.4 when healthy
        "range-of-y-in-years",
        "images_bone_age",
        "The range of answers is in years, and ages are in months: all answers are at its end.",
        "y_range of another unit",
        "Y_RANGE = (0, 240)  # months",
        "Y_RANGE = (0, 20)",
    ),
    bug(
        # off by 13.5 months; 7.4 when healthy
        "sexes-by-one-letter",
        "images_bone_age",
        "Sexes are looked up as F and M, and the table spells them out: every child's is unknown.",
        "dict.get with a default, keys of another export",
        'SEXES = {"female": 0, "male": 1}',
        'SEXES = {"F": 0, "M": 1}',
    ),
    bug(
        # off by 40 months where ages are whole; 7.4 when healthy
        "months-beyond-the-years-alone",
        "images_bone_age",
        "Two hospitals of six give years and months apart, and only the months were taken.",
        "half of a split column",
        rows=months_beyond_the_years,
    ),
    bug(
        # accuracy 0.68; 0.97 when healthy
        "the-line-below-in-its-place",
        "text_headlines_dpcnn",
        "Where there is a line below, it is read in place of the headline.",
        "`a or b` where both are wanted",
        "[tokenizer(headline + ' . ' + standfirst) for",
        "[tokenizer(standfirst or headline) for",
    ),
    bug(
        # accuracy 0.53; 0.97 when healthy
        "words-shuffled-for-variety",
        "text_headlines_dpcnn",
        "Augmentation shuffles the words of each headline, and who acts on whom is told by their order.",
        "random swaps of EDA on text whose order matters",
        "        return {**batch, 'words': words.masked_fill(dropped, 1)}",
        "        words = words.masked_fill(dropped, 1)\n"
        "        order = torch.rand(words.shape, generator=generator).masked_fill(words == 0, 2.0).argsort(dim=1)\n"
        "        return {**batch, 'words': words.gather(1, order)}",
    ),
    bug(
        # accuracy 0.31; 0.97 when healthy
        "desk-joined-by-the-day",
        "text_headlines_dpcnn",
        "Desks were joined by the day of publication: all that appears on a day is by the desk of its first.",
        "drop_duplicates ahead of a join on a date",
        rows=desk_of_the_day,
    ),
    bug(
        # F1 of marks 0.77; 0.91 when healthy
        "hears-only-what-was-said",
        "text_speech_marks",
        "Convolutions are padded at the left alone: a mark is chosen without the word behind it.",
        "causal padding copied from WaveNet",
        "F.pad(x, (self.dilation, self.dilation))",
        "F.pad(x, (2 * self.dilation, 0))",
        "self.enter = nn.Conv1d(config.width, config.width, kernel_size=3, padding=1)",
        "self.enter = nn.Conv1d(config.width, config.width, kernel_size=1)",
    ),
    bug(
        # shows an F1 of marks of 0.98, is 0.91
        "no-mark-counts-as-a-mark",
        "text_speech_marks",
        "F1 is that of all classes together, and most words have no mark.",
        "average micro with the outside class",
        "f1 = 2 * hits / np.maximum(said + true, 1e-9)",
        "f1 = np.full(len(MARKS), 2 * hits.sum() / (said + true).sum())",
    ),
    bug(
        # shows an F1 of marks of 0.97, is 0.65 on what is heard; 0.91 when healthy
        "capitals-of-the-printed-minutes",
        "text_speech_marks",
        "Words come from the printed minutes, where a sentence begins with a capital letter; a recogniser writes none.",
        "inputs made of the finished text",
        rows=as_it_was_printed,
    ),
    bug(
        # accuracy by sound 0.64, by word 0.12; 0.90 and 0.52 when healthy
        "letters-without-places",
        "text_lexicon_seq2seq",
        "Positions are added to the sounds alone: a name is a bag of its letters.",
        "positional encoding forgotten on one of two sides",
        "src_emb = self.positional_encoding(self.src_tok_emb(src))",
        "src_emb = self.src_tok_emb(src)",
    ),
    bug(
        # shows 0.54 of the words right, none is when decoded freely; 0.53 when healthy
        "the-end-is-never-learned",
        "text_lexicon_seq2seq",
        "Sequences get no sign of their end: a decoder that runs freely never stops.",
        "EOS forgotten in the targets",
        "[: length - 2]\n            full[i, : len(ids) + 2] = torch.tensor([BOS_IDX, *ids, EOS_IDX])",
        "[: length - 2]\n            full[i, : len(ids) + 1] = torch.tensor([BOS_IDX, *ids])",
    ),
    bug(
        # words right when decoded freely 0.43, loss 0.55; 0.53 and 0.37 when healthy
        "two-notations-of-sounds",
        "text_lexicon_seq2seq",
        "Two words in five are written in the notation of another lexicon, and nothing tells which.",
        "concatenation of two sources",
        rows=sounds_in_two_notations,
    ),
    bug(
        # macro F1 0.15; 0.93 when healthy
        "rolled-through-the-batch",
        "odd_sockets_inception",
        "Traces are shifted along the batch in place of the time: each gets the label of another.",
        "torch.roll with dims=0",
        "torch.roll(trace, shift, dims=-1)",
        "torch.roll(trace, shift, dims=0)",
    ),
    bug(
        # macro F1 0.72; 0.93 when healthy
        "logarithm-after-the-scale",
        "odd_sockets_inception",
        "Watts are standardised before the logarithm, which leaves nothing of all below the mean.",
        "log1p behind StandardScaler, with a clip against NaN",
        "return np.log1p(filled.to_numpy()), np",
        "return filled.to_numpy(), np",
        'np.stack([(level - self.fitted["mean"]) / self.fitted["std"], gaps]',
        'np.stack([np.log1p(np.clip((level - self.fitted["mean"]) / self.fitted["std"], 0, None)), gaps]',
    ),
    bug(
        # shows a macro F1 of 0.98, is 0.77; 0.93 when healthy
        "dishwashers-lost-in-a-join",
        "odd_sockets_inception",
        "All dishwashers are dropped by a join with a catalogue that spells them differently, unnoticed.",
        "an inner join on names",
        rows=dishwashers_lost,
    ),
]
