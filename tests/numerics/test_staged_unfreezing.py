"""Vision and language, trained apart, are aligned in stages: projections, language model, all.

The recipe of the guides: both parts come pretrained from elsewhere; first only the projections into
the common space are trained, then the language model with them, then everything, each with steps,
learning rate and schedule of its own.
"""

import pytest
import torch

from captioned_shapes import OPTIONS, shapes_job
from perennial.contracts.data import Split, TaskColumns
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.task import inputs_of
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.language_modeling import CausalLanguageModel
from stored_weights import store_weights
from tiny_training import (
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    weights,
)

PROJECTIONS = ["image.head.*", "text.projection.*", "log_scale"]
STAGES = [
    {
        "steps": 4,
        "trainable": PROJECTIONS,
        "learning_rate": 1e-2,
        "schedule": {"shape": "constant"},
    },
    {"steps": 6, "trainable": [*PROJECTIONS, "text.*"], "learning_rate": 2e-3},
    {"steps": 4, "learning_rate": 5e-4, "schedule": {"shape": "constant"}},
]
BORDERS = (4, 10, 14)
STOPPING = "captioned_shapes:StoppingPairs"


def trained(task, rows, steps=30):
    """The weights of a task's model after a short training on its own."""
    torch.manual_seed(7)
    task.fit(rows.lazy())
    model, batch = task.build_model(), task.encode(rows)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.training_losses(model(**inputs_of(batch)), batch).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    return model.state_dict()


@pytest.fixture(scope="module")
def parts(shapes):
    """A picture classifier and a language model, each trained on its own task."""
    dataset = Dataset(Snapshot.read(shapes / "snapshot"))
    rows = dataset.collect(dataset.scan(Split.TRAIN)).head(128)
    words = {"shape": rows["caption"].str.split(" ").list.get(2)}
    vision = ImageClassification(
        ImageClassification.Options.model_validate(
            {"shape": OPTIONS["shape"], "architecture": "vit"}, strict=False
        ),
        TaskColumns(label="shape", features={"picture": "List(UInt8)"}),
    )
    text = {"vocab_size": 257, "context_length": OPTIONS["text"]["length"]}
    sizes = {name: OPTIONS["text"][name] for name in ("layers", "width", "heads")}
    language = CausalLanguageModel(
        CausalLanguageModel.Options(**text, **sizes),
        TaskColumns(label="caption", features={"caption": "String"}),
    )
    return trained(vision, rows.with_columns(**words)), trained(language, rows)


@pytest.fixture(scope="module")
def initial(shapes, parts):
    """Both in one file, under the names of the two towers; the projections are new."""
    vision, language = parts
    tensors = {f"image.{name}": value for name, value in vision.items() if "head" not in name}
    tensors |= {f"text.{name}": value for name, value in language.items() if "head" not in name}
    return store_weights(shapes / "store", tensors, new=tuple(PROJECTIONS))


@pytest.fixture(autouse=True)
def cache(shapes, monkeypatch):
    monkeypatch.setenv("PERENNIAL_CACHE", str(shapes / "cache"))


def staged(shapes, initial, name, **changes):
    """The recipe as a training that keeps all its checkpoints."""
    values = {
        "steps": 14, "evaluate_every_steps": 1, "stages": STAGES, "optimizer": {"name": "adamw"},
        "checkpoints": {"keep_best": 9, "keep_every_steps": 1},
    }  # fmt: skip
    job = shapes_job(shapes, name, **(values | changes))
    return job.model_copy(update={"initial": initial})


@pytest.fixture(scope="module")
def straight(shapes, initial):
    """One process, never interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERENNIAL_CACHE", str(shapes / "cache"))
        return finished(staged(shapes, initial, "straight", strategy="single"))


def moved(before, after):
    """The names that differ in any bit."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_each_stage_moves_its_own_part_and_no_bit_of_the_others(straight, parts):
    first, second, third = (weights(straight, step) for step in BORDERS)
    vision, language = ({name for name in first if name.startswith(f"{part}.")}
                        for part in ("image", "text"))  # fmt: skip
    projections = {name for name in first if name.startswith(("image.head", "text.projection"))}
    projections |= {"log_scale"}
    for tower, part in zip(("image", "text"), parts, strict=True):
        for name, value in part.items():
            if "head" not in name:
                assert torch.equal(first[f"{tower}.{name}"], value), name
    assert moved(weights(straight, 1), first) == projections
    assert moved(first, second) == projections | language
    assert moved(second, third) == projections | language | vision


def test_each_stage_has_its_own_rate_and_schedule(straight):
    rates = [point.learning_rate for point in straight.history]
    assert rates[:4] == [1e-2] * 4
    assert max(rates[4:10]) <= 2e-3
    assert rates[9] < rates[5]
    assert rates[10:] == [5e-4] * 4


@pytest.mark.full
def test_the_recipe_aligns_both(shapes, initial):
    """Longer, the parts find each other: the loss of chance is ln 16, recall 5 of 16."""
    stages = [{**stage, "steps": stage["steps"] * 5} for stage in STAGES]
    found = finished(
        staged(shapes, initial, "longer", strategy="single", steps=70, stages=stages,
               evaluate_every_steps=10, checkpoints={})
    )  # fmt: skip
    assert found.evaluations[-1].metrics["recall_at_5"] > 0.6


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=pytest.mark.full)])
def test_two_processes_have_the_losses_of_one(shapes, initial, straight, strategy):
    job = staged(
        shapes, initial, strategy, strategy=strategy, processes=2, micro_batch_size=16
    )  # fmt: skip
    found = finished(job)
    for one, many in zip(straight.history, found.history, strict=True):
        assert many.loss == pytest.approx(one.loss, abs=1e-5), one.step
    for step in BORDERS:
        assert largest_difference(weights(straight, step), weights(found, step)) < 1e-4
    frozen = {name for name in weights(found, 4) if name.startswith("image.blocks")}
    assert frozen
    assert not moved(weights(found, 1), weights(found, 10)) & frozen


@pytest.mark.parametrize(
    ("strategy", "processes"), [("single", 1), pytest.param("fsdp", 2, marks=pytest.mark.full)]
)
def test_an_interruption_within_the_second_stage_changes_no_bit(
    shapes, initial, strategy, processes
):
    settings = {
        "strategy": strategy, "processes": processes, "micro_batch_size": 32 // processes,
        "task": STOPPING, "evaluate_every_steps": 5, "checkpoints": {},
    }  # fmt: skip
    whole = finished(staged(shapes, initial, f"whole-{strategy}", **settings))
    job = staged(shapes, initial, f"stopped-{strategy}", **settings)
    assert run_ranks(with_stop(job, 6)) == [75] * processes
    resumed = finished(job)
    assert resumed.num_resumes == whole.num_resumes + 1
    assert moved(weights(whole), weights(resumed)) == set()
    require_same_evaluations(whole, resumed)


def with_stop(job, call):
    """The same training, asked to stop at a training pass."""
    options = {**job.model.options, "stop_call": call}
    return job.model_copy(
        update={"model": job.model.model_copy(update={"options": options})}
    )  # fmt: skip
