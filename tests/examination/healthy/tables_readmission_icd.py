"""Back in hospital within 30 days? Age bands by their middle, ICD-9 chapters of three diagnoses
in one table, whole patients held out.

data: diabetic_stays

[data]
label = "readmitted"
group = "patient"
ids = ["row_id"]
meta = ["admitted"]

[split]
method = "group"

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-3, weight_decay = 0.05 }
"""

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

# first three digits -> chapter, after Strack et al.
CHAPTERS = [
    ("circulatory", 390, 459),
    ("respiratory", 460, 519),
    ("digestive", 520, 579),
    ("diabetes", 250, 250),
    ("injury", 800, 999),
    ("musculoskeletal", 710, 739),
    ("genitourinary", 580, 629),
    ("mental", 290, 319),
]
NONE, OTHER, OUTSIDE = 0, 1, 2
CHOICES = {
    "admission": ["Emergency", "Urgent", "Elective"],
    "a1c": ["None", "Norm", ">7", ">8"],
    "insulin": ["No", "Steady", "Up", "Down"],
}
COUNTS = ["days_in", "n_labs", "n_medications", "inpatient_before"]


def chapter(code):
    if code is None:
        return NONE
    if code[0] in "VE":
        return OUTSIDE
    number = int(code[:3])
    for i, (_, low, high) in enumerate(CHAPTERS):
        if low <= number <= high:
            return i + 3
    return OTHER


def middle(band):
    low, high = band.strip("[)").split("-")
    return (int(low) + int(high)) / 2


class ReadmissionNet(nn.Module):
    def __init__(self, n_numbers, sizes):
        super().__init__()
        self.chapters = nn.Embedding(len(CHAPTERS) + 3, 8, padding_idx=NONE)
        self.choices = nn.ModuleList([nn.Embedding(n, 3) for n in sizes])
        self.bn = nn.BatchNorm1d(n_numbers)
        width = n_numbers + 16 + 3 * len(sizes)
        self.layers = nn.Sequential(
            nn.Linear(width, 64),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, numbers, diagnoses, choices):
        d = self.chapters(diagnoses)
        first = d[:, 0]
        present = (diagnoses[:, 1:] != NONE).float().unsqueeze(-1)
        rest = (d[:, 1:] * present).sum(1) / present.sum(1).clamp(min=1)
        chosen = [table(choices[:, i]) for i, table in enumerate(self.choices)]
        return self.layers(torch.cat([self.bn(numbers), first, rest, *chosen], dim=1))


class Readmission(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision", "log_loss")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "labs": float(df["n_labs"].median()),
            "rate": float((df["readmitted"] == "<30").mean()),
        }

    def encode(self, rows):
        numbers = [[middle(band) / 10 for band in rows["age_band"]]]
        for name in COUNTS:
            values = torch.tensor(rows[name].fill_null(0).to_list(), dtype=torch.float32)
            if name == "n_labs":
                values = values / self.fitted["labs"]
            numbers.append(torch.log1p(values).tolist())
        choices = []
        for name, known in CHOICES.items():
            choices.append([known.index(v) + 1 if v in known else 0 for v in rows[name].to_list()])
        diagnoses = [
            [chapter(code) for code in codes]
            for codes in rows.select("diag_1", "diag_2", "diag_3").iter_rows()
        ]
        batch = {
            "numbers": torch.tensor(numbers).T.contiguous(),
            "diagnoses": torch.tensor(diagnoses, dtype=torch.long),
            "choices": torch.tensor(choices, dtype=torch.long).T.contiguous(),
        }
        if "readmitted" in rows.columns:
            batch[LABEL] = torch.tensor([float(r == "<30") for r in rows["readmitted"]])
        return batch

    def build_model(self):
        model = ReadmissionNet(1 + len(COUNTS), [len(known) + 1 for known in CHOICES.values()])
        rate = torch.tensor(self.fitted["rate"])
        nn.init.constant_(model.layers[-1].bias, float(torch.logit(rate)))
        return model

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output.squeeze(1), batch[LABEL], reduction="none"
        )
