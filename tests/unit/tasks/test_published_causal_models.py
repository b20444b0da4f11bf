"""A published causal model is trained on with its own tokens, as a script of transformers does."""

import json
import shutil

import polars as pl
import pytest
import torch

from documents import documents
from documents import pinned as pinned_documents
from perennial.contracts.adapter import Adapter
from perennial.contracts.data import ModelSection, Split, TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.adapters import build_starting_model
from perennial.engine.config.training import TrainingSection
from perennial.engine.export import write_weights
from perennial.engine.initial_weights import load_initial_weights
from perennial.engine.serving.pyfunc import _load_pyfunc
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import LABEL, WEIGHT, inputs_of, load_task
from perennial.registry.initial import resolve_initial
from perennial.tasks.columns.document_tokenizer import DocumentTokenizer
from perennial.tasks.transformers_models import TransformersCausalLM
from published_models import (
    FAMILIES,
    TASK,
    initial_of,
    options_of,
    plain_loss,
    published_tokenizer,
    snapshot_in,
    train_tokenizer,
    write_published,
)
from small_models import environment_at
from stored_weights import store_weights

TEXTS = [
    "the mean of the axis",
    "the mean of an axis of values",
    "a sum over the axis: 3 µm",
    "",
] * 8
LONG = "the mean of the axis, größe 平均値 😀, " * 4


@pytest.fixture(scope="module", params=FAMILIES)
def published(request, tmp_path_factory):
    """Family, folder and model of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, write_published(folder, request.param, TEXTS, steps=3)


def task_of(family, folder, **options):
    section = TransformersCausalLM.Options.model_validate(
        options_of(family, folder, **options), strict=False
    )
    return TransformersCausalLM(section, TaskColumns(label="text", features={"text": "String"}))


def fitted(family, folder, **options):
    task = task_of(family, folder, **options)
    task.fit(pl.LazyFrame({"text": TEXTS}))
    return task


def pinned(folder, tmp_path, **changes):
    """The weights, through the section of a contract."""
    section = ModelSection.model_validate(
        {"name": "texts", "task": TASK, "initial": initial_of(folder, **changes)}, strict=False
    )
    return resolve_initial(section, environment_at(tmp_path / "mlflow.db", tmp_path))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "cache"))


def test_its_losses_are_those_of_a_script_of_transformers(published, tmp_path):
    transformers = pytest.importorskip("transformers")
    family, folder, _ = published
    task = fitted(family, folder)
    model = task.build_model().eval()
    load_initial_weights(model, task, pinned(folder, tmp_path))
    texts = [*TEXTS[:4], LONG, "ein größerer Text"]
    batch = task.encode(pl.DataFrame({"text": texts}))
    plain = transformers.AutoModelForCausalLM.from_pretrained(snapshot_in(folder)).eval()
    tokenizer = published_tokenizer(snapshot_in(folder))
    with torch.no_grad():
        losses = task.losses(model(**inputs_of(batch)), batch)
        found = float(losses @ batch[WEIGHT] / batch[WEIGHT].sum())
        expected = float(plain_loss(plain, tokenizer, family, texts))
        alone = [float(plain_loss(plain, tokenizer, family, [text])) for text in texts]
    assert found == pytest.approx(expected, abs=1e-6)
    assert losses.tolist() == pytest.approx(alone, abs=1e-6)


def test_settings_are_those_of_its_config_unless_the_contract_names_others(published):
    family, folder, _ = published
    name = "resid_pdrop" if family == "gpt2" else "attention_dropout"
    model = fitted(family, folder, config={name: 0.25}).build_model().model
    assert getattr(model.config, name) == 0.25
    assert model.config.max_position_embeddings == 24
    assert {value.dtype for value in model.parameters()} == {torch.float32}


def test_without_its_config_the_losses_would_be_others(tmp_path):
    """Another base of rotary positions has the same names and shapes."""
    folder, losses = tmp_path / "llama", []
    write_published(folder, "llama", TEXTS)
    config = {name: value for name, value in FAMILIES["llama"].items() if name != "rope_theta"}
    for options in ({}, {"pretrained_config": "", "config": config}):
        task = fitted("llama", folder, **options)
        model = task.build_model().eval()
        load_initial_weights(model, task, pinned(folder, tmp_path))
        batch = task.encode(pl.DataFrame({"text": TEXTS[:4]}))
        with torch.no_grad():
            losses.append(float(task.losses(model(**inputs_of(batch)), batch).mean()))
    assert abs(losses[0] - losses[1]) > 1e-3


def test_documents_stand_between_the_familys_tokens_and_padding_counts_nowhere(published):
    family, folder, _ = published
    task = fitted(family, folder)
    batch = task.encode(pl.DataFrame({"text": ["the mean", "", LONG]}))
    first, last = task.tokenizer.first, task.tokenizer.last
    assert (first == last) == (family != "llama")
    assert batch["tokens"][:, 0].tolist() == [first] * 3
    assert batch["tokens"][1].tolist() == [first] + [last] * 23
    assert batch[LABEL][1].tolist() == [last] + [-100] * 23
    counted = int(batch[WEIGHT][0])
    assert batch[LABEL][0, counted - 1 :].tolist() == [last] + [-100] * (24 - counted)
    assert batch[WEIGHT][2] == 24
    assert task.describe(batch, 2)["tokens"] == "24, cut"
    assert "the mean" in task.describe(batch, 0)["text"]


def test_bytes_are_those_of_the_raw_text(published):
    family, folder, _ = published
    task = fitted(family, folder, context_length=24, windows=8)
    texts = ["the mean", "", "größe: 3 µm", "平均値 😀", " leading"]
    batch = task.encode(pl.DataFrame({"text": texts}))
    with torch.no_grad():
        statistics = task.statistic(task.build_model()(**inputs_of(batch)), batch).numpy()
    found = task.exposure(statistics, batch[WEIGHT].numpy())
    assert found.tolist() == [len(text.encode()) for text in texts]


def test_another_normal_form_of_unicode_is_the_same_text():
    tokenizer = DocumentTokenizer(train_tokenizer(TEXTS, "qwen2"))
    combined, separate = tokenizer.encode(["caf\u00e9", "cafe\u0301"])
    assert combined.tolist() == separate.tolist()


def test_tokenizer_and_predictions_are_kept_in_the_state(published):
    family, folder, _ = published
    task = fitted(family, folder)
    state = json.loads(json.dumps(task.state()))
    restored = task_of(family, folder.parent / "gone")
    restored.load_state(state)
    rows = pl.DataFrame({"text": [*TEXTS[:4], LONG]})
    assert torch.equal(restored.encode(rows)["tokens"], task.encode(rows)["tokens"])
    assert restored.parameter_keys().keys() == task.parameter_keys().keys()
    (keys,) = {tuple(map(str, each.keys[0])) for each in restored.parameter_keys().values()}
    assert keys[task.tokenizer.last] == task.tokenizer.end


TARGETS = {"gpt2": ("*.c_attn", "*.mlp.c_*"), "llama": ("*.q_proj", "*.down_proj")}


def test_an_adapter_learns_beside_it(published, tmp_path):
    pytest.importorskip("peft")
    family, folder, base = published
    task = fitted(family, folder)
    targets = TARGETS.get(family, TARGETS["llama"])
    training = TrainingSection(adapter=Adapter(targets=targets, rank=4, alpha=16.0))
    model = build_starting_model(task, training, pinned(folder, tmp_path)).eval()
    batch = task.encode(pl.DataFrame({"text": TEXTS[:4]}))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=2e-2), []
    for _ in range(40):
        optimizer.zero_grad()
        loss = task.training_losses(model(**inputs_of(batch)), batch).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.05
    kept = dict(model.model.named_parameters())
    for name, value in base.named_parameters():
        module, _, last = name.rpartition(".")
        assert torch.equal(kept.get(name, kept.get(f"{module}.base_layer.{last}")), value), name


BY_HAND = {"pretrained_config": "", "config": FAMILIES["gpt2"]}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    write_published(folder, "gpt2", TEXTS)
    return folder


@pytest.mark.parametrize(
    ("options", "message", "action"),
    [
        ({"tokenizer": "absent.json"}, "there is no absent.json", "tokenizer.json"),
        ({"vocab_size": 257, **BY_HAND}, "more ids than the model: 287, not 257", "vocab_size = 287"),
        ({"vocab_size": 50257, **BY_HAND}, "far fewer ids than the model: 287, not 50,257", "the model's"),
        ({"context_length": 25}, "is beyond the model's positions", "context_length = 24"),
        ({"pretrained_config": "absent.json"}, "there is no absent.json", "config.json"),
        (
            {"model_type": "llama"}, "model_type = 'llama' is not the pretrained model's",
            'model_type = "gpt2"',
        ),
        ({"vocab_size": 288}, "vocab_size = 288 is not the pretrained", "vocab_size = 290"),
        ({"end_of_text": "<|end|>"}, r"no special token '<\|end\|>'", "end_of_text"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(gpt2, options, message, action):
    with pytest.raises(BadTaskError, match=message) as refused:
        fitted("gpt2", gpt2, **options).build_model()
    assert action in refused.value.action


def test_an_end_of_text_without_a_tokenizer_is_refused():
    with pytest.raises(ValueError, match="name `tokenizer`"):
        TransformersCausalLM.Options(end_of_text="</s>")


def test_a_model_of_another_size_than_the_stored_one_is_refused(gpt2, tmp_path):
    task = fitted("gpt2", gpt2, vocab_size=300, **BY_HAND)
    with pytest.raises(BadTaskError, match=r"wte\.weight has another shape"):
        load_initial_weights(task.build_model(), task, pinned(gpt2, tmp_path))


def test_a_snapshot_without_a_head_fills_the_tied_one(gpt2, tmp_path):
    """As GPT-2's own: names of the inner model, and masks that no model has any more."""
    task = fitted("gpt2", gpt2)
    tensors = task.build_model().model.transformer.state_dict()
    stored = {**tensors, "h.0.attn.bias": torch.ones(1, 1, 24, 24)}
    changes = {"rename": {"": "model.transformer."}, "unused": ("*.attn.bias",)}
    model = task.build_model()
    load_initial_weights(model, task, store_weights(tmp_path, stored, **changes))
    assert torch.equal(model.model.lm_head.weight, tensors["wte.weight"])


def test_weights_that_the_model_ties_and_the_stored_ones_do_not_are_refused(gpt2, tmp_path):
    task = fitted("gpt2", gpt2)
    stored = task.build_model().state_dict()
    # As some downloads hold them: the same values under both names.
    load_initial_weights(task.build_model(), task, store_weights(tmp_path, stored))
    stored["model.lm_head.weight"] = stored["model.lm_head.weight"] + 1.0
    with pytest.raises(BadTaskError, match=r"the model ties model\.transformer\.wte\.weight and"):
        load_initial_weights(task.build_model(), task, store_weights(tmp_path, stored))


@pytest.mark.parametrize(
    ("text", "message"),
    [("one<|endoftext|>two", "which ends documents"), ("The Mean", "do not encode all of it")],
)
def test_texts_that_the_tokens_do_not_spell_are_refused(text, message):
    file = json.loads(train_tokenizer(TEXTS))
    file["normalizer"] = {"type": "Lowercase"}
    with pytest.raises(BadTaskError, match=message):
        DocumentTokenizer(json.dumps(file)).encode([text])


def test_a_tokenizer_that_begins_texts_with_several_tokens_is_refused():
    file = json.loads(train_tokenizer(TEXTS, "llama"))
    single = file["post_processor"]["single"]
    single.insert(0, single[0])
    with pytest.raises(BadTaskError, match="puts 2 tokens before a text, not one"):
        DocumentTokenizer(json.dumps(file))


def test_the_end_of_a_document_is_named_where_several_tokens_may_be_it():
    file = json.loads(train_tokenizer(TEXTS, "llama"))
    file["added_tokens"].append({**file["added_tokens"][0], "id": 1000, "content": "<eos>"})
    file["model"]["vocab"]["<eos>"] = 1000
    with pytest.raises(BadTaskError, match="does not tell what ends a document"):
        DocumentTokenizer(json.dumps(file))
    assert DocumentTokenizer(json.dumps(file), "</s>").last == 2


def test_a_served_version_needs_no_file_of_the_snapshot(tmp_path):
    folder, data = tmp_path / "hub", pinned_documents(tmp_path / "data", documents(200))
    write_published(folder, "llama", TEXTS)
    options = options_of("llama", folder)
    task = load_task(TASK, options, data.task_columns)
    task.fit(Dataset(data).scan(Split.TRAIN))
    model = task.build_model().eval()
    load_initial_weights(model, task, pinned(folder, tmp_path))
    version = tmp_path / "version"
    Challenger(
        task=TASK, options=options, task_state=task.state(), columns=data.task_columns,
        training_fingerprint="training", metric="bits_per_byte", direction="minimize",
        chosen_step=1, candidates=(), reason="step 1: the only checkpoint kept", diagnosis=(),
        weights_sha256=write_weights(model, version),
    ).write(version)  # fmt: skip
    make_servable(version, Dataset(data))
    shutil.rmtree(folder)
    rows = pl.DataFrame({"text": TEXTS[:4]})
    served = _load_pyfunc(str(version)).predict(rows.to_pandas())
    batch = task.encode(rows)
    with torch.no_grad():
        expected = task.statistic(model(**inputs_of(batch)), batch).numpy()
    assert list(served.columns) == ["loss_per_token", "bytes_per_token"]
    assert served.to_numpy() == pytest.approx(expected, abs=1e-6)
