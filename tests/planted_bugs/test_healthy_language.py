"""Healthy models of language must pass every skeleton check that applies to them."""

import pytest

from language_variants import BERT_SIZES, OnlyAnswers, ShiftsInTheLoss, TopicOfDocument
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.text_classification import TextClassification
from perennial.tasks.transformers_models import TransformersCausalLM
from workshop import results_of

LLAMA_SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
GPT2_SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 24}


def transformers_of(model_type, sizes, **options):
    return {"model_type": model_type, "config": sizes, "context_length": 24, **options}


CLASSIFIER_SIZES = {"context_length": 48, "width": 32, "heads": 2}


def classifier(**options):
    # One letter tells the topic, which is worth a warning where no label is wrong.
    return {"options": CLASSIFIER_SIZES | options, "flipped": 0.1}


HEALTHY = {
    "classification of texts": (TextClassification, "topics", classifier()),
    "labels shifted in the loss": (ShiftsInTheLoss, "documents", {}),
}  # fmt: skip
MORE = {
    "classification of byte pairs": (TextClassification, "topics", classifier(vocab_size=290)),
    "classification with hidden tokens": (
        TextClassification, "topics", classifier(token_dropout=0.1, label_smoothing=0.1),
    ),
    "classification of reviews": (
        TextClassification, "reviews", {"options": CLASSIFIER_SIZES | {"vocab_size": 400}},
    ),
    "bag of byte pairs": (
        TextClassification, "reviews",
        {"options": CLASSIFIER_SIZES | {"vocab_size": 400, "layers": 0}},
    ),
    "gpt2 of transformers": (
        TransformersCausalLM, "texts", {"options": transformers_of("gpt2", GPT2_SIZES)},
    ),
    "llama": (CausalLanguageModel, "documents", {}),
    "gpt2 with tied embeddings": (
        CausalLanguageModel, "documents", {"options": {"variant": "gpt2", "tie_embeddings": True}},
    ),
    "gpt2": (CausalLanguageModel, "documents", {"options": {"variant": "gpt2"}}),
    "tied": (CausalLanguageModel, "documents", {"options": {"tie_embeddings": True}}),
    "experts": (CausalLanguageModel, "documents", {"options": {"experts": 4}}),
    "two experts of four": (
        CausalLanguageModel, "documents",
        {"options": {"experts": 4, "experts_per_token": 2, "variant": "gpt2"}},
    ),
    "shared keys": (CausalLanguageModel, "documents", {"options": {"kv_heads": 1}}),
    "dropout": (CausalLanguageModel, "documents", {"options": {"dropout": 0.2}}),
    "label smoothing": (CausalLanguageModel, "documents", {"options": {"label_smoothing": 0.1}}),
    "few documents": (CausalLanguageModel, "documents", {"rows": 450}),
    "long context": (CausalLanguageModel, "documents", {"options": {"context_length": 64}}),
    "short context": (CausalLanguageModel, "documents", {"options": {"context_length": 16}}),
    "windows": (CausalLanguageModel, "documents", {"options": {"context_length": 16, "windows": 2}}),
    "byte pairs": (CausalLanguageModel, "documents", {"options": {"vocab_size": 290}}),
    "one layer": (CausalLanguageModel, "documents", {"options": {"layers": 1}}),
    "deep": (CausalLanguageModel, "documents", {"options": {"layers": 6}}),
    "answers alone": (OnlyAnswers, "documents", {}),
    "llama of transformers": (
        TransformersCausalLM, "texts", {"options": transformers_of("llama", LLAMA_SIZES)},
    ),
    "mistral of transformers": (
        TransformersCausalLM, "texts", {"options": transformers_of("mistral", LLAMA_SIZES)},
    ),
    "qwen3 of transformers": (
        TransformersCausalLM, "texts",
        {"options": transformers_of("qwen3", {**LLAMA_SIZES, "head_dim": 16})},
    ),
    "bert as decoder": (
        TransformersCausalLM, "texts",
        {"options": transformers_of("bert", {**BERT_SIZES, "is_decoder": True})},
    ),
    "bert on topics": (TopicOfDocument, "topics", {"options": {"context_length": 48}}),
    "distilbert on topics": (
        TopicOfDocument, "topics",
        {"options": {"context_length": 48, "model_type": "distilbert"}},
    ),
    **{
        f"seed {seed}, {variant}": (
            CausalLanguageModel, "documents",
            {"seed": seed, "training": {"seed": seed}, "options": {"variant": variant}},
        )
        for seed in (0, 2, 4) for variant in ("llama", "gpt2")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_task_has_no_finding_in_any_check(name, workshop):
    assert doubts(HEALTHY[name], workshop) == {}


@pytest.mark.full
@pytest.mark.parametrize("name", MORE)
def test_healthy_variants_have_no_findings(name, workshop):
    assert doubts(MORE[name], workshop) == {}


def doubts(healthy, workshop):
    """Check → outcome, measured and hint, of the checks that failed or warned."""
    task_type, material, how = healthy
    if issubclass(task_type, TransformersCausalLM | TopicOfDocument):
        pytest.importorskip("transformers")
    results = results_of(workshop.subject(task_type, material, **how))
    return {
        result.check: (result.outcome, result.measured, result.hint)
        for result in results.values()
        if result.outcome in ("failed", "warned")
    }
