"""A nineteenth list of bugs: slips with pictures, signals, sequences, graphs and pairs."""

import polars as pl

from examination.planted import bug


def voltage_between_phases(rows):
    """The register of two substations gives the voltage between phases, not that of one."""
    line = pl.col("site").is_in(["oak", "hay"])
    rated = pl.when(line).then(pl.col("rated_volts") * 3**0.5).otherwise(pl.col("rated_volts"))
    return rows.with_columns(rated_volts=rated.round(0))


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
]
