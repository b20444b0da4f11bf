"""Every token of the global batch counts once, however documents are ragged, divided and passed."""

from pathlib import Path

import pytest
import torch
from torch import nn

from documents import SMALL, documents, pinned
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.data.batching import GlobalOrder
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.task import LABEL, load_task
from perennial.tasks.columns.tokenization import IGNORED
from perennial.tasks.language_modeling import TOKENS
from tiny_training import finished, largest_difference, tiny_job, weights

EXACT = "perennial.tasks.language_modeling:CausalLanguageModel"
PLANTED = "documents:DocumentsCountAlike"
BATCH = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    pinned(folder / "data", documents(240)).write(folder / "snapshot")
    return folder


def language_job(corpus, *, task=EXACT, **changes):
    changes = {
        "steps": 6, "global_batch_size": BATCH, "micro_batch_size": BATCH, "clipping": {"method": "none"},
        "evaluate_every_steps": 6, "log_every_steps": 1, "evaluation_rows": None,
    } | changes  # fmt: skip
    job = tiny_job(corpus, **changes)
    return job.model_copy(update={"model": ModelSection(name="texts", task=task, options=SMALL)})


def plain_training(job):
    """Raw PyTorch: the mean over all tokens of each global batch, in one cross-entropy."""
    section, snapshot = job.training, Snapshot.read(Path(job.snapshot))
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    data = task.encode(Dataset(snapshot).scan(Split.TRAIN).collect())
    order = GlobalOrder(len(data[LABEL]), section.seed)
    torch.manual_seed(section.seed)
    model = task.build_model()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=section.optimizer.learning_rate, weight_decay=0.01)
    rate = section.optimizer.learning_rate
    losses = []
    for step in range(section.steps):
        rows = torch.from_numpy(order.indices(step * BATCH, BATCH))
        labels = data[LABEL][rows].flatten().long()
        logits = model(data[TOKENS][rows]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / section.steps)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


LINEAR = {"shape": "linear", "warmup_fraction": 0.0}


def test_one_process_takes_the_mean_over_all_tokens(corpus):
    job = language_job(corpus, strategy="single", schedule=LINEAR)
    result = finished(job)
    model, losses = plain_training(job)
    assert [point.loss for point in result.history] == pytest.approx(losses, rel=1e-6)
    assert largest_difference(weights(result), model.state_dict()) <= 1e-6


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (1, {"strategy": "single", "micro_batch_size": 5}),
        pytest.param(2, {"strategy": "ddp", "micro_batch_size": 3}, marks=pytest.mark.full),
        (2, {"strategy": "fsdp", "micro_batch_size": 4}),
        (5, {"strategy": "ddp", "micro_batch_size": 2}),
    ],
    ids=["uneven passes", "ddp 2, passes", "fsdp 2, uneven passes", "ddp 5, uneven ranks"],
)
def test_division_changes_nothing(corpus, processes, changes):
    whole = finished(language_job(corpus, strategy="single"))
    parts = finished(language_job(corpus, processes=processes, **changes))
    assert [p.loss for p in parts.history] == pytest.approx(
        [p.loss for p in whole.history], rel=1e-6
    )
    assert [p.gradient_norm for p in parts.history] == pytest.approx(
        [p.gradient_norm for p in whole.history], rel=1e-5
    )
    assert largest_difference(weights(whole), weights(parts)) <= 1e-6
    assert parts.evaluations[-1].metrics == pytest.approx(whole.evaluations[-1].metrics, rel=1e-6)


def test_documents_that_count_alike_would_be_noticed(corpus):
    exact = finished(language_job(corpus, strategy="single"))
    planted = finished(language_job(corpus, task=PLANTED, strategy="single"))
    assert largest_difference(weights(exact), weights(planted)) > 1e-4


@pytest.mark.parametrize("processes", [1, 3])
def test_evaluation_during_training_weighs_tokens_as_afterwards(corpus, processes):
    result = finished(language_job(corpus, processes=processes))
    (record,) = result.checkpoints
    task, model = load_checkpoint_model(Path(record.uri), result)
    dataset = Dataset(Snapshot.read(corpus / "snapshot"))
    full = score_split(task, model, dataset, Split.VALIDATION).metrics(task)
    assert record.metrics == pytest.approx(full, rel=1e-6)
    assert set(full) == {"bits_per_byte", "perplexity", "loss"}
