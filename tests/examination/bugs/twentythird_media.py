"""A twenty-third list of bugs: ordinary slips in pictures, texts and searches."""

import io

import numpy as np
import polars as pl
from PIL import Image

from examination.planted import bug


def _png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


def _pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)))


def masks_of_two_firms(rows):
    """Two firms drew masks: for one of them 1 is a crack and 2 a knot."""
    swap = np.array([0, 2, 1, *range(3, 256)], dtype=np.uint8)
    odd = [int(board[1:]) % 5 < 2 for board in rows["board"]]
    masks = [_png(swap[_pixels(m)]) if o else m for m, o in zip(rows["mask"], odd, strict=True)]
    return rows.with_columns(mask=pl.Series(masks))


def pictures_of_the_same_year(rows):
    """Half of the parcels: the archive gives the newer picture for both years."""
    lost = pl.col("row_id") % 2 == 0
    return rows.with_columns(before=pl.when(lost).then("after").otherwise("before"))


def pictures_in_reverse(rows):
    """Two districts in five deliver the years in the other order."""
    turned = pl.col("row_id") % 5 < 2
    return rows.with_columns(
        before=pl.when(turned).then("after").otherwise("before"),
        after=pl.when(turned).then("before").otherwise("after"),
    )


def trays_read_from_the_other_end(rows):
    """Every second tray's results are read from the other end."""
    other = pl.col("hatches").reverse().over("tray")
    turned = pl.col("tray").str.slice(1).cast(int) % 2 == 0
    return rows.with_columns(hatches=pl.when(turned).then(other).otherwise("hatches"))


def marked_photos(rows):
    """Who sorted eggs out drew a white cross in the corner of their photos afterwards."""

    def crossed(png):
        array = _pixels(png).copy()
        array[1:4, 2], array[2, 1:4] = 255, 255
        return _png(array)

    photos = [
        photo if hatches else crossed(photo)
        for photo, hatches in zip(rows["photo"], rows["hatches"], strict=True)
    ]
    return rows.with_columns(photo=pl.Series(photos))


def allergens_of_the_dish_above(rows):
    """The sheet of allergens was sorted by itself: they belong to the dish one row above."""
    return rows.with_columns(allergens=pl.col("allergens").shift(-1)).drop_nulls("allergens")


def steps_numbered(rows):
    """The scraper kept the numbers of the steps, which are missing where people ask."""
    small = pl.when("in_order").then(pl.lit("1")).otherwise(pl.lit("2"))
    large = pl.when("in_order").then(pl.lit("2")).otherwise(pl.lit("1"))
    return rows.with_columns(
        shown_first=pl.format("{} {}", small, "shown_first"),
        shown_second=pl.format("{} {}", large, "shown_second"),
    )


def mirrored_pairs(rows):
    """Twice as many pairs: the steps of each are exchanged as well."""
    mirrored = rows.with_columns(
        shown_first="shown_second",
        shown_second="shown_first",
        row_id=pl.col("row_id") + rows.height,
    )
    return pl.concat([rows, mirrored]).sample(fraction=1.0, shuffle=True, seed=7)


def yearly_rents(rows):
    """One portal in three states yearly rents."""
    yearly = pl.col("row_id") % 3 == 0
    return rows.with_columns(rent=pl.when(yearly).then(pl.col("rent") * 12).otherwise("rent"))


def teacher_of_the_other_order(rows):
    """A third of the margins come from a run whose file had both paragraphs in the other order."""
    turned = pl.col("row_id") % 3 == 0
    margin = pl.when(turned).then(-pl.col("teacher_margin")).otherwise("teacher_margin")
    return rows.with_columns(teacher_margin=margin)


def diameters_in_inches(rows):
    """Alpha, Bolto and Kern state inches, in the same column."""
    inches = [
        [
            d / 25.4 if maker in ("Alpha", "Bolto", "Kern") else d
            for d, maker in zip(*pair, strict=True)
        ]
        for pair in zip(rows["diameter"], rows["maker"], strict=True)
    ]
    return rows.with_columns(diameter=pl.Series(inches))


BUGS = [
    bug(
        "knots-and-cracks-of-two-firms",
        "images_timber_knots",
        "Two fifths of the boards have knots and cracks under each other's number. "
        "Mean IoU 0.62 offline and 0.85 by the right masks, in place of 0.98.",
        "annotations with other lists of classes",
        rows=masks_of_two_firms,
    ),
    bug(
        "mask-turned-the-other-way",
        "images_timber_knots",
        "Pictures are turned to the left and masks to the right. "
        "Loss 0.127 in place of 0.017, mean IoU 0.94 in place of 0.98.",
        "dims in another order for picture and mask",
        "mask.rot90(quarters, dims=(1, 2))",
        "mask.rot90(quarters, dims=(2, 1))",
    ),
    bug(
        "weights-not-their-inverse",
        "images_timber_knots",
        "Classes are weighted by their share, and the rare ones hardly count. "
        "Mean IoU 0.32 in place of 0.98.",
        "class weights upside down",
        "np.sqrt(counts.sum() / (CLASSES * counts))",
        "np.square(CLASSES * counts / counts.sum())",
    ),
    bug(
        "softmax-along-the-height",
        "images_timber_knots",
        "Scores are normalised along the height, not over classes, before the largest is taken. "
        "Mean IoU 0.25 in place of 0.98.",
        "softmax with the dim of another layout",
        "return output.argmax(dim=1).flatten(1)",
        "return output.softmax(dim=2).argmax(dim=1).flatten(1)",
    ),
    bug(
        "same-picture-twice",
        "images_parcels_change",
        "The newer picture is read twice, and there is no difference. "
        "ROC area 0.50 in place of 0.99.",
        "copied lines with one name left",
        'self.pictures(rows["before"]), "after"',
        'self.pictures(rows["after"]), "after"',
    ),
    bug(
        "pairs-turned-apart",
        "images_parcels_change",
        "Each picture of a pair is turned and mirrored by itself. Log loss 0.20 in place of 0.05.",
        "random augmentations called once for each input",
        "x = batch[name].rot90(quarters, dims=(2, 3))",
        "mirrored = bool(torch.rand((), generator=generator) < 0.5)\n"
        "            quarters = int(torch.randint(0, 4, (), generator=generator))\n"
        "            x = batch[name].rot90(quarters, dims=(2, 3))",
    ),
    bug(
        "newer-picture-for-both-years",
        "images_parcels_change",
        "Every second pair has the newer picture for both years. Log loss 0.31 in place of 0.05.",
        "archives that answer with the newest version",
        rows=pictures_of_the_same_year,
    ),
    bug(
        "years-in-reverse",
        "images_parcels_change",
        "Two fifths of the pairs have the newer picture first. "
        "Log loss 0.36 offline, 0.29 for pairs in order, in place of 0.06.",
        "files of several sources, sorted otherwise",
        rows=pictures_in_reverse,
    ),
    bug(
        "trays-from-the-other-end",
        "images_eggs_candled",
        "Every second tray's results are read from the other end. "
        "Average precision 0.24 offline, 0.54 by the right results, in place of 0.97.",
        "positions counted from two sides",
        rows=trays_read_from_the_other_end,
    ),
    bug(
        "marked-afterwards",
        "images_eggs_candled",
        "Eggs that were sorted out have a cross on their photo. "
        "Average precision 1.00 offline, 0.10 when served, in place of 0.96.",
        "marks of annotators in the pictures",
        rows=marked_photos,
    ),
    bug(
        "divided-twice",
        "images_eggs_candled",
        "Photos are divided by 255 a second time, and are almost the same for the network. "
        "Average precision 0.08 in place of 0.97.",
        "ToTensor and a division by hand",
        "photos / 255 - 0.45",
        "photos / 255 / 255 - 0.45",
    ),
    bug(
        "moved-by-half-a-photo",
        "images_eggs_candled",
        "Photos are moved by up to twelve pixels, and eggs wrap around the border. "
        "Average precision 0.68 in place of 0.97.",
        "a share for pixels, or pixels of another size",
        "torch.randint(-2, 3, (2,)",
        "torch.randint(-12, 13, (2,)",
    ),
    bug(
        "undeclared-is-free-of",
        "text_menu_allergens",
        "What is not declared is learned as free of the allergen. "
        "Loss 0.30 offline, 0.40 on declared labels, in place of 0.29.",
        "fillna(0) of labels",
        "declared = np.array(rows",
        "declared = np.nan_to_num(np.array(rows",
        '["allergens"].to_list(), dtype=float)',
        '["allergens"].to_list(), dtype=float))',
    ),
    bug(
        "allergens-of-the-dish-above",
        "text_menu_allergens",
        "Each dish has the allergens of the one below it in the sheet. Loss 0.68 in place of 0.29.",
        "one column of a sheet sorted or moved by itself",
        rows=allergens_of_the_dish_above,
    ),
    bug(
        "softmax-over-allergens",
        "text_menu_allergens",
        "Training takes the allergens for classes that exclude each other. "
        "Loss 0.51 in place of 0.29.",
        "CrossEntropyLoss for several labels",
        "    def predict(self, output):\n",
        "    def training_losses(self, output, batch):\n"
        "        target = torch.nan_to_num(batch[LABEL])\n"
        "        return -(target * output.log_softmax(dim=1)).sum(dim=1) / 5\n\n"
        "    def predict(self, output):\n",
    ),
    bug(
        "words-not-in-lower-case",
        "text_menu_allergens",
        "Rows are encoded word by word as written, though the vocabulary is in lower case. "
        "Loss 0.64 in place of 0.29.",
        "a normalisation in training's tokenizer alone",
        "for t in tokenize(dish)][:LENGTH]",
        "for t in dish.split()][:LENGTH]",
    ),
    bug(
        "second-step-cut-off",
        "text_steps_order",
        "Sequences are cut after ten tokens, where the second step begins. "
        "Accuracy 0.80 in place of 0.94.",
        "max_length of single sentences for pairs",
        "[CLS, *a, SEP, *b, SEP])[:LENGTH]",
        "[CLS, *a, SEP, *b, SEP])[:10]",
    ),
    bug(
        "steps-numbered",
        "text_steps_order",
        "Texts begin with the number that the step has in the manual. "
        "Log loss 0.00 offline, 3.08 when served, in place of 0.22.",
        "scraped lists with their numbers",
        rows=steps_numbered,
    ),
    bug(
        "words-in-any-order",
        "text_steps_order",
        "An augmentation shuffles the words of the whole sequence, of both steps. "
        "Log loss 0.69 in place of 0.24.",
        "easy data augmentation where the order matters",
        "    def build_model(self):\n",
        "    def augment(self, batch, generator):\n"
        "        order = torch.randperm(LENGTH - 1, generator=generator) + 1\n"
        '        tokens = batch["tokens"].clone()\n'
        "        tokens[:, 1:] = tokens[:, order.to(tokens.device)]\n"
        '        return {**batch, "tokens": tokens}\n\n'
        "    def build_model(self):\n",
    ),
    bug(
        "mirrored-pairs-with-their-label",
        "text_steps_order",
        "Each pair is added a second time with its steps exchanged, and keeps its label. "
        "Log loss 0.69 in place of 0.24.",
        "symmetric augmentation of a relation that is not symmetric",
        rows=mirrored_pairs,
    ),
    bug(
        "numbers-dropped",
        "text_rental_adverts",
        "The tokenizer keeps letters alone: the size of the flat is lost. "
        "Mean error 32 % in place of 18.",
        "[a-z]+ as a pattern of tokens",
        r're.findall(r"\d+(?:,\d+)?|[^\W\d]+", text.lower())',
        r're.findall(r"[^\W\d]+", text.lower())',
    ),
    bug(
        "decimal-commas-dropped",
        "text_rental_adverts",
        "Decimal commas are removed as if they parted thousands: 54,2 is 542. "
        "Mean error 24 % in place of 18.",
        "numbers of another locale",
        'float(w.replace(",", "."))',
        'float(w.replace(",", ""))',
    ),
    bug(
        "yearly-rents",
        "text_rental_adverts",
        "A third of the rents are by the year. Mean error 172 % of monthly rents, in place of 19.",
        "merged sources with other units",
        rows=yearly_rents,
    ),
    bug(
        "scaled-back-after-the-exponential",
        "text_rental_adverts",
        "The deviation is multiplied after the exponential, not before it. "
        "Mean error 55 % in place of 18.",
        "an inverse transform with its steps swapped",
        "return (output * std + mean).exp()",
        "return (output + mean).exp() * std",
    ),
    bug(
        "teacher-of-the-other-order",
        "retrieval_statutes_margin",
        "A third of the teacher's margins have the other sign. "
        "Error of the right margins 4.4 in place of 2.4.",
        "scores of a run with columns in another order",
        rows=teacher_of_the_other_order,
    ),
    bug(
        "vectors-of-length-one",
        "retrieval_statutes_margin",
        "Vectors have length one, and margins cannot reach those of the teacher. "
        "Error of margins 4.9 in place of 2.2.",
        "cosines where a teacher's raw scores are the target",
        "q = self.ask(self.pooled(question))\n",
        "q = nn.functional.normalize(self.ask(self.pooled(question)), dim=1)\n",
        "return (q * right).sum(dim=1) - (q * wrong).sum(dim=1)",
        "right, wrong = (nn.functional.normalize(v, dim=1) for v in (right, wrong))\n"
        "        return (q * right).sum(dim=1) - (q * wrong).sum(dim=1)",
    ),
    bug(
        "softmax-over-the-batch",
        "retrieval_statutes_margin",
        "Words' weights are normalised over the batch, not over the words of a text. "
        "Error of margins 5.6 in place of 2.2.",
        "softmax(dim=0)",
        "score.softmax(dim=1)",
        "score.softmax(dim=0)",
    ),
    bug(
        "question-for-the-other-paragraph",
        "retrieval_statutes_margin",
        "The other paragraph's tokens are read from the question. "
        "Error of margins 2.9 in place of 2.2.",
        "a name of the loop used wrongly",
        "for i, text in enumerate(rows[name]):",
        'for i, text in enumerate(rows[name if name != "other_paragraph" else "question"]):',
    ),
    bug(
        "label-stays-behind",
        "retrieval_screws_choice",
        "Articles are shown in another order, and the label is not moved along. "
        "Log loss 2.35 in place of 0.90.",
        "shuffled candidates with the label of before",
        "LABEL: order.argsort()[batch[LABEL]]",
        "LABEL: batch[LABEL]",
    ),
    bug(
        "label-moved-the-other-way",
        "retrieval_screws_choice",
        "The label is moved by the permutation, not by its inverse. "
        "Log loss 2.06 in place of 0.90.",
        "order for order.argsort()",
        "order.argsort()[batch[LABEL]]",
        "order[batch[LABEL]]",
    ),
    bug(
        "diameters-in-inches",
        "retrieval_screws_choice",
        "Three makers state diameters in inches. Log loss 1.33 in place of 0.90.",
        "units that differ by supplier",
        rows=diameters_in_inches,
    ),
    bug(
        "logarithms-on-one-side",
        "retrieval_screws_choice",
        "Sizes in the search are logarithms, those of articles are millimetres. "
        "Log loss 1.82 in place of 0.90.",
        "a transformation of one of two inputs that are compared",
        '"sizes": torch.tensor(np.log(sizes), dtype=torch.float32)',
        '"sizes": torch.tensor(sizes, dtype=torch.float32)',
    ),
]
