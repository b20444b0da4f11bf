"""Bits per byte from raw text to verdict, and again by nothing but transformers and tokenizers."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from documents import documents, pinned
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.gate import Verdict
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import WEIGHTS_FILE, write_weights
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import load_task
from perennial.evaluate_model.step import evaluate_model_step
from perennial.gate.config import GateSection, JudgementConfig
from perennial.tasks.columns.tokenization import BOUNDARY
from small_models import write_skeleton

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

TASK = "perennial.tasks.transformers_models:TransformersCausalLM"
LLAMA = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.3,
}  # fmt: skip
CONTEXT, VOCABULARY = 24, 300
EXTRA = ("", "größe: 3 µm", "平均値は軸に沿って", "😀 of the 😀", "naïve — résumé")


@pytest.fixture
def snapshot(tmp_path):
    """Texts of one, two, three and four bytes a letter; some are longer than the context."""
    texts = documents(400).with_columns(
        text=pl.when(pl.col("id") % 3 == 0)
        .then(pl.col("text") + pl.Series([f" {EXTRA[row % 5]}" for row in range(400)]))
        .otherwise(pl.col("text"))
    )
    made = pinned(tmp_path / "data", texts)
    made.write(tmp_path / "snapshot")
    return made


@pytest.fixture
def challenger(snapshot, tmp_path):
    """A Llama whose weights are random, so that every token costs something else."""
    options = {"model_type": "llama", "config": LLAMA, "context_length": CONTEXT,
               "vocab_size": VOCABULARY}  # fmt: skip
    task = load_task(TASK, options, snapshot.task_columns)
    task.fit(Dataset(snapshot).scan(Split.TRAIN))
    torch.manual_seed(0)
    folder = tmp_path / "challenger"
    made = Challenger(
        task=TASK, options=options, task_state=task.state(), columns=snapshot.task_columns,
        training_fingerprint="training", metric="bits_per_byte", direction="minimize",
        chosen_step=1, candidates=(), reason="step 1: the only checkpoint kept", diagnosis=(),
        weights_sha256=write_weights(task.build_model(), folder),
    )  # fmt: skip
    made.write(folder)
    make_servable(folder, Dataset(snapshot))
    return made


def encoder(merges):
    """Byte pairs as GPT-2 writes them: one letter stands for each byte."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printed}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printed)))
    words = [letters[byte] for byte in range(256)] + [""]
    for first, second in merges:
        words.append(words[first] + words[second])
    pairs = [(words[first], words[second]) for first, second in merges]
    vocabulary = {word: index for index, word in enumerate(words) if word}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def by_hand(challenger, weights, texts):
    """Bits of all predicted tokens, and the raw bytes, letters and tokens that they stand for."""
    config = transformers.LlamaConfig(**LLAMA, vocab_size=VOCABULARY, bos_token_id=None,
                                      eos_token_id=None)  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    stored = load_file(weights)
    model.load_state_dict({name.removeprefix("model."): each for name, each in stored.items()})
    bytes_to_ids = encoder(challenger.task_state["merges"])
    bits, sizes, cut = 0.0, np.zeros(3), 0
    for text in texts:
        ids = bytes_to_ids.encode(text).ids
        document = [BOUNDARY, *ids, BOUNDARY][: CONTEXT + 1]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([document[:-1]])).logits[0].double()
        chances = logits.log_softmax(dim=-1)
        bits -= sum(float(chances[at, wanted]) for at, wanted in enumerate(document[1:]))
        raw = text.encode("utf-8")
        if document[-1] != BOUNDARY:  # the raw text up to where the context ends
            raw = raw[: sum(len(bytes_to_ids.id_to_token(index)) for index in document[1:])]
            cut += 1
        sizes += len(raw), len(raw.decode("utf-8", errors="ignore")), len(document) - 1
    assert 0 < cut < len(texts), "some texts are cut, and others are not"
    return bits / math.log(2), sizes


def test_the_verdicts_bits_are_those_of_the_raw_text(environment, snapshot, challenger, tmp_path):
    write_skeleton(tmp_path / "skeleton")
    names = ("challenger", "snapshot", "skeleton", "verdict", "metrics")
    evaluate_model_step(
        contract=JudgementConfig(
            model=ModelSection(name="texts", task=TASK),
            gate=GateSection(metric="bits_per_byte", must_beat=(), resamples=200),
        ).to_json(),
        report=str(tmp_path / "report.html"),
        **{name: str(tmp_path / name) for name in names},
    )
    (found,) = (
        each.challenger
        for each in Verdict.read(tmp_path / "verdict").comparisons
        if each.metric == "bits_per_byte"
    )
    dataset = Dataset(snapshot)
    texts = dataset.collect(dataset.scan(Split.TEST))["text"].to_list()
    bits, (raw, letters, tokens) = by_hand(
        challenger, tmp_path / "challenger" / WEIGHTS_FILE, texts
    )
    assert found == pytest.approx(bits / raw, rel=1e-5)
    assert raw > 1.02 * letters, "per letter would be another figure"
    assert raw > 1.2 * tokens, "and so would be per token"


def test_exposure_is_the_bytes_of_the_raw_text(snapshot, challenger):
    task = load_task(TASK, challenger.options | {"context_length": 200}, snapshot.task_columns)
    task.load_state(challenger.task_state)
    scored = score_split(task, task.build_model(), Dataset(snapshot), Split.TEST, keep=("text",))
    raw = [len(text.encode("utf-8")) for text in scored.rows["text"]]
    assert task.exposure(scored.predictions, scored.weights).tolist() == raw
    assert np.allclose(scored.predictions[:, 1] * scored.weights, raw, rtol=1e-15, atol=0)
