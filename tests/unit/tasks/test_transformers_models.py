"""A family of `transformers` named in the contract is a task like the reference one."""

import json
import sys
from functools import partial

import polars as pl
import pytest
import torch
from torch import nn

from documents import SETTINGS, documents, pinned
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import ModelSection, TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.initial_weights import load_initial_weights
from perennial.engine.task import LABEL, WEIGHT, inputs_of
from perennial.registry.initial import resolve_initial
from perennial.tasks.transformers_models import (
    TransformersCausalLM,
    TransformersTextClassification,
    TransformersTokenClassification,
)
from small_models import environment_at

FAMILIES = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 24},
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    },
}  # fmt: skip
NAMES = (
    "per_example_losses", "example_weights", "initial_loss", "future_independence",
    "example_independence", "parameter_gradients", "state_round_trip",
)  # fmt: skip


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    return pinned(tmp_path_factory.mktemp("documents"), documents())


def task_of(snapshot, **options):
    section = TransformersCausalLM.Options.model_validate({"context_length": 24} | options)
    return TransformersCausalLM(section, snapshot.task_columns)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_passes_the_checks(snapshot, family):
    pytest.importorskip("transformers")
    make_task = partial(task_of, snapshot, model_type=family, config=FAMILIES[family])
    subject = Subject.prepare(make_task, Dataset(snapshot), SETTINGS, TrainingSection(seed=1))
    results = run_checks(subject, NAMES)
    assert {result.check: result.measured for result in results if result.outcome != "passed"} == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_are_its_blocks_and_windows_are_seen_alone(snapshot, family):
    pytest.importorskip("transformers")
    options = {"model_type": family, "config": FAMILIES[family], "windows": 2}
    task = task_of(snapshot, **options)
    model = task.build_model().eval()
    assert len(task.blocks(model)) == 2
    batch = task.encode(pl.DataFrame({"text": ["a text beyond the first window of tokens"]}))
    with torch.no_grad():
        whole = model(**inputs_of(batch))
        model.windows = 1
        second = model(batch["tokens"][:, 24:])
    assert whole.shape == (1, 48, 257)
    assert torch.allclose(whole[:, 24:], second, atol=1e-5)


class ManyExperts(nn.Module):
    """Two layers of eight experts each."""

    def __init__(self):
        super().__init__()
        experts = [nn.ModuleList(nn.Linear(4, 4) for _ in range(8)) for _ in range(2)]
        self.layers = nn.ModuleList(nn.ModuleDict({"experts": each}) for each in experts)


def test_the_blocks_are_the_layers_not_the_experts_of_one(snapshot):
    model = ManyExperts()
    assert task_of(snapshot).blocks(model) == list(model.layers)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model_type": "no-such-family"}, "no-such-family"),
        ({"model_type": "gpt2", "config": {"hiden_size": 32}}, "hiden_size"),
        ({"model_type": "gpt2", "config": {"n_embd": 30, "n_head": 4}}, "gpt2"),
    ],
)
def test_what_the_family_does_not_know_is_refused(snapshot, options, named):
    pytest.importorskip("transformers")
    with pytest.raises(BadTaskError, match=named):
        task_of(snapshot, **options).build_model()


def test_without_the_package_the_extra_is_named(snapshot, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadTaskError, match="perennial\\[transformers\\]"):
        task_of(snapshot).build_model()


TOPICS = pl.DataFrame(
    {"text": ["a goal", "the price", "a team", "the stock"] * 6, "topic": ["sport", "trade"] * 12}
)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "goal", "price", "team", "stock"]
ENCODERS = {
    "bert": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 16,
    },
    "distilbert": {
        "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 16,
    },
    "roberta": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 300,
    },
}  # fmt: skip


def write_tokenizer(folder):
    """A tokenizer of words, as BERT has one of pieces."""
    package = pytest.importorskip("tokenizers")
    codes = {word: code for code, word in enumerate(WORDS)}
    tokenizer = package.Tokenizer(package.models.WordLevel(codes, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Whitespace()
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def classifier_of(family="bert", **options):
    section = TransformersTextClassification.Options.model_validate(
        {"context_length": 16, "model_type": family, "config": ENCODERS[family], **options},
        strict=False,
    )
    return TransformersTextClassification(
        section, TaskColumns(label="topic", features={"text": "String"})
    )


def fitted(**options):
    task = classifier_of(**options)
    task.fit(TOPICS.lazy())
    return task


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_on_bytes_starts_at_the_entropy_and_ignores_padding(family):
    pytest.importorskip("transformers")
    task = fitted(family=family)
    model, batch = task.build_model().eval(), task.encode(TOPICS)
    with torch.no_grad():
        output = model(**inputs_of(batch))
        short = {"tokens": batch["tokens"][:1, :7], "length": batch["length"][:1]}
        assert torch.allclose(model(**short)[0], output[0], atol=1e-5)
    loss = float(task.losses(output, batch).mean())
    assert loss == pytest.approx(task.expected_initial_loss(), abs=0.05)
    assert len(task.blocks(model)) == 2
    names = dict(model.named_parameters())
    for name, keys in task.parameter_keys().items():
        assert len(keys.keys[0]) == len(names[name]), name


def test_training_starts_from_a_snapshot_with_its_own_tokens(tmp_path):
    transformers = pytest.importorskip("transformers")
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "hub" / "snapshots" / revision
    folder.mkdir(parents=True)
    config = transformers.BertConfig(vocab_size=257, **ENCODERS["bert"])
    torch.manual_seed(5)
    base = transformers.BertModel(config)
    base.save_pretrained(folder)
    section = ModelSection.model_validate(
        {
            "name": "topics",
            "task": "perennial.tasks.transformers_models:TransformersTextClassification",
            "initial": {
                "source": "huggingface", "uri": str(tmp_path / "hub"), "revision": revision,
                "rename": {"": "model.bert."}, "new": ["model.classifier.*"],
            },
        },
        strict=False,
    )  # fmt: skip
    initial = resolve_initial(section, environment_at(tmp_path / "mlflow.db", tmp_path))
    task = fitted(tokenizer=write_tokenizer(folder))
    model = task.build_model()
    load_initial_weights(model, task, initial)
    loaded = dict(model.model.bert.named_parameters())
    for name, value in base.named_parameters():
        assert torch.equal(loaded[name], value), name
    batch = task.encode(TOPICS)
    assert batch["tokens"][0].tolist() == [2, 5, 7, 3] + [0] * 12
    assert task.describe(batch, 1)["text"].split() == ["[CLS]", "the", "price", "[SEP]"]
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = task.training_losses(model.eval()(**inputs_of(batch)), batch).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_the_tokenizer_is_kept_in_the_state(tmp_path):
    pytest.importorskip("transformers")
    file = write_tokenizer(tmp_path)
    task = fitted(tokenizer=file, token_dropout=0.5)
    state = json.loads(json.dumps(task.state()))
    (tmp_path / "tokenizer.json").unlink()
    restored = classifier_of(tokenizer=file)
    restored.load_state(state)
    assert torch.equal(restored.encode(TOPICS)["tokens"], task.encode(TOPICS)["tokens"])
    hidden = task.augment(task.encode(TOPICS), torch.Generator().manual_seed(0))["tokens"]
    assert (hidden == WORDS.index("[MASK]")).any()
    cut = task.encode(TOPICS.with_columns(text=pl.lit("goal " * 40)))
    assert cut["tokens"][0, -2:].tolist() == [7, 3]


def test_a_relative_path_is_found_beside_the_contract(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    write_tokenizer(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert fitted(tokenizer="tokenizer.json").pretrained is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "absent.json"}, "there is no absent.json"),
        ({"tokenizer": "broken.json"}, "is not a file of the package"),
        ({"tokenizer": "tokenizer.json", "config": {"hidden_sise": 4}}, "hidden_sise"),
        ({"context_length": 32}, "needs 32 positions"),
        ({"family": "roberta", "context_length": 64}, "needs 321 positions"),
        ({"model_type": "no-such-family"}, "no-such-family"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(tmp_path, monkeypatch, options, message):
    pytest.importorskip("transformers")
    write_tokenizer(tmp_path)
    (tmp_path / "broken.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadTaskError, match=message):
        fitted(**options).build_model()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused_with_the_line_to_write(
    tmp_path, monkeypatch
):
    pytest.importorskip("transformers")
    monkeypatch.setattr(sys.modules[__name__], "WORDS", [*WORDS, *map(str, range(300))])
    with pytest.raises(BadTaskError, match="more ids than the model: 311, not 257") as refused:
        fitted(tokenizer=write_tokenizer(tmp_path))
    assert "write vocab_size = 311" in refused.value.action


NAMED = pl.DataFrame({"text": ["a goal price", "the team"] * 6, "tags": ["O B-X I-X", "O B-X"] * 6})
PIECES = [*WORDS, "##al", "##es", "go"]


def write_pieces(folder, style="bert"):
    """A tokenizer of pieces of words: as BERT has one, or with the space before a word in it."""
    package = pytest.importorskip("tokenizers")
    pretokenizers, processors = package.pre_tokenizers, package.processors
    if style == "bert":
        codes = {piece: code for code, piece in enumerate(PIECES) if piece != "goal"}
        tokenizer = package.Tokenizer(package.models.WordPiece(codes, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pretokenizers.Whitespace()
        ends = [("[CLS]", 2), ("[SEP]", 3)]
    else:
        words = ["<s>", "</s>", "<unk>", "▁a", "▁go", "al", "▁price", "▁the", "▁te", "am"]
        tokenizer = package.Tokenizer(
            package.models.Unigram([(word, -1.0) for word in words], unk_id=2)
        )
        tokenizer.pre_tokenizer = pretokenizers.Metaspace()
        ends = [("<s>", 0), ("</s>", 1)]
    first, last = (name for name, _ in ends)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=ends
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def tagger_of(family="bert", rows=NAMED, **options):
    section = TransformersTokenClassification.Options.model_validate(
        {"context_length": 16, "model_type": family, "config": ENCODERS[family], **options},
        strict=False,
    )
    task = TransformersTokenClassification(
        section, TaskColumns(label="tags", features={"text": "String"})
    )
    task.fit(rows.lazy())
    return task


@pytest.mark.parametrize("style", ["bert", "metaspace"])
def test_the_first_piece_of_a_word_has_its_tag(tmp_path, style):
    task = tagger_of(tokenizer=write_pieces(tmp_path, style))
    batch = task.encode(NAMED.head(2))
    first, second = batch[LABEL].tolist()
    codes = [task.fitted.classes.index(tag) for tag in ("O", "B-X", "I-X")]
    # [CLS] a go ##al price [SEP], and in the other style the team is two pieces
    assert first[:6] == [-100, codes[0], codes[1], -100, codes[2], -100]
    assert second[:3] == [-100, *codes[:2]]
    assert set(first[6:] + second[3:]) == {-100}
    assert batch[WEIGHT].tolist() == [3, 2]
    served = task.answer_texts(batch[LABEL].clamp_min(0).numpy().astype(float), NAMED.head(2))
    assert served == {"tags": ["O B-X I-X", "O B-X"]}


def test_a_word_without_a_piece_of_its_own_is_answered_and_counts_nowhere(tmp_path):
    task = tagger_of(tokenizer=write_pieces(tmp_path), context_length=4)
    rows = pl.DataFrame(
        {"text": ["a goal price", "\u2003 the a"], "tags": ["O B-X I-X", "O O B-X"]}
    )
    batch = task.encode(rows)
    # Two pieces are left beside [CLS] and [SEP]; the second text begins with a wide space.
    assert batch[WEIGHT].tolist() == [2, 2]
    served = task.answer_texts(batch[LABEL].clamp_min(0).numpy().astype(float), rows)["tags"]
    assert served == ["O B-X _", "_ O B-X"]


@pytest.mark.parametrize("family", ENCODERS)
def test_a_tagger_starts_at_the_entropy_and_its_keys_are_tags(family):
    pytest.importorskip("transformers")
    task = tagger_of(family=family)
    model, batch = task.build_model().eval(), task.encode(NAMED)
    with torch.no_grad():
        output = model(**inputs_of(batch))
    assert output.shape == (12, 16, 3)
    losses = task.losses(output, batch)
    loss = float(losses @ batch[WEIGHT] / batch[WEIGHT].sum())
    assert loss == pytest.approx(task.expected_initial_loss(), abs=0.05)
    names, keys = dict(model.named_parameters()), task.parameter_keys()
    assert keys["model.classifier.bias"].keys[0] == task.fitted.classes
    for name, each in keys.items():
        assert len(each.keys[0]) == len(names[name]), name


def test_a_family_without_taggers_is_refused():
    pytest.importorskip("transformers")
    task = tagger_of()
    task.options = task.options.model_copy(update={"model_type": "clip", "config": {}})
    with pytest.raises(BadTaskError, match="does not build a token classifier of type 'clip'"):
        task.build_model()
