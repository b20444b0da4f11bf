"""Published causal models: a folder as a download of one, of a tiny model that a test makes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

REVISION = "0123456789abcdef0123456789abcdef01234567"
VOCABULARY = 290
TASK = "perennial.tasks.transformers_models:TransformersCausalLM"
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 24},
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
        "rope_theta": 100.0, "initializer_range": 0.2,
    },
    "qwen2": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def train_tokenizer(texts: list[str], style: str = "gpt2", size: int = VOCABULARY) -> str:
    """A `tokenizer.json` learned from texts: bytes as GPT-2 and Qwen write them, or Llama 2's."""
    package = pytest.importorskip("tokenizers")
    normalizers, decoders = package.normalizers, package.decoders
    if style == "llama":
        tokenizer = package.Tokenizer(package.models.BPE(byte_fallback=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
             decoders.Strip(" ", 1, 0)]
        )  # fmt: skip
        special = ["<unk>", "<s>", "</s>"]
        first = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
        alphabet = list("aeimnorsv")
    else:
        tokenizer = package.Tokenizer(package.models.BPE())
        if style == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        special = first = ["<|endoftext|>"]
        alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    trainer = package.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=first, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if style == "llama":
        tokenizer.post_processor = package.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    file = json.loads(tokenizer.to_str())
    # Published tokens of one byte are in the vocabulary alone.
    file["added_tokens"] = [each for each in file["added_tokens"] if each["content"] in special]
    return json.dumps(file)


def options_of(family: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Options of the task for the model in a folder."""
    place = snapshot_in(folder)
    return {
        "model_type": family, "pretrained_config": str(place / "config.json"),
        "tokenizer": str(place / "tokenizer.json"), "vocab_size": VOCABULARY,
        "context_length": 24, **changes,
    }  # fmt: skip


def initial_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """The section `[model.initial]` for it."""
    return {
        "source": "huggingface", "uri": str(folder), "revision": REVISION,
        "rename": {"": "model."}, **changes,
    }  # fmt: skip


def snapshot_in(folder: Path) -> Path:
    """Where the files are."""
    return folder / "snapshots" / REVISION


def write_published(
    folder: Path, family: str, texts: list[str], *, steps: int = 0
) -> torch.nn.Module:
    """Write config.json, tokenizer.json and model.safetensors; `steps` of training on the texts."""
    transformers = pytest.importorskip("transformers")
    place = snapshot_in(folder)
    place.mkdir(parents=True)
    content = train_tokenizer(texts, family)
    (place / "tokenizer.json").write_text(content)
    tokenizer = published_tokenizer(place)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.convert_tokens_to_ids(end_of(family))}
    config = transformers.AutoConfig.for_model(
        family, **FAMILIES[family], vocab_size=VOCABULARY, **ends
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        at = step * 32 % max(len(texts) - 32, 1)
        optimizer.zero_grad()
        plain_loss(model, tokenizer, family, texts[at : at + 32]).backward()
        optimizer.step()
    model.eval().save_pretrained(place)
    return model


def end_of(family: str) -> str:
    """The token behind a document."""
    return "</s>" if family == "llama" else "<|endoftext|>"


def published_tokenizer(place: Path) -> Any:
    """The tokenizer as a script of transformers loads it."""
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"))


def plain_loss(
    model: torch.nn.Module, tokenizer: Any, family: str, texts: list[str]
) -> torch.Tensor:
    """The mean loss of a batch as a script of transformers computes it, with the end of a text."""
    end = tokenizer.convert_tokens_to_ids(end_of(family))
    start = [] if family == "llama" else [end]  # Llama's tokenizer writes its own
    rows = [[*start, *tokenizer(text)["input_ids"], end][:25] for text in texts]
    width = max(map(len, rows))
    ids = torch.tensor([row + [end] * (width - len(row)) for row in rows])
    is_text = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    labels = ids.masked_fill(is_text == 0, -100)
    # The last token is a label alone; the model itself moves labels by one.
    if model.config.max_position_embeddings < width:
        logits = model(input_ids=ids[:, :-1], attention_mask=is_text[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
    return model(input_ids=ids, attention_mask=is_text, labels=labels).loss
