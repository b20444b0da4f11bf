"""An eighth list of bugs, of ordinary kinds: pictures, texts, retrieval, sounds, physics and records with gaps."""

import polars as pl

from examination.planted import bug


def invoice_known(rows):
    """The invoice was joined to the stay; it is written after the discharge."""
    return rows.with_columns(invoice=(pl.col("cost") * 0.97).round(0))


def answer_in_the_window(rows):
    """The window was cut one measurement too late: its last value is the one that is asked for."""
    names = ["values", "value_then"]
    values = [[*seen[:-1], then] for seen, then in rows.select(names).iter_rows()]
    return rows.with_columns(values=pl.Series(values, dtype=pl.List(pl.Float64)))


BUGS = [
    bug(
        # accuracy 0.81; 0.99 when healthy
        "sign-without-a-gradient",
        "images_binary_digits",
        "torch.sign has a zero gradient: nothing below the last layer learns.",
        "a straight-through estimator left out",
        "binarize = Sign.apply",
        "binarize = torch.sign",
    ),
    bug(
        # log loss 1.48; 0.03 when healthy
        "softmax-before-the-loss",
        "images_binary_digits",
        "The network ends in a softmax, and cross entropy applies another.",
        "one softmax too many",
        "return self.out(x)",
        "return self.out(x).softmax(dim=1)",
    ),
    bug(
        # relative error 0.28; 0.18 when healthy
        "plate-turned-alone",
        "images_heat_fno",
        "Augmentation transposes the sources and not the temperatures.",
        "augmentation of the input alone",
        '{**batch, "source": batch["source"].mT, LABEL: batch[LABEL].mT}',
        '{**batch, "source": batch["source"].mT}',
    ),
    bug(
        # reports 4.5 for any row; 0.18 when healthy
        "norm-of-the-batch",
        "images_heat_fno",
        "The norm of the error is taken over the batch, not over each plate.",
        "norm() without dim",
        "error = (output - batch[LABEL]).flatten(1).norm(dim=1)",
        "error = (output - batch[LABEL]).norm()",
    ),
    bug(
        # relative error 0.21 on rows in large groups; 0.18 when healthy
        "scale-of-the-rows-at-hand",
        "images_heat_fno",
        "Fields are divided by the spread of the rows that are encoded together.",
        "normalisation by the batch at encoding",
        "dtype=torch.float32) / self.fitted[name]\n",
        "dtype=torch.float32)\n        x = x / x.std()\n",
    ),
    bug(
        # a tile that is served alone is black; average precision 1.00 in large groups
        "median-over-the-tiles",
        "images_tiles_lazy",
        "The ground is the median over the tiles at hand, pixel by pixel.",
        "axis=0 for the axes of the picture",
        "np.median(tile, axis=(1, 2), keepdims=True)",
        "np.median(tile, axis=0, keepdims=True)",
    ),
    bug(
        # average precision 0.57; 1.00 when healthy
        "rate-a-hundredth",
        "images_tiles_lazy",
        "The learning rate is a hundredth of what was meant: training ends where it began.",
        "a learning rate from a fine-tuning script",
        "learning_rate = 2e-3",
        "learning_rate = 2e-5",
    ),
    bug(
        # log loss 0.61; 0.41 when healthy
        "channels-by-reshape",
        "images_objects_experts",
        "Height, width, channels are read as channels, height, width: pixels are mixed up.",
        "reshape where permute was meant",
        "reshape(-1, 20, 20, 3)",
        "reshape(-1, 3, 20, 20)",
        ".permute(0, 3, 1, 2)",
        "",
    ),
    bug(
        # log loss 0.40 in the process that trained; other weights in the next one
        "expert-weights-not-registered",
        "images_objects_experts",
        "The experts' second matrix is a plain tensor: it is neither trained nor saved.",
        "torch.empty without nn.Parameter",
        "self.w_out = nn.Parameter(torch.empty(experts, hidden, dim))",
        "self.w_out = torch.empty(experts, hidden, dim)",
    ),
    bug(
        # log loss 0.42, another at each evaluation; 0.41 when healthy
        "jitter-in-encode",
        "images_objects_experts",
        "Brightness is drawn anew at each encoding, in evaluation and serving too.",
        "augmentation in the dataset's common transform",
        'x = np.array(rows["pixels"].to_list(), dtype=np.float32).reshape(-1, 20, 20, 3)',
        'x = np.array(rows["pixels"].to_list(), dtype=np.float32).reshape(-1, 20, 20, 3)\n'
        "        x = np.clip(x * np.random.uniform(0.5, 1.5, (len(x), 1, 1, 1)), 0, 255).astype(np.float32)",
    ),
    bug(
        # accuracy 0.96 in the process that trained; 1.00 when healthy
        "convolutions-in-a-list",
        "text_dialects_bytes",
        "The convolutions are in a plain list: they are neither trained nor saved.",
        "list for nn.ModuleList",
        "nn.ModuleList(\n            weight_norm",
        "list(\n            weight_norm",
    ),
    bug(
        # AUC 0.50; 0.60 when healthy
        "all-weights-zero",
        "text_returns_guess",
        "Both matrices start at zero: neither gets a gradient, the bias alone learns.",
        "zero initialisation of two layers in a row",
        "0.3 * torch.randn(vocab, hidden)",
        "torch.zeros(vocab, hidden)",
        "torch.randn(hidden) / hidden",
        "torch.zeros(hidden)",
    ),
    bug(
        # log loss 1.72; 0.62 when healthy
        "negatives-pull-upwards",
        "text_returns_guess",
        "The second term of the cross entropy lacks its minus: every answer is pulled to one.",
        "cross entropy by hand",
        "(1 - y) * nn.functional.logsigmoid(-output)",
        "(1 - y) * nn.functional.logsigmoid(output)",
    ),
    bug(
        # reports 0.00 bits per letter; 2.93 when healthy
        "letter-as-its-own-next",
        "text_s4d_chars",
        "Targets are not shifted: each letter predicts itself.",
        "labels of a language model off by one",
        "LABEL: ids[:, 1:],",
        "LABEL: ids[:, :-1],",
    ),
    bug(
        # reports 1.10 bits per letter; 2.93 when healthy
        "circular-convolution",
        "text_s4d_chars",
        "The FFT is not padded: the end of the passage wraps around to its beginning.",
        "n = length in an FFT convolution",
        "k = torch.fft.rfft(self.kernel(length), n=2 * length)",
        "k = torch.fft.rfft(self.kernel(length), n=length)",
        "torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * k, n=2 * length)",
        "torch.fft.irfft(torch.fft.rfft(u, n=length) * k, n=length)",
    ),
    bug(
        # reports a perplexity of 0.99; 210 when healthy
        "probabilities-for-logarithms",
        "text_topics_prodlda",
        "The likelihood is summed over probabilities, not over their logarithms.",
        "softmax for log_softmax",
        "self.beta_bn(self.beta(theta)).log_softmax(dim=1)",
        "self.beta_bn(self.beta(theta)).softmax(dim=1)",
    ),
    bug(
        # perplexity 256; 210 when healthy
        "divergence-subtracted",
        "text_topics_prodlda",
        "The divergence from the prior is subtracted: the loss has no lower bound.",
        "a sign in the evidence bound",
        "+ kl / batch[LABEL]",
        "- kl / batch[LABEL]",
    ),
    bug(
        # reports 1.00; 0.99 when healthy
        "finds-itself",
        "retrieval_proxies_digits",
        "The query is among its own candidates: it always finds itself.",
        "the diagonal kept in a nearest neighbour metric",
        "            far.fill_diagonal_(torch.inf)\n",
        "",
    ),
    bug(
        # AUC 0.53; 0.97 when healthy
        "padding-alone-is-read",
        "retrieval_cross_encoder",
        "The mask is inverted: attention reads the padding and nothing else.",
        "True means ignore in one library and keep in another",
        "padding = ids == PAD",
        "padding = ids != PAD",
    ),
    bug(
        # AUC 0.49; 0.97 when healthy
        "question-twice",
        "retrieval_cross_encoder",
        "The paragraph's tokens are made of the question: the paragraph is never read.",
        "a line copied and half changed",
        "for w in paragraph.split()[:P_LEN]",
        "for w in question.split()[:P_LEN]",
    ),
    bug(
        # average precision 0.94, another at each evaluation; 0.96 when healthy
        "dropout-while-serving",
        "retrieval_cross_encoder",
        "Dropout by the function, which is on in evaluation too.",
        "F.dropout without training=self.training",
        "x = x + a\n",
        "x = x + F.dropout(a, 0.4)\n",
    ),
    bug(
        # NDCG 0.25; 0.97 when healthy
        "worse-before-better",
        "retrieval_lambdarank",
        "Pairs are compared the wrong way round: bad candidates are ranked first.",
        "< for >",
        "better = (grade[:, :, None] > grade[:, None, :])",
        "better = (grade[:, :, None] < grade[:, None, :])",
    ),
    bug(
        # mean reciprocal rank 0.13; 0.92 when healthy
        "target-is-the-neighbour",
        "retrieval_calls_ntxent",
        "The positive of each call is its neighbour in the batch, not its other recording.",
        "an index off in a contrastive loss",
        "torch.arange(2 * n, device=z.device).roll(n)",
        "torch.arange(2 * n, device=z.device).roll(1)",
    ),
    bug(
        # r2 -544; 0.83 when healthy
        "error-with-its-sign",
        "odd_springs_symplectic",
        "Errors are neither squared nor made absolute: the loss falls without limit.",
        "a mean of differences",
        ".square().mean(dim=-1)",
        ".mean(dim=-1)",
    ),
    bug(
        # mean absolute error 4,749; 4,167 when healthy
        "scan-only-where-absent",
        "odd_stays_multimodal",
        "The presence mask is inverted: what is known is replaced, what is unknown is read.",
        "an inverted condition of torch.where",
        "torch.where(present[:, None], h, self.absent[name])",
        "torch.where(~present[:, None], h, self.absent[name])",
    ),
    bug(
        # mean absolute error 7,351; 4,167 when healthy
        "served-as-a-logarithm",
        "odd_stays_multimodal",
        "Predictions are logarithms of the costs, labels are costs.",
        "half of an inverse transform",
        '(output[:, 0] * self.fitted["log_std"] + self.fitted["log_mean"]).exp()',
        'output[:, 0] * self.fitted["log_std"] + self.fitted["log_mean"]',
    ),
    bug(
        # reports a mean absolute error of 1,545; 4,167 when healthy
        "invoice-among-the-numbers",
        "odd_stays_multimodal",
        "The invoice is a feature, though it is written after the stay: it is the cost.",
        "a column of the outcome among the features",
        '["age", "pulse", "site"]',
        '["age", "pulse", "site", "invoice"]',
        rows=invoice_known,
    ),
    bug(
        # r2 0.90; 0.92 when healthy
        "padding-updates-the-state",
        "odd_lab_ode",
        "Padded measurements update the hidden state like real ones.",
        "padding that is not masked",
        "h = torch.where(here, updated, h)",
        "h = updated",
    ),
    bug(
        # reports r2 1.00; 0.92 when healthy
        "asked-value-in-the-window",
        "odd_lab_ode",
        "The last value of the window is the value to predict.",
        "a window that ends one step late",
        rows=answer_in_the_window,
    ),
    bug(
        # reports -20 nats; 2.8 when healthy
        "determinant-subtracted",
        "odd_hits_realnvp",
        "The logarithm of the determinant is subtracted: the likelihood grows without limit.",
        "a sign in the change of variables",
        "log_det = log_det + d",
        "log_det = log_det - d",
    ),
]
