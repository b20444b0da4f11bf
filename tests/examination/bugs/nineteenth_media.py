"""A nineteenth list of bugs: slips with pictures, signals, sequences, graphs and pairs."""

import polars as pl

from examination.planted import bug


def voltage_between_phases(rows):
    """The register of two substations gives the voltage between phases, not that of one."""
    line = pl.col("site").is_in(["oak", "hay"])
    rated = pl.when(line).then(pl.col("rated_volts") * 3**0.5).otherwise(pl.col("rated_volts"))
    return rows.with_columns(rated_volts=rated.round(0))


def written_as_rna(rows):
    """The windows of one organism come from a database that writes U for T."""
    rna = pl.col("window").str.replace_all("T", "U").str.replace_all("t", "u")
    theirs = pl.col("organism") == "e_coli"
    return rows.with_columns(window=pl.when(theirs).then(rna).otherwise(pl.col("window")))


def places_of_the_pen(rows):
    """The tablet's app stores where the pen is, not how far it went."""
    absolute = pl.col("app") == "tablet"
    return rows.with_columns(
        pl.when(absolute).then(pl.col(name).list.eval(pl.element().cum_sum())).otherwise(name)
        for name in ("right", "up")
    )


def step_of_the_next_state(rows):
    """Half of the sentences were logged after the step was taken."""
    late = pl.col("sentence").str.slice(1).cast(pl.Int64) % 2 == 0
    after = pl.col("step").shift(-1).over("sentence", order_by="row_id").fill_null(pl.col("step"))
    return rows.with_columns(step=pl.when(late).then(after).otherwise(pl.col("step")))


def hums_in_hertz(rows):
    """Singers of the newer app have their pitch in hertz."""
    newer = pl.col("singer").str.slice(1).cast(pl.Int64) % 2 == 0
    hertz = pl.col("hum").list.eval(440 * 2 ** ((pl.element() - 69) / 12))
    return rows.with_columns(hum=pl.when(newer).then(hertz).otherwise(pl.col("hum")))


def cameras_exchanged(rows):
    """On the southern rig the left camera is recorded as the right one."""
    south = pl.col("rig") == "south"
    return rows.with_columns(
        left=pl.when(south).then(pl.col("right")).otherwise(pl.col("left")),
        right=pl.when(south).then(pl.col("left")).otherwise(pl.col("right")),
    )


def handheld_in_pixels(rows):
    """The handheld device's software exports depths in pixels."""
    depth = [
        [d if d < 0 else round(d / unit, 1) for d in depths] if device == "handheld" else depths
        for depths, unit, device in rows.select("surface_um", "um_per_pixel", "device").iter_rows()
    ]
    return rows.with_columns(surface_um=pl.Series(depth, dtype=pl.List(pl.Float32)))


def loads_in_watts(rows):
    """The loads of one utility are in watts."""
    watts = pl.col("kw").list.eval(pl.element() * 1000)
    return rows.with_columns(
        kw=pl.when(pl.col("utility") == "volta").then(watts).otherwise(pl.col("kw"))
    )


def nodes_counted_from_one(rows):
    """The lines of one utility come from a program that counts from one."""
    theirs = pl.col("utility") == "amp"
    return rows.with_columns(
        pl.when(theirs).then(pl.col(end).list.eval(pl.element() + 1)).otherwise(pl.col(end))
        for end in ("tail", "head")
    )


BUGS = [
    bug(
        # F1 0.712, log loss 0.626; 0.895 and 0.338 when healthy
        "each-wave-standardised",
        "odd_grid_faults_fft",
        "Each wave is divided by its own deviation, so that a long sag is as large as a swell.",
        "per-sample z-scores copied from ECG notebooks",
        "wave = volts / peak[:, None]  #",
        "wave = (volts - volts.mean(1, keepdims=True)) / volts.std(1, keepdims=True)  #",
    ),
    bug(
        # F1 0.216, log loss 6.85; 0.895 and 0.338 when healthy
        "softmax-before-cross-entropy",
        "odd_grid_faults_fft",
        "The network ends in a softmax, and the loss applies another.",
        "PyTorch forum: CrossEntropyLoss takes logits",
        "return self.classifier(torch.cat([h.amax(-1), h.mean(-1), s], dim=1))",
        "return self.classifier(torch.cat([h.amax(-1), h.mean(-1), s], dim=1)).softmax(dim=1)",
        'return F.cross_entropy(output, batch[LABEL], reduction="none")',
        'return F.cross_entropy(output, batch[LABEL], reduction="none")\n\n'
        "    def predict(self, output):\n        return output",
    ),
    bug(
        # F1 0.833, log loss 0.529, and shows 0.773 and 0.607; 0.895 and 0.338 when healthy
        "voltage-between-phases",
        "odd_grid_faults_fft",
        "The rated voltage of two substations is that between phases, 1.73 times that of a phase.",
        "two registers of a utility",
        rows=voltage_between_phases,
    ),
    bug(
        # F1 0.078, log loss 1.675; 0.895 and 0.338 when healthy
        "rate-of-adam-for-sgd",
        "odd_grid_faults_fft",
        "The optimizer is SGD, and the learning rate that of Adam.",
        "CS231n: rates do not carry over from one optimizer to another",
        "optimizer = { learning_rate = 3e-3 }",
        'optimizer = { name = "sgd", learning_rate = 1e-3 }',
    ),
    bug(
        # precision 0.844, log loss 0.382; 0.875 and 0.309 when healthy
        "reversed-not-complemented",
        "odd_promoters_dna",
        "The other strand is read backwards but not complemented.",
        "issues of genomics loaders: reverse in place of reverse complement",
        "forward.flip(1, 2)",
        "forward.flip(2)",
    ),
    bug(
        # precision 0.808, log loss 0.438; 0.875 and 0.309 when healthy
        "bases-reshaped",
        "odd_promoters_dna",
        "One-hot bases [L, 4] are reshaped to [4, L], which mixes places and bases.",
        "PyTorch forum: view in place of transpose before Conv1d",
        "dna.transpose(1, 2)  # [B, 4, L]",
        "dna.reshape(len(dna), 4, LENGTH)",
    ),
    bug(
        # precision 0.409, log loss 0.693; 0.875 and 0.309 when healthy
        "sigmoid-twice",
        "odd_promoters_dna",
        "The network answers a probability, to which the loss applies the sigmoid again.",
        "Keras's from_logits; BCEWithLogitsLoss after nn.Sigmoid",
        "return both.amax(dim=1, keepdim=True)",
        "return both.amax(dim=1, keepdim=True).sigmoid()",
    ),
    bug(
        # log loss 0.339, and shows 0.384, precision 0.837; 0.309 and 0.875 when healthy
        "written-as-rna",
        "odd_promoters_dna",
        "The windows of one organism are written with U for T, which counts as an unread base.",
        "sequences from Rfam beside those from GenBank",
        rows=written_as_rna,
    ),
    bug(
        # precision 0.536, log loss 0.656; 0.875 and 0.309 when healthy
        "motifs-frozen",
        "odd_promoters_dna",
        "The motifs are frozen, as when they were pretrained; now they stay random.",
        "requires_grad = False left over from fine-tuning",
        "self.motifs = nn.Conv1d(4, filters, 8, padding=3)",
        "self.motifs = nn.Conv1d(4, filters, 8, padding=3).requires_grad_(False)",
    ),
    bug(
        # accuracy 0.120, log loss 2.093; 0.996 and 0.022 when healthy
        "order-not-restored",
        "odd_sketches_lstm",
        "The batch is sorted by length for packing, and stays sorted while the labels do not.",
        "PyTorch forum: pack_padded_sequence and the order of the batch",
        "h = h[order.argsort()]",
        "h = h",
    ),
    bug(
        # accuracy 0.813, log loss 0.395; 0.996 and 0.022 when healthy
        "arrows-mirrored",
        "odd_sketches_lstm",
        "Augmentation mirrors sketches, and the arrow to the left keeps its label.",
        "flips on MNIST's 6 and 9, and on traffic signs",
        "points[:, :, :2] *= size",
        "points[:, :, :2] *= size * (torch.rand(size.shape, generator=generator) - 0.5).sign()",
    ),
    bug(
        # accuracy 0.862, log loss 0.337; 0.996 and 0.022 when healthy
        "only-the-first-points",
        "odd_sketches_lstm",
        "Sketches are cut after ten points, before most signs are told apart.",
        "maximal lengths copied from another dataset",
        "MAX_POINTS = 64",
        "MAX_POINTS = 10",
    ),
    bug(
        # log loss 0.184, and shows 0.220, accuracy 0.929; 0.022 and 0.996 when healthy
        "places-for-offsets",
        "odd_sketches_lstm",
        "One app stores the pen's places in place of its offsets.",
        "Quick, Draw!: raw drawings among those of stroke-3",
        rows=places_of_the_pen,
    ),
    bug(
        # accuracy 0.742, log loss 0.659; 0.820 and 0.376 when healthy
        "i-and-q-not-in-turn",
        "odd_radio_modulation",
        "Samples I, Q, I, Q are read as all of I and then all of Q.",
        "reshape of interleaved IQ files of GNU Radio",
        ".reshape(-1, N, 2)\n        iq = iq.transpose(0, 2, 1)  # I and Q become channels",
        ".reshape(-1, 2, N)",
    ),
    bug(
        # shows accuracy 0.824; served alone all classes are 1; loss 4.99, 0.376 when healthy
        "softmax-over-the-batch",
        "odd_radio_modulation",
        "The softmax runs over the batch in place of the classes.",
        "nn.LogSoftmax(dim=0)",
        ".log_softmax(dim=1)",
        ".log_softmax(dim=0)",
    ),
    bug(
        # accuracy 0.673, log loss 0.677; 0.820 and 0.376 when healthy
        "half-a-rotation",
        "odd_radio_modulation",
        "The augmentation's second row repeats the first's functions: the plane is not turned.",
        "rotation matrices copied line by line",
        "i * angle.sin() + q * angle.cos()",
        "i * angle.cos() + q * angle.sin()",
    ),
    bug(
        # accuracy 0.652, log loss 0.560; 0.820 and 0.376 when healthy
        "share-to-keep",
        "odd_radio_modulation",
        "The dropout is given the share to keep, which is here the share to drop.",
        "TensorFlow 1's keep_prob, ported to PyTorch",
        "nn.Dropout(0.2)",
        "nn.Dropout(0.8)",
    ),
    bug(
        # accuracy 0.899, log loss 0.196; 0.987 and 0.030 when healthy
        "bottom-of-the-stack",
        "text_transitions_parser",
        "The window is taken from the bottom of the stack, not from its top.",
        "CS224n, assignment 2: stack[:3] for stack[-3:]",
        "top = ([NULL] * N + list(stack))[-N:]",
        "top = (list(stack) + [NULL] * N)[:N]",
    ),
    bug(
        # accuracy 0.973, log loss 0.073; 0.987 and 0.030 when healthy
        "tags-numbered-as-words",
        "text_transitions_parser",
        "Tags are looked up among the words, where they are all unknown.",
        "two vocabularies with names that are alike",
        "tags.append([tag2id.get(t, unk) for t in seen])",
        "tags.append([word2id.get(t, unk) for t in seen])",
    ),
    bug(
        # accuracy 0.752, log loss 0.433; 0.987 and 0.030 when healthy
        "step-after-this",
        "text_transitions_parser",
        "The log of half of the sentences has the step after the state's own.",
        "oracles that record the step before or after they take it",
        rows=step_of_the_next_state,
    ),
    bug(
        # first found 0.762, loss 3.32; 0.959 and 0.195 when healthy
        "times-the-temperature",
        "retrieval_hums_melodies",
        "Cosines are multiplied by the temperature in place of being divided.",
        "issues of CLIP reimplementations: logit_scale against temperature",
        "torch.stack([h / scale, m], dim=1)",
        "torch.stack([h * scale, m], dim=1)",
    ),
    bug(
        # first found 0.938, loss 0.255; 0.959 and 0.195 when healthy
        "key-of-the-singer",
        "retrieval_hums_melodies",
        "Pitches are relative to middle C, so that every singer hums in an own key.",
        "query by humming without transposition",
        "((x - np.median(x)) / 6.0)",
        "((x - 60.0) / 6.0)",
    ),
    bug(
        # loss 0.213, and shows 0.278, first found 0.943; 0.195 and 0.959 when healthy
        "hums-in-hertz",
        "retrieval_hums_melodies",
        "The pitch tracker of half of the singers answers hertz, not semitones.",
        "librosa.pyin against its hz_to_midi",
        rows=hums_in_hertz,
    ),
    bug(
        # shows 0.735 first found, loss 0.561; is 0.957 and 0.198
        "other-hums-as-negatives",
        "retrieval_hums_melodies",
        "Other hums of one song push the song's own melody away.",
        "in-batch negatives that are positives: sentence-transformers' NO_DUPLICATES",
        "return logits.masked_fill(same, -torch.inf)",
        "return logits",
    ),
    bug(
        # shows 0.983 first found, loss 0.109; is 0.959 and 0.195 for new songs
        "songs-in-both-splits",
        "retrieval_hums_melodies",
        "Rows are divided, not songs: a test's melodies were trained on with other singers.",
        "random splits of pairs; d2l.ai and cover-song identification",
        'group = "song"\n',
        "",
        'meta = ["singer"]',
        'meta = ["singer", "song"]',
        'method = "group"',
        'method = "hash"',
    ),
    bug(
        # shows a perplexity of 1.034 by looking ahead; 1.212 when healthy
        "sees-the-next-word",
        "text_knitting_mingpt",
        "The causal mask begins one diagonal too high: each word sees the one it should predict.",
        "torch.tril with diagonal=1",
        "torch.tril(torch.ones(config.block_size, config.block_size))",
        "torch.tril(torch.ones(config.block_size, config.block_size), diagonal=1)",
    ),
    bug(
        # shows a perplexity of 1.153 by looking ahead, 1.212 when healthy
        "softmax-over-queries",
        "text_knitting_mingpt",
        "Attention is normalised over the queries in place of the keys.",
        "softmax with the wrong dim in own attention",
        "F.softmax(att, dim=-1)",
        "F.softmax(att, dim=-2)",
    ),
    bug(
        # shows a perplexity of 1.152, is 1.218; 1.212 when healthy
        "padding-predicted",
        "text_knitting_mingpt",
        "Padding is a target like any word, and its ease lowers the perplexity.",
        "Hugging Face course: labels without -100",
        "targets = torch.full((rows.height, size), IGNORE)",
        "targets = torch.full((rows.height, size), PAD)",
    ),
    bug(
        # shows a perplexity of 1.011, is 2,559; 1.212 when healthy
        "words-predict-themselves",
        "text_knitting_mingpt",
        "The targets are not shifted: each word predicts itself.",
        "nanoGPT issues; labels shifted by the model or not at all",
        "targets[i, : len(ids) - 1] = ids[1:]",
        "targets[i, : len(ids) - 1] = ids[:-1]",
    ),
    bug(
        # shows a loss of 0.071, is 3.877 once later letters are hidden; 0.282 when healthy
        "decoder-sees-the-future",
        "text_romanise_transformer",
        "The decoder has no causal mask, and copies the letters to come.",
        "nn.Transformer without tgt_mask",
        "tgt_mask=future,",
        "tgt_mask=None,",
    ),
    bug(
        # loss 2.770, letters right 0.238; 0.282 and 0.909 when healthy
        "memory-mask-inverted",
        "text_romanise_transformer",
        "The decoder attends to the padding of the word and not to its kana.",
        "key_padding_mask: True means ignore",
        "memory_key_padding_mask=src == PAD_IDX",
        "memory_key_padding_mask=src != PAD_IDX",
    ),
    bug(
        # loss 0.807, letters right 0.681; 0.282 and 0.909 when healthy
        "positions-not-added",
        "text_romanise_transformer",
        "The positions are computed and not added.",
        "PyTorch forum: positional encoding that returns its input",
        "token_embedding + self.pos_embedding[:, : token_embedding.size(1)]",
        "token_embedding",
    ),
    bug(
        # loss 1.878, letters right 0.391; 0.282 and 0.909 when healthy
        "rate-ten-times-too-high",
        "text_romanise_transformer",
        "The learning rate is ten times what a transformer of this kind stands.",
        "post-norm transformers with the rate of a small CNN",
        "learning_rate = 2e-3",
        "learning_rate = 2e-2",
    ),
    bug(
        # error 0.200 pixels; 0.137 when healthy
        "mirrored-left-to-right",
        "images_stereo_shift",
        "Both pictures are mirrored from left to right but not exchanged, which turns the shift.",
        "Monodepth: flips need the cameras swapped",
        "left = torch.where(flip, left.flip(-2), left)",
        "left = torch.where(flip, left.flip(-1), left)",
        "right = torch.where(flip, right.flip(-2), right)",
        "right = torch.where(flip, right.flip(-1), right)",
    ),
    bug(
        # error 0.925 pixels; 0.137 when healthy
        "correlated-the-other-way",
        "images_stereo_shift",
        "The correlation moves the right picture to the other side.",
        "cost volumes of PSMNet with left and right exchanged",
        "(a[..., d:] * b[..., : W - d])",
        "(a[..., : W - d] * b[..., d:])",
    ),
    bug(
        # error 0.173 pixels; 0.137 when healthy
        "grey-values-wrap",
        "images_stereo_shift",
        "128 is taken off while the pixels are bytes, so that dark ones become bright.",
        "uint8 arithmetic of numpy",
        "x = x.astype(np.float32) - 128",
        "x = (x - np.uint8(128)).astype(np.float32)",
    ),
    bug(
        # error 0.201 pixels, and shows 0.538; 0.137 when healthy
        "cables-exchanged",
        "images_stereo_shift",
        "On one rig left and right were exchanged.",
        "stereo rigs whose cables were swapped after a repair",
        rows=cameras_exchanged,
    ),
    bug(
        # keeps the checkpoint with 0.73 bad pixels (the first) over that with 0.005
        "most-bad-pixels-win",
        "images_stereo_shift",
        "The share of bad pixels, by which checkpoints are kept, is to be large.",
        "ModelCheckpoint with mode max for an error",
        '{"bad_1px": "minimize"}',
        '{"bad_1px": "maximize"}',
    ),
    bug(
        # error 35.7 micrometres; 2.7 when healthy
        "softmax-along-the-surface",
        "images_retina_surface",
        "The softmax runs along the surface in place of the depth.",
        "soft argmax over the wrong axis",
        "p = logits.softmax(dim=1)",
        "p = logits.softmax(dim=2)",
    ),
    bug(
        # error 4.6 micrometres; 2.7 when healthy
        "surface-not-mirrored",
        "images_retina_surface",
        "The scan is mirrored, and the surface's depths keep their order.",
        "dense labels left out of the augmentation",
        "surface = torch.where(flip[:, None], surface.flip(1), surface)",
        "surface = torch.where(flip[:, None], surface, surface)",
    ),
    bug(
        # error 3.0 micrometres, and shows 17.1; 2.7 when healthy
        "unmarked-columns-counted",
        "images_retina_surface",
        "Columns that nobody marked count as a surface at -1.",
        "fill values in the loss: missing mask",
        "marked = batch[LABEL] != NOT_MARKED",
        "marked = batch[LABEL] >= NOT_MARKED",
    ),
    bug(
        # error 4.6 micrometres, and shows 28.0; 2.7 when healthy
        "handheld-in-pixels",
        "images_retina_surface",
        "The handheld device's surfaces are in pixels, not micrometres.",
        "exports of OCT devices in their own units",
        rows=handheld_in_pixels,
    ),
    bug(
        # error 20.1 micrometres; 2.7 when healthy
        "statistics-that-stand-still",
        "images_retina_surface",
        "The decay of another library is taken for a momentum: running statistics hardly move.",
        "TensorFlow's 0.999 ported to PyTorch as 0.001",
        "nn.BatchNorm2d(o)]",
        "nn.BatchNorm2d(o, momentum=0.001)]",
    ),
    bug(
        # accuracy 0.053, log loss 1.610; 0.848 and 0.421 when healthy
        "nearest-is-least-likely",
        "images_symbols_protonet",
        "Distances are the logits without their sign: training drives the right symbol away.",
        "prototypical networks: cross-entropy of +distance",
        "return -distance / math.sqrt(z_query.size(-1))",
        "return distance / math.sqrt(z_query.size(-1))",
    ),
    bug(
        # accuracy 0.190, log loss 1.609; 0.848 and 0.421 when healthy
        "shots-before-ways",
        "images_symbols_protonet",
        "Supports are viewed as shots of ways, so that prototypes mix symbols.",
        "few-shot loaders: view of a tensor sorted by class",
        ".view(b, WAYS, SHOTS, -1)\n        prototypes = z.mean(dim=2)",
        ".view(b, SHOTS, WAYS, -1)\n        prototypes = z.mean(dim=1)",
    ),
    bug(
        # accuracy 0.740, log loss 1.350; 0.848 and 0.421 when healthy
        "match-not-dealt",
        "images_symbols_protonet",
        "The five symbols are dealt anew, and the match still names the old place.",
        "augmentation that permutes candidates but not the answer",
        "match = (order == match[:, None]).int().argmax(dim=1)",
        "match = order.gather(1, match[:, None]).squeeze(1)",
    ),
    bug(
        # shows a loss of 0.002, is 1.325 on what was hidden; 0.188 when healthy
        "visible-patches-scored",
        "images_cells_simmim",
        "The error is that of the patches which the model saw.",
        "MAE reimplementations: mask of 0 for what is kept",
        'error[batch["mask"]]',
        'error[~batch["mask"]]',
    ),
    bug(
        # shows a loss of 0.002, is 1.383 on what was hidden; 0.188 when healthy
        "nothing-is-masked",
        "images_cells_simmim",
        "The masked patches are never replaced by the token: the network copies them.",
        "masked_fill without assignment",
        "x = torch.where(mask[..., None], self.mask_token, x)",
        "torch.where(mask[..., None], self.mask_token, x)",
    ),
    bug(
        # loss 0.691; 0.188 when healthy
        "patches-without-a-place",
        "images_cells_simmim",
        "Position embeddings are made and not added.",
        "ViT reimplementations",
        "x = x + self.pos_emb\n        for",
        "for",
    ),
    bug(
        # error 0.249 kW, and shows 0.274; 0.226 when healthy
        "nodes-counted-from-one",
        "odd_feeders_gcn",
        "One utility counts its nodes from one: each line joins the neighbours of its houses.",
        "edge lists from MATLAB and R",
        rows=nodes_counted_from_one,
    ),
    bug(
        # error 2.062 kW; 0.226 when healthy
        "answers-in-logarithms",
        "odd_feeders_gcn",
        "The logarithm of the power is served and measured as if it were the power.",
        "Kaggle: expm1 forgotten before the submission",
        '(output * self.fitted["std"] + self.fitted["mean"]).exp()',
        'output * self.fitted["std"] + self.fitted["mean"]',
    ),
    bug(
        # error 0.458 kW, and shows 0.401; 0.226 when healthy
        "loads-in-watts",
        "odd_feeders_gcn",
        "One utility's loads are in watts.",
        "merged smart-meter exports",
        rows=loads_in_watts,
    ),
    bug(
        # error 0.665 kW; 0.226 when healthy
        "nothing-below-the-mean",
        "odd_feeders_gcn",
        "The last layer ends in a ReLU, and no standardised answer can be negative.",
        "PyTorch forum: activation after the last layer of a regression",
        "nn.Linear(48, 1))",
        "nn.Linear(48, 1), nn.ReLU())",
    ),
    bug(
        # loss 0.916; 0.079 when healthy
        "no-straight-through",
        "odd_spectra_vqvae",
        "The reconstruction's gradients stop at the codes: the encoder learns the commitment only.",
        "VQ-VAE reimplementations without z + (q - z).detach()",
        "return z + (q - z).detach(), codebook_loss",
        "return q.detach(), codebook_loss",
    ),
    bug(
        # loss 0.112; 0.079 when healthy
        "codebook-never-learns",
        "odd_spectra_vqvae",
        "The code is detached in both terms, so that the codebook stays as it was drawn.",
        "VQ-VAE reimplementations: detach on the wrong side",
        "codebook_loss = (q - z.detach())",
        "codebook_loss = (q.detach() - z)",
    ),
    bug(
        # shows a loss of 0.112; served one by one every spectrum is zero
        "statistics-of-the-call",
        "odd_spectra_vqvae",
        "Spectra are standardised by the rows that happen to be encoded with them.",
        "axis=0 for axis=1; at serving each row comes alone and becomes zero",
        "counts.mean(axis=1, keepdims=True)",
        "counts.mean(axis=0, keepdims=True)",
        "counts.std(axis=1, keepdims=True)",
        "counts.std(axis=0, keepdims=True)",
    ),
    bug(
        # loss 0.940; 0.079 when healthy
        "farthest-code",
        "odd_spectra_vqvae",
        "The farthest code is taken in place of the nearest.",
        "argmax of distances that were similarities before",
        "distance.argmin(dim=-1)",
        "distance.argmax(dim=-1)",
    ),
]
