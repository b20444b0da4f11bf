"""Bugs of fine-tuning, planted into the weights that a training starts with, each caught."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch

from perennial.check_skeleton.checks.model.initial_weights import check_initial_weights
from perennial.check_skeleton.subject import inputs_of
from perennial.contracts.data import Split
from perennial.registry.initial import SeenTestRows
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification
from perennial.tasks.transformers_models import TransformersCausalLM
from perennial.tasks.transformers_pictures import TransformersImageClassification
from published_models import options_of, snapshot_in, train_tokenizer, write_published
from stored_weights import store_weights
from workshop import results_of


def trained(subject, steps=150):
    """The subject's model after a short training, as a base for another."""
    model, task = subject.build_model(), subject.task
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.arange(step * 64, step * 64 + 64) % len(subject.train["label"])
        batch = {name: tensor[rows] for name, tensor in subject.train.items()}
        optimizer.zero_grad()
        task.training_losses(model(**inputs_of(batch)), batch).mean().backward()
        optimizer.step()
    return model.state_dict()


KINDS = {
    "table": (TabularClassification, "binary"),
    "digits": (ImageClassification, "digits"),
    "documents": (CausalLanguageModel, "documents"),
}


@pytest.fixture(scope="module")
def bases(workshop):
    """Kind → a subject, and the weights of its trained model; each is trained once."""

    @cache
    def make(kind):
        subject = workshop.subject(*KINDS[kind])
        return subject, trained(subject)

    return make


@pytest.fixture(params=KINDS)
def base(request, bases):
    """The subject and the weights of each kind."""
    return bases(request.param)


@pytest.fixture
def examine_weights(tmp_path, monkeypatch):
    """The result of the check on a subject that starts with such weights."""
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "cache"))

    def run(subject, weights, *, seen=None, **fields):
        initial = store_weights(tmp_path / "store", weights, **fields)
        started = replace(subject, initial=initial, seen=seen or SeenTestRows())
        return check_initial_weights(started)

    return run


def test_trained_weights_pass(base, examine_weights):
    subject, weights = base
    result = examine_weights(subject, weights)
    assert result.outcome == "passed", result


@pytest.mark.parametrize("seed", [0, 16])
def test_a_champion_may_know_nothing_after_strong_drift(seed, bases, examine_weights):
    """Retraining is wanted then; whether the new model is better is the gate's question.

    With seed 16 the weights lead by 0.1% when the inputs are moved, by luck.
    """
    subject, _ = bases("table")
    torch.manual_seed(seed)
    outdated = subject.task.build_model().state_dict()
    result = examine_weights(subject, outdated, source="champion")
    assert (result.outcome, "strong drift" in result.hint) == ("warned", True), result


def test_base_weights_that_were_never_loaded_are_caught(base, examine_weights):
    """All random: those of another seed help as little as those of this one."""
    subject, _ = base
    torch.manual_seed(99)
    result = examine_weights(subject, subject.task.build_model().state_dict())
    assert result.outcome == "failed", result


def test_weights_in_the_wrong_layers_are_caught(base, examine_weights):
    """Equal shapes, so that no name or shape is missed: each goes to the place after its own."""
    subject, weights = base
    shapes: dict = {}
    for name, value in weights.items():
        if value.is_floating_point():
            shapes.setdefault(value.shape, []).append(name)
    moved = dict(weights)
    for names in shapes.values():
        for name, other in zip(names, names[1:] + names[:1], strict=True):
            moved[name] = weights[other]
    # A table has hardly two layers of one shape: its inputs are in another order.
    if "hidden.0.weight" in moved:
        moved["hidden.0.weight"] = weights["hidden.0.weight"].flip(1)
    result = examine_weights(subject, moved)
    assert result.outcome == "failed", result
    assert "model.initial.rename" in result.hint


def test_another_tokenizer_is_caught(bases, examine_weights):
    """The ids of the base stand for other bytes."""
    subject, weights = bases("documents")
    weights = dict(weights)
    order = torch.randperm(257, generator=torch.Generator().manual_seed(3))
    for name in ("embedding.tokens.weight", "head.weight"):
        weights[name] = weights[name][order]
    result = examine_weights(subject, weights)
    assert result.outcome == "failed", result
    assert "tokenization" in result.hint


class Unnormalised(ImageClassification):
    """Reads bytes where the base was trained with standardised pixels."""

    def encode(self, rows):
        batch = super().encode(rows)
        images = self.fitted.images
        means, scales = (
            torch.tensor(each).view(-1, 1, 1) for each in (images.means, images.deviations)
        )
        return batch | {"image": batch["image"] * scales + means}


def test_another_normalisation_of_the_input_is_caught(workshop, bases, examine_weights):
    result = examine_weights(workshop.subject(Unnormalised, "digits"), bases("digits")[1])
    assert result.outcome == "failed", result
    assert "normalisation" in result.hint


class Shifted(ImageClassification):
    """Moves standardised pixels by three deviations: the base still helps, less than it could."""

    def encode(self, rows):
        batch = super().encode(rows)
        return batch | {"image": batch["image"] * 0.5 - 1.5}


def test_another_normalisation_under_a_new_head_is_caught(workshop, bases, examine_weights):
    """Where the head is new, weights that help less than they could look like any others."""
    subject, weights = bases("digits")[0], bases("digits")[1]
    wrong = workshop.subject(Shifted, "digits")
    result = examine_weights(wrong, weights, new=("head.*",))
    assert (result.outcome, "standardised" in result.measured) == ("failed", True), result
    assert "normalisation" in result.hint
    assert examine_weights(subject, weights, new=("head.*",)).outcome == "passed"


# What published models were trained with: `preprocessor_config.json`.
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "size": 8}
HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 8}
FAMILIES = {
    "vit": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "patch_size": 2,
    },
    "resnet": {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
        "downsample_in_first_stage": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def photographed(workshop, tmp_path_factory):
    """A subject of a family of `transformers` by normalisation, and weights trained with it."""
    pytest.importorskip("transformers")

    @cache
    def subject(family, preprocessor):
        options = {"model_type": family, "config": FAMILIES[family]}
        if preprocessor is not None:
            file = tmp_path_factory.mktemp("snapshot") / "preprocessor_config.json"
            file.write_text(preprocessor)
            options["preprocessor"] = str(file)
        return workshop.subject(TransformersImageClassification, "digit files", options=options)

    @cache
    def weights(family, preprocessor):
        torch.manual_seed(1)
        return trained(subject(family, preprocessor))

    return subject, weights


@pytest.mark.parametrize(
    ("family", "base", "given"),
    [("resnet", IMAGENET, HALVES), ("resnet", IMAGENET, None), ("vit", HALVES, IMAGENET)],
    ids=["another model's", "the training split's in the place of the base's", "of a vit"],
)
def test_a_preprocessor_of_another_model_is_caught(
    photographed, examine_weights, family, base, given
):
    """Pixels of 0 to 255 are found again from what the task shows, so each normalisation is tried."""
    subject, weights = photographed
    base, given = json.dumps(base), given and json.dumps(given)
    result = examine_weights(subject(family, given), weights(family, base))
    named = "ImageNet's" if "0.485" in base else "pixels of -1 to 1"
    assert (result.outcome, named in result.measured) == ("failed", True), result
    assert "normalisation" in result.hint
    result = examine_weights(subject(family, base), weights(family, base))
    assert result.outcome == "passed", result


def test_a_far_normalisation_under_a_new_head_is_caught(photographed, examine_weights):
    subject, weights = photographed
    base, head = weights("resnet", json.dumps(IMAGENET)), ("model.classifier.*",)
    result = examine_weights(subject("resnet", None), base, new=head)
    assert (result.outcome, "image" in result.measured) == ("failed", True), result
    result = examine_weights(subject("resnet", json.dumps(IMAGENET)), base, new=head)
    assert result.outcome == "passed", result


class Reversed(ImageClassification):
    """Opens pictures as blue, green, red, where the base was trained with red first."""

    def encode(self, rows):
        batch = super().encode(rows)
        return batch | {"image": batch["image"].flip(1)}


def test_channels_in_another_order_are_caught(workshop, examine_weights):
    coloured = {"colour": True, "options": {"shape": ()}}  # files have a shape of their own
    weights = trained(workshop.subject(ImageClassification, "digits", **coloured), steps=60)
    result = examine_weights(workshop.subject(Reversed, "digits", **coloured), weights)
    assert (result.outcome, "reverse order" in result.measured) == ("failed", True), result


def test_two_blocks_in_each_others_place_are_caught(bases, examine_weights):
    """Equal shapes and most of the weights in place: the loss still beats random weights."""
    subject, weights = bases("documents")
    first, second = (name for name, _ in subject.build_model().blocks.named_children())
    exchanged = {
        name.replace(f"blocks.{first}.", "blocks.other.")
        .replace(f"blocks.{second}.", f"blocks.{first}.")
        .replace("blocks.other.", f"blocks.{second}."): value
        for name, value in weights.items()
    }
    result = examine_weights(subject, exchanged)
    assert (result.outcome, "exchanged" in result.measured) == ("failed", True), result


@pytest.mark.full
def test_a_new_head_shows_whether_the_rest_was_loaded(bases, examine_weights):
    subject, weights = bases("digits")
    random = subject.task.build_model().state_dict()
    assert examine_weights(subject, weights, new=("head.*",)).outcome == "passed"
    assert examine_weights(subject, random, new=("head.*",)).outcome == "warned"


def test_test_rows_that_were_trained_on_are_caught_before_the_training(bases, examine_weights):
    subject, weights = bases("table")
    seen = SeenTestRows(7, ("the initial weights were trained or selected on 7 of 90 test rows",))
    result = examine_weights(subject, weights, seen=seen)
    assert (result.outcome, result.measured) == ("failed", seen.lines[0])
    assert 'model.initial.source = "scratch"' in result.hint


@pytest.fixture(scope="module")
def published(workshop, tmp_path_factory):
    """The folder of a small GPT-2 that learned the documents by its own tokens, and the texts."""
    rows = workshop.dataset("documents").scan(Split.TRAIN)
    texts = rows.select("text").collect()["text"].to_list()
    folder = tmp_path_factory.mktemp("published")
    return folder, write_published(folder, "gpt2", texts, steps=150).state_dict()


def reversed_ids(content):
    """A tokenizer of the same pieces, each under another id: those of another base."""
    file = json.loads(content)
    pieces, codes = zip(*sorted(file["model"]["vocab"].items()), strict=True)
    end = file["added_tokens"][0]["content"]
    moved = dict(zip(pieces, reversed(codes), strict=True))
    file["added_tokens"][0]["id"] = moved[end]
    return json.dumps({**file, "model": {**file["model"], "vocab": moved}})


def test_a_tokenizer_that_is_kept_is_not_fitted(workshop, published):
    """Only what a task declares to be a file of its options may be the same for all rows."""
    options = options_of("gpt2", published[0])
    for declared, outcome in ((TransformersCausalLM.kept_files, "passed"), (frozenset(), "failed")):
        task_type = type("Kept", (TransformersCausalLM,), {"kept_files": declared})
        subject = workshop.subject(task_type, "texts", options=options)
        result = results_of(subject, "statistics_scope")["statistics_scope"]
        assert result.outcome == outcome, result


OTHER_TOKENIZERS = {
    "its own": lambda content: content,
    "the same pieces in another order": reversed_ids,
    "learned from other texts": lambda _: train_tokenizer(
        ["größer als 平均値", "zu viel", "einige"] * 9
    ),
}


@pytest.mark.parametrize("kind", OTHER_TOKENIZERS)
def test_the_tokenizer_of_another_base_is_caught(
    kind, workshop, published, examine_weights, tmp_path
):
    folder, weights = published
    content = (snapshot_in(folder) / "tokenizer.json").read_text()
    file = tmp_path / "tokenizer.json"
    file.write_text(OTHER_TOKENIZERS[kind](content))
    options = options_of("gpt2", folder, tokenizer=str(file))
    subject = workshop.subject(TransformersCausalLM, "texts", options=options)
    result = examine_weights(subject, weights, rename={"": "model."})
    assert result.outcome == ("passed" if kind == "its own" else "failed"), result
    assert kind == "its own" or "tokenization" in result.hint
