"""Transformers models: any causal language model of the package, by name, trained from scratch.

Use it by name in a contract, `task = "perennial.tasks.transformers_models:TransformersCausalLM"`,
with `pip install 'perennial[transformers]'`. Nothing is downloaded: a configuration is enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from pydantic import Field, JsonValue
from torch import Tensor, nn

from perennial.contracts.errors import BadTaskError
from perennial.engine.task import ParameterKeys
from perennial.tasks.columns.tokenization import import_package
from perennial.tasks.language_modeling import DocumentOptions, LanguageModel


class TransformersOptions(DocumentOptions):
    """Options of a model of `transformers`, and how documents become its examples."""

    model_type: str = "llama"
    """The family's name in `transformers`, such as `llama`, `gpt2`, `qwen3` or `mistral`."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The family's own settings, such as `hidden_size`; missing ones are the family's defaults,
    which often mean billions of parameters. `vocab_size` and the ids of special tokens follow from
    the tokenization."""


class TransformersCausalLM(LanguageModel):
    """A causal language model built by `AutoModelForCausalLM.from_config`."""

    Options = TransformersOptions

    def build_model(self) -> nn.Module:
        """Build a model with random weights.

        Raises:
            BadTaskError: the package is not installed, or refuses family or settings.
        """
        options = cast("TransformersOptions", self.options)
        package = import_package(
            "transformers",
            "this task",
            "pip install 'perennial[transformers]', or use "
            "perennial.tasks.language_modeling:CausalLanguageModel",
        )
        settings = {**_SPECIAL_TOKENS, **options.config, "vocab_size": options.vocab_size}
        try:
            config = package.AutoConfig.for_model(options.model_type, **settings)
            model = package.AutoModelForCausalLM.from_config(config)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadTaskError(
                f"transformers does not build a causal model of type {options.model_type!r}",
                evidence=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}",
                action="correct model.options.model_type and model.options.config",
            ) from error
        _require_known(options, package.AutoConfig.for_model(options.model_type))
        return LogitsOf(model, options.windows)

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of embedding and last layer: the tokens."""
        with torch.device("meta"):
            model = self.build_model()
        inner: Any = cast("LogitsOf", model).model
        ends = (inner.get_input_embeddings(), inner.get_output_embeddings())
        tables = {id(each.weight) for each in ends if each is not None}
        named = model.named_parameters(remove_duplicate=False)
        return {name: self.token_keys(name) for name, value in named if id(value) in tables}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the family's layers: the list of modules with most of the parameters."""
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        layers = max(
            lists, key=lambda each: sum(map(Tensor.numel, each.parameters())), default=None
        )
        return () if layers is None else list(layers)


# Families name tokens of their own vocabularies; ours has the boundary alone, which needs no name.
_SPECIAL_TOKENS: dict[str, JsonValue] = dict.fromkeys(
    ("bos_token_id", "eos_token_id", "pad_token_id")
)


class LogitsOf(nn.Module):
    """The model's logits alone; each window of a document is seen by itself."""

    def __init__(self, model: nn.Module, windows: int) -> None:
        super().__init__()
        self.model = model
        self.windows = windows

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, W·T, vocabulary] after each of the tokens [B, W·T]."""
        sequences = tokens.view(len(tokens) * self.windows, -1).long()
        # Without a cache: it would be kept for the backward pass and never read.
        logits: Tensor = self.model(input_ids=sequences, use_cache=False).logits
        return logits.view(*tokens.shape, -1)


def _require_known(options: TransformersOptions, default: object) -> None:
    """Check that the family has the settings; it would keep unknown ones and ignore them."""
    names = set(vars(default)) | set(getattr(default, "attribute_map", {}))
    unknown = sorted(set(options.config) - names)
    if unknown:
        raise BadTaskError(
            f"model.options.config names {', '.join(unknown)}, which {options.model_type} lacks",
            evidence=f"it has {', '.join(sorted(name for name in names if name[0] != '_'))[:400]}",
            action="correct the names",
        )
