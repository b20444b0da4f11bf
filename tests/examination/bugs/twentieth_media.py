"""A twentieth list of bugs: real fixes from public projects, in tasks like those they were made in."""

import polars as pl

from examination.planted import bug


def corner_and_size(rows):
    """One drone's items come from a tool that writes corner and size, as COCO does."""
    theirs = [drone == "tern" for drone in rows["drone"]]
    items = []
    for found, sizes in zip(rows["items"].to_list(), theirs, strict=True):
        five = [found[i : i + 5] for i in range(0, len(found), 5)]
        if sizes:
            five = [[k, x, y, round(u - x, 1), round(v - y, 1)] for k, x, y, u, v in five]
        items.append([number for item in five for number in item])
    return rows.with_columns(items=pl.Series(items, dtype=pl.List(pl.Float32)))


def newest_first(rows):
    """The phone's mail program puts the answer above what it answers."""
    turned = pl.col("thread").str.split(" <mail> ").list.reverse().list.join(" <mail> ")
    theirs = pl.col("client") == "phone"
    return rows.with_columns(thread=pl.when(theirs).then(turned).otherwise(pl.col("thread")))


def arrivals_at_100_hertz(rows):
    """One network counted the samples of its arrivals before the records were thinned to 50 Hz."""
    double = pl.col("arrivals").list.eval(
        pl.when(pl.element() >= 0).then(pl.element() * 2).otherwise(pl.element())
    )
    theirs = pl.col("network") == "coast"
    return rows.with_columns(arrivals=pl.when(theirs).then(double).otherwise(pl.col("arrivals")))


def captions_of_the_next(rows):
    """The museum's list of captions lost its first line: each picture has the next one's caption."""
    moved = (
        pl.col("caption").shift(-1).over("camera", order_by="row_id").fill_null(pl.col("caption"))
    )
    return rows.with_columns(
        caption=pl.when(pl.col("camera") == "museum").then(moved).otherwise(pl.col("caption"))
    )


def reply_among_the_turns(rows):
    """The night desk's log is written after the reply, which is its last turn."""
    longer = pl.concat_str("context", "reply", separator=" | ")
    return rows.with_columns(
        context=pl.when(pl.col("desk") == "night").then(longer).otherwise(pl.col("context"))
    )


BUGS = [
    bug(
        # F1 0 while the loss falls to 0.646; 0.949 and 0.847 when healthy
        "first-class-is-background",
        "images_litter_ssd",
        "Classes are not moved up by one: bottles are taught as the background.",
        "forks of an SSD in PyTorch whose first class was confused with the background",
        "gather(1, index).long() + 1",
        "gather(1, index).long()",
    ),
    bug(
        # F1 0.071; 0.949 when healthy
        "centres-against-corners",
        "images_litter_ssd",
        "Anchors as centre and size are compared with boxes by corners.",
        "a YOLO of a computer-vision toolkit; the fix won 0.6 mAP",
        "iou(corners(anchors), items[..., 1:])",
        "iou(anchors, items[..., 1:])",
    ),
    bug(
        # F1 0.895, loss 0.761; 0.949 and 0.847 when healthy
        "variance-only-decoded",
        "images_litter_ssd",
        "Offsets are multiplied by the variances when decoded, but not divided when encoded.",
        "a reimplementation of SSD and RefineDet in TensorFlow",
        "return torch.cat([shift, grow], -1) / VARIANCE.to(boxes.device)",
        "return torch.cat([shift, grow], -1)",
    ),
    bug(
        # shows F1 0.375; 0.949 when healthy
        "corner-and-size",
        "images_litter_ssd",
        "One drone's boxes are corner and size, and are read as two corners.",
        "COCO's boxes read as those of Pascal VOC",
        rows=corner_and_size,
    ),
    bug(
        # mean IoU 0.905, on such masks; 0.955 when healthy
        "masks-interpolated",
        "images_courtyard_fcn",
        "Masks are resized with bilinear interpolation: between 7 and 23 lie 8, 11 and 21.",
        "loaders of segmentation projects that resize a mask by the default of OpenCV or Pillow",
        "mask.resize((SIDE, SIDE), Image.Resampling.NEAREST)",
        "mask.resize((SIDE, SIDE), Image.Resampling.BILINEAR)",
    ),
    bug(
        # shows mean IoU 0.884; 0.955 when healthy
        "unlabelled-is-the-first-class",
        "images_courtyard_fcn",
        "Pixels without a label become class 0 in place of being ignored.",
        "a DeepLab in PyTorch that set void to background; without it mean IoU rose",
        "TRAIN_ID = np.full(256, IGNORE, dtype=np.int64)",
        "TRAIN_ID = np.zeros(256, dtype=np.int64)",
    ),
    bug(
        # mean IoU 0.102; 0.955 when healthy
        "classes-not-last",
        "images_courtyard_fcn",
        "Logits [B, C, H, W] are reshaped to rows of C without moving the classes to the end.",
        "the pixel-wise loss of a distillation project; forum threads on view before cross entropy",
        "output.permute(0, 2, 3, 1).reshape(-1, len(NAMES))",
        "output.reshape(-1, len(NAMES))",
    ),
    bug(
        # mean IoU 0.889, log loss 0.130; 0.955 and 0.048 when healthy
        "mask-not-mirrored",
        "images_courtyard_fcn",
        "Augmentation mirrors the photo and not its mask.",
        "Keras generators of pictures and masks with different seeds; augmentation that hurts",
        "mask = torch.where(mirrored[:, None, None], batch[LABEL].flip(2), batch[LABEL])",
        "mask = batch[LABEL]",
    ),
    bug(
        "end-masked-as-padding",
        "text_store_sft",
        "Padding is left out of the loss by its number, which is that of the end: none is learned.",
        "the collator of language models where the padding token is the end token",
        "labels[i, len(asked) : len(text)] = torch.tensor(reply)",
        "labels[i, len(asked) : len(text)] = torch.tensor(reply)\n"
        "        labels[labels == PAD] = IGNORE_INDEX",
    ),
    bug(
        "shifted-twice",
        "text_store_sft",
        "Labels are moved by one in the loader and again in the loss: the next but one is learned.",
        "users of causal language models that shift labels by themselves",
        "labels[i, len(asked) : len(text)] = torch.tensor(reply)",
        "labels[i, len(asked) - 1 : len(text) - 1] = torch.tensor(reply)",
    ),
    bug(
        "prompt-in-the-loss",
        "text_store_sft",
        "The prompt counts in the loss, most of which is then about unpredictable lists.",
        "fine-tuning scripts whose labels are a copy of the input",
        "labels[i, len(asked) : len(text)] = torch.tensor(reply)",
        "labels[i, : len(text)] = torch.tensor(text)",
    ),
    bug(
        "one-ahead-in-sight",
        "text_store_sft",
        "The mask begins one diagonal too late: each token sees the one that it is to predict.",
        "causal masks with the wrong diagonal",
        "triu(diagonal=1)",
        "triu(diagonal=2)",
    ),
    bug(
        "cut-at-the-end",
        "text_threads_wish",
        "Long threads lose their end, where the customer's last word stands.",
        "tokenizers truncate on the right by default, in dialogue the newest words",
        "text.lower().split()[-MAX_LENGTH:]",
        "text.lower().split()[:MAX_LENGTH]",
    ),
    bug(
        # log loss 0.436, accuracy 0.822 after 150 steps; 0.074 and 0.990 when healthy
        "mask-inverted",
        "text_threads_wish",
        "The mask is the wrong way round: words attend to padding, and to no word.",
        "an attention head over labels and one over pixels, both fixed by inverting the mask",
        "attention_mask[:, None, None] == 0, -1e4",
        "attention_mask[:, None, None] == 1, -1e4",
    ),
    bug(
        # shows log loss 0.554, accuracy 0.785 after 150 steps; 0.074 and 0.990 when healthy
        "newest-first",
        "text_threads_wish",
        "The threads of one mail program have the newest mail first, and lose it when cut.",
        "exports of mail with the answer above the quotation",
        rows=newest_first,
    ),
    bug(
        "blank-is-a-letter",
        "odd_morse_ctc",
        "Letters are numbered from 0, which is the blank: one letter is never written.",
        "CTC toolkits in which blank and first label had one index",
        "ALPHABET.index(c) + 1",
        "ALPHABET.index(c)",
    ),
    bug(
        "lengths-divided-twice",
        "odd_morse_ctc",
        "The lengths are divided by 8 where the convolutions divide by 4: half of each call is left out.",
        "recognisers of speech whose lengths are divided by a stride that has changed",
        "batch[LABEL][:, -1] // STRIDE",
        "batch[LABEL][:, -1] // STRIDE // 2",
    ),
    bug(
        "softmax-over-time",
        "odd_morse_ctc",
        "The log-softmax runs over time in place of the letters.",
        "CTC loss under forum questions: log_softmax(1) of a batch-first network",
        "output.log_softmax(dim=-1)",
        "output.log_softmax(dim=1)",
    ),
    bug(
        "rate-ignored",
        "odd_morse_ctc",
        "Recordings are not brought to one rate: the bins mean other pitches and times.",
        "a voice project whose spectrograms took the default rate; songs loaded at their own rate",
        "log_spectrum(resample(sound.to_numpy().astype(np.float64), rate))",
        "log_spectrum(sound.to_numpy().astype(np.float64))",
    ),
    bug(
        "blanks-removed-first",
        "odd_morse_ctc",
        "Blanks are removed before repeats are collapsed: doubled letters are read once.",
        "beam search of a speech engine that merged repeated letters",
        "[k for k, _ in groupby(path) if k != BLANK]",
        "[k for k, _ in groupby(c for c in path if c != BLANK)]",
    ),
    bug(
        "arrivals-not-moved",
        "odd_quakes_phasenet",
        "Augmentation moves the window and not the arrivals in it.",
        "pickers of seismic phases trained with random windows",
        "LABEL: torch.where(inside, moved, -1)",
        "LABEL: arrivals",
    ),
    bug(
        # loss 53.7, F1 of S 0.846 after 150 steps; 1.4 and 0.911 when healthy
        "softmax-over-time",
        "odd_quakes_phasenet",
        "The softmax of the loss runs over time in place of the phases.",
        "reports of dim=-1 against dim=1 in reimplementations of one-dimensional U-Nets",
        "F.log_softmax(output, dim=1)",
        "F.log_softmax(output, dim=-1)",
    ),
    bug(
        # F1 of S 0.898, of P 0.828, loss 1.197; 0.935, 0.848 and 1.071 when healthy
        "no-arrival-is-the-first-sample",
        "odd_quakes_phasenet",
        "The -1 of a missing arrival is read as a time: a bump at the start of the window.",
        "labellers of seismic benchmarks given traces without picks",
        "    bumps = bumps * (arrivals >= 0)[..., None]\n",
        "",
    ),
    bug(
        # shows F1 of S 0.691, of P 0.500 after 150 steps; 0.911 and 0.736 when healthy
        "arrivals-at-100-hertz",
        "odd_quakes_phasenet",
        "One network's arrivals are samples at 100 Hz, its records have 50.",
        "questions on picks that came back at another rate than the waveform's",
        rows=arrivals_at_100_hertz,
    ),
    bug(
        # MRR 0.673, loss 1.797 after 200 steps; 0.896 and 0.510 when healthy
        "end-token-cut-off",
        "retrieval_toys_openclip",
        "Long captions lose their end token, and are read at whatever word has the highest number.",
        "tokenizers of open reimplementations of CLIP that cut after adding the end",
        "tokens[:CONTEXT]\n                tokens[-1] = eot\n",
        "tokens[:CONTEXT]\n",
    ),
    bug(
        # MRR 0.823, loss 0.889 after 200 steps; 0.896 and 0.510 when healthy
        "not-normalised",
        "retrieval_toys_openclip",
        "The vectors are multiplied by the scale without being brought to length 1.",
        "a training script for CLIP whose training and logged loss lacked the normalisation",
        "F.normalize(self.visual(image), dim=-1)",
        "self.visual(image)",
        "F.normalize(self.textual(text), dim=-1)",
        "self.textual(text)",
    ),
    bug(
        # MRR 0.882, loss 0.590 after 200 steps; 0.896 and 0.510 when healthy
        "left-and-right-mirrored",
        "retrieval_toys_openclip",
        "Augmentation mirrors half of the pictures, and the captions speak of left and right.",
        "training on captions with the flips of image classification",
        'image = batch["image"]\n',
        'image = batch["image"]\n'
        "        flip = torch.rand(len(image), 1, 1, 1, generator=generator) < 0.5\n"
        "        image = torch.where(flip, image.flip(3), image)\n",
    ),
    bug(
        "captions-of-the-next",
        "retrieval_toys_openclip",
        "The captions of one camera are those of the next picture.",
        "lists of captions joined to pictures by line",
        rows=captions_of_the_next,
    ),
    bug(
        "latest-turns-cut-off",
        "retrieval_inn_polyencoder",
        "Long dialogues keep their oldest words: the question to be answered is cut off.",
        "requests for truncation on the left: dialogue needs its latest turns",
        "ids[-CONTEXT_LENGTH:]",
        "ids[:CONTEXT_LENGTH]",
    ),
    bug(
        # MRR 0.435 after 200 steps; 0.948 when healthy
        "softmax-over-the-queries",
        "retrieval_inn_polyencoder",
        "The attention's softmax runs over the queries in place of the values.",
        "attention in a recurrent network for music, fixed by the softmax's dimension",
        "F.softmax(weights, dim=-1)",
        "F.softmax(weights, dim=1)",
    ),
    bug(
        # MRR 0.909, loss 0.482 after 200 steps; 0.948 and 0.404 when healthy
        "equal-replies-as-negatives",
        "retrieval_inn_polyencoder",
        "The same words under another dialogue count as a wrong reply, in loss and in metric.",
        "in-batch negatives of sentence encoders; a sampler without duplicates was added for them",
        'return logits.masked_fill(same, float("-inf"))',
        "return logits",
    ),
    bug(
        "reply-among-the-turns",
        "retrieval_inn_polyencoder",
        "The dialogues of one desk end with the reply that is to be found.",
        "histories of assistants that are saved after the answer",
        rows=reply_among_the_turns,
    ),
]
