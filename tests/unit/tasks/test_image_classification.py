"""Image classification on pictures as they come: formats, sizes, colours, lists of numbers."""

import io
import json
import math
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
import torch
from PIL import ExifTags, Image, ImageOps
from pydantic import ValidationError

from perennial.check_skeleton.report import _collect_pixels, _draw_pictures
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError, BadTaskError, PerennialError
from perennial.contracts.section import canonical_json
from perennial.data.pictures import decode_picture, encode_png
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.parallelism.parallelize import require_contiguous
from perennial.engine.task import LABEL, check_options
from perennial.tasks.columns import image_columns
from perennial.tasks.image_classification import IMAGE, ImageClassification
from perennial.tasks.picture_augmentation import Augmentation, augment_pictures, mix_pictures

ROWS = 12
LABELS = ["cat", "dog", "owl"] * 4


def pixels(*shape, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(picture: np.ndarray, form="PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format=form)
    return file.getvalue()


def pictures(*shape, form="PNG") -> pl.DataFrame:
    images = [encoded(pixels(*shape, seed=row), form) for row in range(ROWS)]
    return pl.DataFrame({"photo": images, "label": LABELS})


def make(rows: pl.DataFrame, **options) -> ImageClassification:
    features = {name: str(dtype) for name, dtype in rows.schema.items() if name != "label"}
    columns = TaskColumns(label="label", features=features)
    task = ImageClassification(check_options(ImageClassification, options), columns)
    task.fit(rows.lazy())
    return task


def numbers(shape: tuple[int, ...], dtype=None) -> pl.DataFrame:
    values = pixels(ROWS, *shape).astype(int)
    flat = pl.Series("photo", values.reshape(ROWS, -1).tolist())
    column = flat if dtype is None else pl.Series("photo", values.tolist(), dtype=dtype)
    return pl.DataFrame([column, pl.Series("label", LABELS)])


@pytest.mark.parametrize(
    ("rows", "options", "shape"),
    [
        (pictures(8, 8), {}, [ROWS, 1, 8, 8]),
        (pictures(8, 6, 3), {}, [ROWS, 3, 8, 6]),
        (pictures(8, 6, 3, form="JPEG"), {}, [ROWS, 3, 8, 6]),
        (pl.concat([pictures(8, 8)[:6], pictures(8, 8, 3)[6:]]), {}, [ROWS, 3, 8, 8]),
        (pictures(8, 8, 3), {"channels": 1}, [ROWS, 1, 8, 8]),
        (pictures(8, 8), {"channels": 3}, [ROWS, 3, 8, 8]),
        (pictures(9, 7), {"size": [16, 12]}, [ROWS, 1, 16, 12]),
        (numbers((8, 6)), {"shape": [8, 6]}, [ROWS, 1, 8, 6]),
        (numbers((8, 6, 3)), {"shape": [8, 6, 3]}, [ROWS, 3, 8, 6]),
        (numbers((8, 6), pl.Array(pl.Float64, (8, 6))), {}, [ROWS, 1, 8, 6]),
        (numbers((48,), pl.Array(pl.Int64, 48)), {"shape": [8, 6]}, [ROWS, 1, 8, 6]),
    ],
    ids=["grey", "colour", "jpeg", "grey before colour", "to grey", "to colour", "scaled", "flat list", "flat colour",
         "array", "flat array"],
)  # fmt: skip
def test_pictures_become_standardised_tensors(rows, options, shape):
    task = make(rows, **options)
    batch = task.encode(rows)
    assert list(batch[IMAGE].shape) == shape
    assert batch[IMAGE].dtype == torch.float32
    assert batch[IMAGE].mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (batch[IMAGE].std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5
    assert batch[LABEL].tolist() == [0, 1, 2] * 4
    scored = score_batch(task, task.build_model(), batch)
    assert scored.predictions.shape == (ROWS, 3)
    assert np.isfinite(scored.losses).all()


@pytest.mark.parametrize("shapes", [[(8, 8), (8, 8, 3)], [(8, 8, 3), (8, 8)], [(8, 8), (8, 8)]])
def test_colours_that_come_late_are_kept(shapes, monkeypatch):
    """Folders of classes are stored one after the other, so that the first rows are of one kind."""
    first, last = (pictures(*shape)[:6] for shape in shapes)
    rows = pl.concat([first, last])
    expected = make(rows).images
    monkeypatch.setattr(image_columns, "FIT_ROWS", 4)
    assert make(rows).images == expected
    assert expected.channels == max(len(shape) for shape in shapes) * 2 - 3


def test_pixels_keep_their_place_and_come_back_for_people():
    rows = pictures(5, 4, 3)
    task = make(rows)
    batch = task.encode(rows)
    for index in range(ROWS):
        assert np.array_equal(task.picture(batch, index), pixels(5, 4, 3, seed=index))
    assert task.describe(batch, 1)["label"] == "dog"


def test_statistics_are_those_of_the_rows_given_to_fit():
    rows = pictures(8, 8)
    half = make(rows.head(6)).fitted.images
    stacked = np.stack([pixels(8, 8, seed=row) for row in range(6)]).astype(float)
    assert half.means[0] == pytest.approx(stacked.mean(), rel=1e-12)
    assert half.deviations[0] == pytest.approx(stacked.std(), rel=1e-9)
    assert make(rows).fitted.images.means != half.means


def test_state_goes_through_json():
    rows = pictures(8, 8, 3)
    task = make(rows)
    restored = ImageClassification(task.options, task.columns)
    restored.load_state(json.loads(canonical_json(task.state())))
    assert torch.equal(restored.encode(rows)[IMAGE], task.encode(rows)[IMAGE])
    restored.build_model().load_state_dict(task.build_model().state_dict())


@pytest.mark.parametrize("budget", [1, 4 * 30 * 5, 10**9])
def test_few_pictures_are_in_memory_at_once_and_the_cut_moves_no_bit(monkeypatch, budget):
    rows = pictures(10, 3)
    expected = make(rows).fitted.images
    parts, read = [], image_columns.read_images

    def watched(column, state):
        parts.append(len(column))
        return read(column, state)

    monkeypatch.setattr(image_columns, "FIT_BYTES", budget)
    monkeypatch.setattr(image_columns, "read_images", watched)
    assert make(rows).fitted.images == expected
    assert parts == {1: [1] * 12, 600: [5, 5, 2], 10**9: [12]}[budget]


def test_a_missing_picture_is_the_mean_one():
    rows = pictures(8, 8)
    task = make(rows)
    served = pl.DataFrame({"photo": [rows["photo"][0], None]})
    batch = task.encode(served)
    assert batch[IMAGE][1].abs().max() == 0
    assert LABEL not in batch


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (pl.DataFrame({"photo": [b"no picture"] * 3, "label": ["a", "b", "a"]}), {}, "decoded"),
        (pl.concat([pictures(8, 8), pictures(9, 8)]), {}, "differ in size"),
        (pictures(8, 8), {"shape": [8, 8]}, "shape has no effect"),
        (numbers((8, 8)), {"shape": [8, 8], "size": [4, 4]}, "size has no effect"),
        (numbers((8, 8)), {"shape": [8, 7]}, "not 56 numbers"),
        (numbers((8, 8)), {}, "have the shape"),
        (pl.DataFrame({"photo": ["x", "y"], "label": ["a", "b"]}), {}, "does not contain pictures"),
        (pictures(8, 8).with_columns(other=1), {}, "needs exactly one feature"),
        (pictures(8, 8).with_columns(photo=pl.lit(None, pl.Binary)), {}, "contains no picture"),
        (pictures(8, 8).with_columns(label=pl.lit("a")), {}, "classes to train on"),
    ],
    ids=["damaged", "sizes", "useless shape", "useless size", "wrong shape", "no shape", "text",
         "two features", "none", "one class"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_reason(rows, options, message):
    with pytest.raises(BadDataError, match=message):
        make(rows, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encoded(pixels(40, 40))[:-400], "complete PNG"),
        (encoded(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900), "more than eight bits"),
        (b"", "0 bytes"),
        (b"DDS " + (124).to_bytes(4, "little") + bytes(200), "Unknown pixel format"),
    ],
    ids=["cut off", "16 bits", "empty", "what the parser does not know"],
)
def test_damaged_pictures_are_never_half_read(content, message):
    with pytest.raises(BadDataError, match=message):
        decode_picture(content)


def test_png_keeps_every_pixel():
    for shape in ((7, 5), (7, 5, 3)):
        assert np.array_equal(decode_picture(encode_png(pixels(*shape))), pixels(*shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "vit", "preset": "resnet18"}, "is not a preset of vit"),
        ({"preset": "vit_tiny"}, "is not a preset of resnet"),
        ({"architecture": "vit", "channels_last": True}, "for convolutions"),
        ({"vit": {"depth": 2}}, "does not use"),
        ({"architecture": "vit", "resnet": {"stem": "large"}}, "does not use"),
        ({"resnet": {"depths": [1, 1]}}, "need as many widths"),
        ({"architecture": "vit", "vit": {"heads": 7}}, "multiple of vit.heads"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, message):
    with pytest.raises((BadTaskError, ValidationError), match=message):
        check_options(ImageClassification, options)


# Published parameter counts for 1,000 classes: torchvision's model pages for the ResNets, table 1
# of DeiT for the ViTs, rounded there to millions.
PUBLISHED = {
    "resnet18": 11_689_512, "resnet50": 25_557_032, "vit_tiny": 5_717_416, "vit_small": 22_050_664,
}  # fmt: skip


@pytest.mark.parametrize(("preset", "expected"), PUBLISHED.items())
def test_presets_are_the_published_networks(preset, expected):
    labels = [f"{number:04}" for number in range(1000)]
    content = encoded(pixels(224, 224, 3))
    rows = pl.DataFrame({"photo": [content] * 2 + [None] * 998, "label": labels})
    task = make(rows, architecture=preset.partition("_")[0].rstrip("0123456789"), preset=preset)
    model = task.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize("architecture", ["resnet", "vit"])
def test_first_loss_is_the_label_entropy(architecture):
    rows = pictures(8, 8)
    rows = pl.concat([rows, rows.filter(pl.col("label") == "cat")])
    task = make(rows, architecture=architecture)
    losses = score_batch(task, task.build_model(), task.encode(rows)).losses
    shares = np.array([0.5, 0.25, 0.25])
    assert task.expected_initial_loss() == pytest.approx(-(shares * np.log(shares)).sum())
    assert losses.mean() == pytest.approx(task.expected_initial_loss(), rel=0.05)


def test_labels_are_smoothed_in_training_alone():
    rows = pictures(8, 8)
    task, plain = make(rows, label_smoothing=0.2), make(rows)
    batch, output = task.encode(rows), torch.randn(ROWS, 3)
    expected = 0.8 * plain.losses(output, batch) - 0.2 * output.log_softmax(1).mean(1)
    assert torch.allclose(task.training_losses(output, batch), expected, atol=1e-6)
    assert torch.equal(task.losses(output, batch), plain.losses(output, batch))
    assert torch.equal(plain.training_losses(output, batch), plain.losses(output, batch))
    prior = torch.tensor(task.fitted.class_shares).log().expand(ROWS, -1)
    theory = 0.8 * task.expected_initial_loss() + 0.2 * math.log(3)
    assert float(task.training_losses(prior, batch).mean()) == pytest.approx(theory)


def test_augmentation_moves_whole_pictures_and_follows_its_generator():
    rows = pictures(8, 8)
    task = make(rows, augmentation={"shift": 1, "flip": True})
    batch = task.encode(rows)
    before = batch[IMAGE].clone()
    first = task.augment(batch, torch.Generator().manual_seed(3))[IMAGE]
    assert torch.equal(batch[IMAGE], before)
    assert torch.equal(first, task.augment(batch, torch.Generator().manual_seed(3))[IMAGE])
    padded = torch.nn.functional.pad(before, (1, 1, 1, 1), mode="replicate")
    found = set()
    for index in range(ROWS):
        ways = {
            (down, across, flip): (view.flip(2) if flip else view)
            for down in range(3) for across in range(3) for flip in (False, True)
            for view in [padded[index, :, down : down + 8, across : across + 8]]
        }  # fmt: skip
        (way,) = [way for way, view in ways.items() if torch.equal(view, first[index])]
        found.add(way)
    assert len(found) > 6, "each picture by its own draw"


def test_noise_has_the_deviation_asked_for_and_is_off_by_default():
    rows = pictures(8, 8)
    batch = make(rows).encode(rows)
    noisy = make(rows, augmentation={"noise": 0.1}).augment(batch, torch.Generator())
    assert float((noisy[IMAGE] - batch[IMAGE]).std()) == pytest.approx(0.1, rel=0.1)
    assert make(rows).augment(batch, torch.Generator())[IMAGE] is batch[IMAGE]


def test_score_counts_classes_alike():
    task = make(pictures(8, 8))
    predictions = np.eye(3)[[0, 0, 0, 0, 1, 2]] * 0.98 + 0.01
    scores = task.score(predictions, np.array([0.0, 0, 0, 1, 1, 2]))
    assert scores["accuracy"] == pytest.approx(5 / 6)
    # F1 by hand: 6/7, 2/3, 1.
    assert scores["macro_f1"] == pytest.approx((6 / 7 + 2 / 3 + 1) / 3)


def test_channels_last_computes_the_same_and_is_found_in_the_weights():
    rows = pictures(8, 8, 3)
    torch.manual_seed(0)
    plain = make(rows).build_model()
    torch.manual_seed(0)
    last = make(rows, channels_last=True).build_model()
    image = make(rows).encode(rows)[IMAGE]
    assert torch.allclose(plain(image), last(image), atol=1e-5)
    weight = last.stem[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


@pytest.mark.parametrize(("architecture", "count"), [("resnet", 3), ("vit", 4)])
def test_blocks_are_sharded_one_by_one(architecture, count):
    task = make(pictures(8, 8), architecture=architecture)
    assert len(task.blocks(task.build_model())) == count


def test_residual_blocks_start_as_their_shortcut():
    model = make(pictures(8, 8)).build_model()
    hidden = torch.rand(4, 16, 8, 8)
    assert torch.equal(model.blocks[0](hidden), hidden)


def test_a_patch_that_does_not_divide_the_picture_is_refused():
    task = make(pictures(9, 9), architecture="vit")
    with pytest.raises(BadTaskError, match="cannot be cut into patches"):
        task.build_model()


def photo(orientation):
    """A JPEG with two of a camera's notes."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.ImageDescription] = "1/50"
    Image.fromarray(pixels(8, 6)).save(file, format="JPEG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_camera_orientation_is_followed(orientation):
    content = photo(orientation)
    with Image.open(io.BytesIO(content)) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    assert np.array_equal(decode_picture(content), expected)
    # A note of another type than the standard's, as phones write, spoils no picture.
    odd = content.replace(b"\x01\x0e\x00\x02", b"\x01\x00\x00\x02")
    assert odd != content
    assert np.array_equal(decode_picture(odd), expected)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
@pytest.mark.parametrize("notes", [b"no notes", b"II*\0"])
def test_a_picture_whose_notes_cannot_be_read_is_upright(kind, notes):
    def encode(**options):
        file = io.BytesIO()
        Image.fromarray(pixels(8, 6)).save(file, format=kind, **options)
        return file.getvalue()

    noted = encode(exif=b"Exif\0\0" + notes)
    assert len(noted) > len(encode())
    assert np.array_equal(decode_picture(noted), decode_picture(encode()))
    if kind != "WEBP":  # a damaged picture stays an error
        with pytest.raises(BadDataError, match="cannot be decoded"):
            decode_picture(noted[: len(noted) - 30])


def test_dates_are_no_pictures():
    rows = pl.DataFrame({"photo": [datetime(2024, 1, 1, tzinfo=UTC)] * 3, "label": ["a", "b", "a"]})
    with pytest.raises(BadDataError, match="does not contain pictures"):
        make(rows)


def test_fsdp_refuses_weights_in_another_memory_format():
    rows = pictures(8, 8, 3)
    require_contiguous(make(rows).build_model())
    with pytest.raises(PerennialError, match="another memory format") as refused:
        require_contiguous(make(rows, channels_last=True).build_model())
    assert "channels_last" in str(refused.value)


def test_the_report_shows_the_pictures():
    rows = pictures(8, 8, 3)
    task = make(rows)
    batch = task.encode(rows.head(2))
    shown = _collect_pixels(task, batch)
    assert [picture.shape for picture in shown] == [(8, 8, 3)] * 2
    assert np.array_equal(shown[1], pixels(8, 8, 3, seed=1))
    assert "data:image/png;base64" in _draw_pictures(task, batch, "Images")


def test_turns_are_around_the_middle_and_crops_stay_inside():
    rows = pictures(8, 8)
    batch = make(rows).encode(rows)
    half = Augmentation(rotation=180.0)
    assert augment_pictures(batch[IMAGE], half, torch.Generator()).shape == batch[IMAGE].shape
    ramp = torch.arange(16.0).expand(64, 1, 12, 16)
    cropped = augment_pictures(ramp, Augmentation(crop=0.5), torch.Generator().manual_seed(0))
    steps = cropped[:, 0, 6, 2:-2].diff(dim=1)
    assert torch.allclose(steps, steps[:, :1].expand_as(steps), atol=1e-4), "scaled evenly"
    assert float(steps.min()) >= 0.5
    assert float(steps.max()) <= 1.0
    assert float(cropped.amin()) >= 0
    assert float(cropped.amax()) <= 15
    ring = torch.zeros(8, 1, 17, 33)
    ring[:, :, 8, 16] = 1.0
    turned = augment_pictures(ring, Augmentation(rotation=90.0), torch.Generator().manual_seed(1))
    assert torch.allclose(turned[:, 0, 8, 16], torch.ones(8), atol=1e-5), "the middle stays"


def test_colour_changes_contrast_and_brightness_of_each_picture():
    image = torch.randn(256, 3, 8, 8)
    found = augment_pictures(image, Augmentation(color=0.3), torch.Generator().manual_seed(0))
    for each, before in zip(found, image, strict=True):
        slope, start = np.polyfit(before.flatten(), each.flatten(), 1)
        assert 0.7 <= slope <= 1.3
        assert abs(start) <= 0.3
        assert torch.allclose(each, float(slope) * before + float(start), atol=1e-4)


@pytest.mark.parametrize("options", [{"mixup": 0.4}, {"cutmix": 1.0}])
def test_labels_are_mixed_in_the_share_of_the_pictures(options):
    image = torch.arange(32.0)[:, None, None, None].expand(32, 1, 10, 12)
    generator = torch.Generator().manual_seed(4)
    mixed, shares = mix_pictures(image, torch.arange(32), 32, Augmentation(**options), generator)
    assert torch.allclose(shares.sum(dim=1), torch.ones(32))
    assert float(((shares > 0).sum(dim=1) == 2).float().mean()) > 0.5
    expected = (shares * torch.arange(32.0)).sum(dim=1)
    assert torch.allclose(mixed.mean(dim=(1, 2, 3)), expected, atol=1e-4)
    if "cutmix" in options:
        assert all(len(each.unique()) <= 2 for each in mixed), "pixels are of one picture each"


def test_each_batch_draws_mixup_or_cutmix():
    image = torch.randn(8, 1, 6, 6)
    both, kinds = Augmentation(mixup=1.0, cutmix=1.0), set()
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        mixed, _ = mix_pictures(image, torch.zeros(8, dtype=torch.long), 2, both, generator)
        kinds.add(bool(torch.isin(mixed, image).all()))
    assert kinds == {True, False}


def test_a_mixed_example_names_the_shares_of_its_classes():
    rows = pictures(8, 8)
    task = make(rows, augmentation={"mixup": 1.0})
    batch = task.augment(task.encode(rows), torch.Generator().manual_seed(0))
    assert batch[LABEL].shape == (ROWS, 3)
    assert any("%, " in task.describe(batch, index)["label"] for index in range(ROWS))
    losses = task.training_losses(torch.zeros(ROWS, 3), batch)
    torch.testing.assert_close(losses, torch.full((ROWS,), math.log(3)))
