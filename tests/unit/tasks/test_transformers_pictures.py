"""An image classifier of `transformers` reads pictures as its pretrained model did, and starts at the prior."""

import io
import json
import sys

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from perennial.contracts.data import ModelSection, TaskColumns
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.engine.initial_weights import load_initial_weights, read_weights
from perennial.engine.task import check_options, inputs_of
from perennial.registry.initial import resolve_initial
from perennial.tasks.columns.picture_preprocessor import load_preprocessor
from perennial.tasks.transformers_pictures import TransformersImageClassification
from small_models import environment_at

LABELS = ["cat", "cat", "dog", "owl"] * 3
TRANSFORMER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
FAMILIES = {
    "vit": {**TRANSFORMER, "patch_size": 4},
    "deit": {**TRANSFORMER, "patch_size": 4},  # of several classes of models, the first
    "resnet": {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
    },
    "convnext": {"patch_size": 4, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "swin": {
        "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4,
    },
}  # fmt: skip
WRAPPED = {"vit": "vit", "resnet": "resnet"}
HEADS = {"vit": "classifier", "resnet": "classifier.1"}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def pictures(*shape):
    """Random pictures, brighter by class."""
    random, files = np.random.default_rng(0), []
    for label in LABELS:
        pixels = random.integers(0, 100, shape) + 50 * ["cat", "dog", "owl"].index(label)
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, format="PNG")
        files.append(file.getvalue())
    return pl.DataFrame({"photo": files, "label": LABELS})


PHOTOS = pictures(16, 16, 3)


def made(rows=PHOTOS, family="vit", **options):
    pytest.importorskip("transformers")
    values = {"model_type": family, "config": FAMILIES.get(family, {}), **options}
    columns = TaskColumns(label="label", features={"photo": str(rows["photo"].dtype)})
    return TransformersImageClassification(
        check_options(TransformersImageClassification, values), columns
    )


def fitted(rows=PHOTOS, family="vit", **options):
    task = made(rows, family, **options)
    task.fit(rows.lazy())
    return task


def preprocessor(folder, **settings):
    """The file of a snapshot; returns its path."""
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(settings))
    return str(file)


@pytest.mark.parametrize("shape", [(16, 16, 3), (16, 16)], ids=["colour", "grey"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_takes_the_pictures_form_and_starts_at_the_entropy(family, shape):
    rows = pictures(*shape)
    task = fitted(rows, family)
    model, batch = task.build_model(), task.encode(rows)
    assert model.training
    with torch.no_grad():
        output = model.eval()(**inputs_of(batch))
    assert output.shape == (len(rows), 3)
    loss = float(task.losses(output, batch).mean())
    assert loss == pytest.approx(task.expected_initial_loss(), abs=0.05)
    assert len(task.blocks(model)) == 2, "layers or stages"
    names = dict(model.named_parameters())
    keys = task.parameter_keys()
    assert {name.rpartition(".")[2] for name in keys} == {"weight", "bias"}
    for name, key in keys.items():
        assert key.keys[0] == ("cat", "dog", "owl")
        assert len(names[name]) == 3


def test_a_vit_takes_pictures_that_are_not_square():
    rows = pictures(16, 24)
    task = fitted(rows, "vit")
    assert task.build_model()(**inputs_of(task.encode(rows))).shape == (12, 3)


def write_snapshot(folder, family):
    """A published model of two other classes for pictures of 8 x 8, with its preprocessor."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family], num_labels=2)
    if family == "vit":
        config.image_size = 8
    torch.manual_seed(5)
    model = transformers.AutoModelForImageClassification.from_config(config)
    model.save_pretrained(folder)
    # Sizes as the two published families write them.
    size = {"height": 8, "width": 8} if family == "vit" else {"shortest_edge": 8}
    return model, preprocessor(folder, **IMAGENET, size=size, rescale_factor=1 / 255, resample=2)


@pytest.mark.parametrize("family", WRAPPED)
def test_training_starts_from_a_snapshot_with_its_own_normalisation(tmp_path, family):
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / "snapshots" / revision
    folder.mkdir(parents=True)
    base, file = write_snapshot(folder, family)
    section = ModelSection.model_validate(
        {
            "name": "photos",
            "task": "perennial.tasks.transformers_pictures:TransformersImageClassification",
            "initial": {
                "source": "huggingface", "uri": str(tmp_path / "hub"), "revision": revision,
                "rename": {"": "model."}, "new": ["model.classifier.*"],
            },
        },
        strict=False,
    )  # fmt: skip
    initial = resolve_initial(section, environment_at(tmp_path / "mlflow.db", tmp_path))
    task = fitted(family=family, preprocessor=file)
    model = task.build_model()
    load_initial_weights(model, task, initial)
    loaded = model.model.state_dict()
    # The package writes a ViT's parameters under other names than its modules have.
    assert (set(read_weights(initial)) <= set(model.state_dict())) == (family != "vit")
    for name, value in base.state_dict().items():
        if not name.startswith("classifier."):
            assert torch.equal(loaded[name], value), name
    bias = model.get_submodule(f"model.{HEADS[family]}").bias
    assert torch.allclose(bias, torch.tensor(task.fitted.class_shares).log())
    batch = task.encode(PHOTOS)
    assert batch["image"].shape == (12, 3, 8, 8)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = task.training_losses(model(**inputs_of(batch)), batch).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_the_inputs_are_those_of_the_published_processor(tmp_path):
    """Against the package's own processor, on pictures that need no scaling."""
    transformers = pytest.importorskip("transformers")
    size = {"height": 16, "width": 16}
    try:
        processor = transformers.ViTImageProcessorPil(**IMAGENET, size=size)
    except (AttributeError, ImportError):
        pytest.skip("this version has no processor without torchvision")
    processor.save_pretrained(tmp_path)
    task = fitted(preprocessor=str(tmp_path / "preprocessor_config.json"))
    opened = [Image.open(io.BytesIO(content)) for content in PHOTOS["photo"]]
    expected = np.stack(processor(opened)["pixel_values"])
    assert np.allclose(task.encode(PHOTOS)["image"].numpy(), expected, atol=1e-5)


def test_the_normalisation_is_kept_in_the_state_and_by_the_option_alone(tmp_path):
    file = preprocessor(tmp_path, **IMAGENET, size=8)
    task, own = fitted(preprocessor=file), fitted()
    batch = task.encode(PHOTOS)
    state = json.loads(json.dumps(task.state()))
    (tmp_path / "preprocessor_config.json").unlink()
    restored = made(preprocessor=file)
    restored.load_state(state)
    assert torch.equal(restored.encode(PHOTOS)["image"], batch["image"])
    assert own.encode(PHOTOS)["image"].mean().abs() < 1e-5, "the training split's own"
    assert batch["image"].mean().abs() > 0.1
    same = fitted(preprocessor=preprocessor(tmp_path, **IMAGENET, size=16))
    assert np.array_equal(same.picture(same.encode(PHOTOS), 3), own.picture(own.encode(PHOTOS), 3))


def test_the_contract_s_size_wins_and_grey_pictures_become_the_model_s_channels(tmp_path):
    file = preprocessor(tmp_path, **IMAGENET, size=8)
    task = fitted(pictures(16, 16), preprocessor=file, size=[12, 12])
    assert task.encode(pictures(16, 16))["image"].shape == (12, 3, 12, 12)
    assert task.build_model().model.config.image_size == 12


def test_a_relative_path_is_found_beside_the_contract(tmp_path, monkeypatch):
    preprocessor(tmp_path, **IMAGENET, size=8)
    monkeypatch.syspath_prepend(tmp_path)
    task = fitted(preprocessor="preprocessor_config.json")
    assert task.images.means == pytest.approx([255 * each for each in (0.485, 0.456, 0.406)])


@pytest.mark.parametrize(
    ("settings", "size", "mean", "deviation"),
    [
        ({**IMAGENET, "size": 224}, (224, 224), 0.485 * 255, 0.229 * 255),
        ({**IMAGENET, "size": {"shortest_edge": 256}, "do_center_crop": True,
          "crop_size": {"height": 224, "width": 192}}, (224, 192), 0.485 * 255, 0.229 * 255),
        ({**IMAGENET, "size": {"shortest_edge": 224}, "crop_pct": 0.875}, (224, 224),
         0.485 * 255, 0.229 * 255),
        ({**IMAGENET, "do_resize": False, "size": 224}, None, 0.485 * 255, 0.229 * 255),
        ({**IMAGENET, "size": 8, "rescale_factor": 1 / 127.5}, (8, 8), 0.485 * 127.5, 0.229 * 127.5),
        ({"do_normalize": False, "size": 8}, (8, 8), 0.0, 255.0),
        ({"do_normalize": False, "do_rescale": False, "size": 8}, (8, 8), 0.0, 1.0),
    ],
    ids=["old", "crop", "edge", "as they are", "factor", "scaled alone", "raw"],
)  # fmt: skip
def test_size_and_normalisation_are_read_as_families_write_them(settings, size, mean, deviation):
    found = load_preprocessor(json.dumps(settings))
    assert found.size == size
    assert (found.means[0], found.deviations[0]) == pytest.approx((mean, deviation))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not an object"),
        ("{}", "image_mean is None"),
        (json.dumps({**IMAGENET, "image_std": [1.0, 0.0, 1.0], "size": 8}), "deviation"),
        (json.dumps({**IMAGENET, "image_std": [1.0], "size": 8}), "deviation"),
        (json.dumps({**IMAGENET, "image_mean": ["a", "b", "c"], "size": 8}), "image_mean is"),
        (json.dumps({**IMAGENET, "size": 8, "rescale_factor": 0}), "rescale_factor = 0"),
        (json.dumps(IMAGENET), "size is None"),
        (json.dumps({**IMAGENET, "size": {"longest_edge": 8}}), "size is"),
        (
            json.dumps({**IMAGENET, "size": 8, "do_flip_channel_order": True}),
            "do_flip_channel_order",
        ),
        (json.dumps({**IMAGENET, "size": 8, "include_top": True}), "include_top"),
    ],
)
def test_what_is_not_a_preprocessor_or_cannot_be_followed_is_refused(content, message):
    with pytest.raises(BadTaskError, match=message):
        load_preprocessor(content)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocessor": "absent.json"}, "model.options.preprocessor: there is no absent.json"),
        ({"preprocessor": "preprocessor_config.json", "channels": 1}, "the preprocessor has 3"),
        ({"family": "no-such-family"}, "no-such-family"),
        ({"family": "bert"}, "picture classifier of type 'bert'"),
        ({"config": {"hidden_sise": 4}}, "hidden_sise"),
        ({"config": {**FAMILIES["vit"], "image_size": 32}}, "does not take pictures of 16 x 16"),
        ({"config": {**FAMILIES["vit"], "patch_size": 32}}, "does not take pictures of 16 x 16"),
        ({"family": "swinv2"}, "does not build a picture classifier of type 'swinv2'"),
        ({"family": "efficientnet"}, "does not take pictures of 16 x 16 pixels and 3 channels"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, monkeypatch, options, message):
    preprocessor(tmp_path, **IMAGENET, size=8)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadTaskError, match=message):
        fitted(**options).build_model()


def test_a_preprocessor_is_for_encoded_pictures(tmp_path):
    rows = pl.DataFrame({"photo": [[0.5] * 16] * 12, "label": LABELS})
    with pytest.raises(BadTaskError, match="for encoded pictures"):
        fitted(rows, preprocessor=preprocessor(tmp_path, **IMAGENET, size=4), shape=[4, 4])


def test_pictures_of_several_sizes_need_a_size():
    rows = pl.concat([PHOTOS, pictures(8, 8, 3)])
    with pytest.raises(BadDataError, match="differ in size"):
        fitted(rows)
    assert fitted(rows, size=[16, 16]).encode(rows)["image"].shape == (24, 3, 16, 16)


def test_options_of_the_own_networks_are_refused():
    with pytest.raises(BadTaskError, match="preset"):
        made(preset="resnet18")


def test_without_the_package_the_extra_is_named(monkeypatch):
    task = fitted()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadTaskError, match="perennial\\[transformers\\]"):
        task.build_model()
