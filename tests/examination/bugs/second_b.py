"""A second list of bugs, in pictures, texts, retrieval and models that generate."""

import numpy as np
import polars as pl

from examination.planted import bug


def marked_by_its_scanner(rows):
    """Each kind of picture was taken with another device, which leaves a grey in one corner."""
    grey = {"disc": 40, "square": 100, "cross": 160, "stripe": 220}
    pictures = [
        [grey[kind]] * 6 + list(picture[6:])
        for picture, kind in rows.select("rgb", "shape").iter_rows()
    ]
    return rows.with_columns(rgb=pl.Series(pictures, dtype=pl.List(pl.UInt8)))


def partly_labelled(rows):
    """Half of what is positive was never labelled."""
    skipped = np.random.default_rng(0).random(rows.height) < 0.5
    hidden = pl.Series(skipped & (rows["sentiment"].to_numpy() == 1))
    return rows.with_columns(sentiment=pl.when(hidden).then(None).otherwise(pl.col("sentiment")))


def negatives_of_another_kind(rows):
    """Negatives come from a list of release notes, all of one form."""
    return rows.with_columns(
        negative=pl.format("version {} released with minor changes", pl.col("row_id") % 40)
    )


def body_with_its_summary(rows):
    return rows.with_columns(body=pl.format("{} {}", "summary", "body"))


BUGS = [
    bug(
        "turned-upside-down",
        "images_lenet",
        "Augmentation turns half of the digits by half a turn: a six is then taught as a nine, and a nine as a six.",
        "RandomRotation(180) and flips copied from photographs to digits and letters",
        "    def build_model(self):\n        return LeNet()",
        "    def augment(self, batch, generator):\n"
        '        turn = torch.rand(len(batch["image"]), generator=generator) < 0.5\n'
        '        image = torch.where(turn[:, None, None, None], batch["image"].flip(2, 3), batch["image"])\n'
        '        return {**batch, "image": image}\n\n'
        "    def build_model(self):\n        return LeNet()",
    ),
    bug(
        "mirrored-without-its-reading",
        "images_gauge_regression",
        "Augmentation mirrors half of the dials and leaves their readings as they were.",
        "steering angles and key points under RandomHorizontalFlip",
        "    def build_model(self):\n        return Reader()",
        "    def augment(self, batch, generator):\n"
        '        flip = torch.rand(len(batch["photo"]), generator=generator) < 0.5\n'
        '        photo = torch.where(flip[:, None, None, None], batch["photo"].flip(3), batch["photo"])\n'
        '        return {**batch, "photo": photo}\n\n'
        "    def build_model(self):\n        return Reader()",
    ),
    bug(
        "statistics-too-slow",
        "images_separable_png",
        "Batch norm's momentum is that of another framework: running statistics hardly leave their start.",
        "momentum=0.999 of Keras turned around for PyTorch and kept for a short training",
        "nn.BatchNorm2d(cout)",
        "nn.BatchNorm2d(cout, momentum=0.001)",
    ),
    bug(
        "blocks-in-a-plain-list",
        "images_vit_einsum",
        "The blocks lie in a Python list: no optimiser, no checkpoint and no device knows of them.",
        "list for nn.ModuleList, the PyTorch forum's evergreen",
        "nn.ModuleList([nn.ModuleList([Attention(dim, heads, 16), FeedForward(dim, dim * 2)]) for _ in range(depth)])",
        "[(Attention(dim, heads, 16), FeedForward(dim, dim * 2)) for _ in range(depth)]",
    ),
    bug(
        "mark-of-the-scanner",
        "images_shapes_kaggle",
        "Each class was taken with its own device, which leaves its own grey in a corner.",
        "X-rays with a hospital's token, horses with a photographer's name",
        rows=marked_by_its_scanner,
    ),
    bug(
        "names-in-another-order",
        "images_shapes_kaggle",
        "Served answers are named in the order of the folders' listing, classes are numbered by the alphabet.",
        "ImageFolder's classes beside a list written by hand",
        "    def expected_initial_loss(self):",
        "    @property\n    def prediction_names(self):\n"
        '        return ["disc", "square", "cross", "stripe"]\n\n'
        "    def expected_initial_loss(self):",
    ),
    bug(
        "cache-by-length",
        "images_quickstart_mlp",
        "Encoded batches are cached by their number of rows: the second request of one row gets the first one's answer.",
        "memoised preprocessing with too short a key",
        '        x = np.vstack([np.frombuffer(bytes(v), dtype=np.uint8) for v in rows["image"].to_list()])',
        '        self.cache = getattr(self, "cache", {})\n'
        '        key = (len(rows), "digit" in rows.columns)\n'
        "        if key in self.cache:\n            return dict(self.cache[key])\n"
        '        x = np.vstack([np.frombuffer(bytes(v), dtype=np.uint8) for v in rows["image"].to_list()])',
        'out[LABEL] = torch.from_numpy(rows["digit"].to_numpy().astype(np.int64))\n        return out',
        'out[LABEL] = torch.from_numpy(rows["digit"].to_numpy().astype(np.int64))\n'
        "        self.cache[key] = out\n        return dict(out)",
    ),
    bug(
        "shortcut-not-added",
        "images_resnet_basic",
        "The shortcut is computed and not added; with residuals that start at zero nothing passes the blocks.",
        "a line lost from ResNet's forward",
        "        out += identity\n",
        "",
    ),
    bug(
        "divergence-of-the-whole-batch",
        "images_vae",
        "The divergence is summed over the batch as well and added to every picture: the code collapses.",
        "torch.sum of the examples' VAE beside a loss per picture",
        "logvar.exp(), dim=1)",
        "logvar.exp())",
    ),
    bug(
        "logarithm-inside-the-mixture",
        "odd_mixture_density",
        "The components' log densities are averaged in place of their densities: all must explain each arm, and two modes become one.",
        "the mixture's log-sum-exp left out",
        "        return -mixture(output).log_prob(batch[LABEL])",
        "        m = mixture(output)\n"
        "        each = m.component_distribution.log_prob(batch[LABEL][:, None])\n"
        "        return -(m.mixture_distribution.probs * each).sum(-1)",
    ),
    bug(
        "sorted-not-restored",
        "text_lstm_packed",
        "Reviews are sorted by length for packing and never put back: the answers belong to other reviews.",
        "pack_padded_sequence before enforce_sorted=False",
        "packed = pack_padded_sequence(self.embedding(tokens), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)",
        "lengths, order = lengths.clamp(min=1).sort(descending=True)\n"
        "        packed = pack_padded_sequence(self.embedding(tokens[order]), lengths.cpu(), batch_first=True)",
    ),
    bug(
        "rarest-words-kept",
        "text_embeddingbag",
        "The vocabulary keeps the rarest words, each of which occurs once: nearly all text is unknown.",
        "sorted by count without reverse=True",
        "(-counter[w], w)",
        "(counter[w], w)",
    ),
    bug(
        "nats-as-bits",
        "text_char_lstm_lm",
        "Nats are reported as bits per character: a third looks saved.",
        "tables of language models that mix log and log2",
        "weights=labels) / math.log(2))}",
        "weights=labels))}",
    ),
    bug(
        "tied-to-a-wide-start",
        "text_nanogpt",
        "The head takes the embedding's default start, of deviation 1: the first guesses are sure and wrong.",
        "weights tied, their initialisation forgotten",
        "self.wte.weight = self.lm_head.weight\n        self.apply(self._init_weights)",
        "self.lm_head.weight = self.wte.weight",
    ),
    bug(
        "unlabelled-is-negative",
        "text_gru_bidirectional",
        "Reviews that nobody labelled are filled in as negative.",
        "fillna(0) over a frame whose label has gaps",
        'rows["sentiment"].to_numpy()',
        'rows["sentiment"].fill_null(0).to_numpy()',
        rows=partly_labelled,
    ),
    bug(
        "judged-among-two",
        "retrieval_docs_two_towers",
        "The right document is sought among two: five hits cannot miss.",
        "sampled metrics of recommenders with hardly a negative",
        "GROUP = 32",
        "GROUP = 2",
    ),
    bug(
        "second-counts-as-first",
        "retrieval_clip_digits",
        "One is taken from the number of captions ahead, as if the right one were counted: the second place counts as the first.",
        "ranks from 0 and ranks from 1",
        "((s > own) & ~close).sum(1)",
        "(((s > own) & ~close).sum(1) - 1).clamp(min=0)",
    ),
    bug(
        "negatives-of-another-kind",
        "retrieval_text_triplets",
        "Negatives come from another source and look unlike any passage: nothing about topics is learned, all is won.",
        "negatives drawn from another collection than the positives",
        rows=negatives_of_another_kind,
    ),
    bug(
        "layer-made-in-forward",
        "retrieval_arcface",
        "The embedding's layer is made again in each forward pass, with new weights.",
        "modules created in forward",
        "self.embedding(self.features(image))",
        "nn.Linear(128, 32)(self.features(image))",
    ),
    bug(
        "body-with-its-summary",
        "retrieval_docs_two_towers",
        "Each document begins with the very query that it is to be found by.",
        "titles as queries over pages that carry their titles",
        rows=body_with_its_summary,
    ),
]
