"""Transformers models: any causal language model, or classifier of texts or words, by name.

Use one by name in a contract: `task = "perennial.tasks.transformers_models:TransformersCausalLM"`,
`TransformersTextClassification` or `TransformersTokenClassification`, with
`pip install 'perennial[transformers]'`. Nothing is downloaded: a configuration is enough, and
`[model.initial]` may name weights.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar, Self, cast

import polars as pl
import torch
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.section import Section
from perennial.engine.task import MeasuredOptions, ParameterKeys
from perennial.tasks.columns.document_tokenizer import DocumentTokenizer
from perennial.tasks.columns.pretrained_files import read_pretrained, read_tokenizer
from perennial.tasks.columns.pretrained_tokenizer import (
    PretrainedTokenizer,
    load_tokenizer,
)
from perennial.tasks.columns.tokenization import BOUNDARY, Encoded, import_package
from perennial.tasks.language_modeling import DocumentOptions, LanguageModel
from perennial.tasks.text_classification import (
    TextClassifier,
    TextOptions,
    TextState,
    TextTask,
)
from perennial.tasks.token_classification import TokenClassifier
from perennial.tasks.transformers_names import PublishedModel


class ModelOptions(MeasuredOptions):
    """The model's family and size."""

    model_type: str = "llama"
    """The family's name in `transformers`, such as `llama`, `gpt2`, `qwen3` or `mistral`."""
    config: dict[str, JsonValue] = Field(default_factory=dict)
    """The family's own settings, such as `hidden_size`; missing ones are the family's defaults,
    which often mean billions of parameters. `vocab_size` and the ids of special tokens follow from
    the tokenization."""


class TransformersOptions(DocumentOptions, ModelOptions):
    """Options of a model of `transformers`, and how documents become its examples."""

    tokenizer: str = ""
    """A pretrained model's `tokenizer.json`: a path, from the contract's folder if it is relative,
    or an address in an object store. It is kept with the model. `vocab_size` is then the pretrained
    model's. Empty means bytes, or byte pairs learned from the training split."""
    pretrained_config: str = ""
    """A pretrained model's `config.json`, looked for like `tokenizer` and kept with the model; what
    `config` names replaces its settings. Name it with pretrained weights: a setting that is left
    out, such as the base of rotary positions, is the family's default, and no weight tells."""
    end_of_text: str = ""
    """The pretrained tokenizer's special token behind a document; it is also the one before it,
    where the tokenizer puts none there. Empty means the usual ones, such as `<|endoftext|>` and
    `</s>`; name it if the tokenizer has several."""

    @model_validator(mode="after")
    def _end_has_a_tokenizer(self) -> Self:
        if self.end_of_text and not self.tokenizer:
            raise ValueError("end_of_text is a token of a pretrained tokenizer: name `tokenizer`")
        return self


class TransformersTextOptions(TextOptions, ModelOptions):
    """Options of an encoder of `transformers`, and how texts become its examples."""

    model_type: str = "bert"
    """The family's name in `transformers`, such as `bert`, `distilbert` or `roberta`."""
    tokenizer: str = ""
    """A pretrained model's `tokenizer.json`: a path, from the contract's folder if it is relative,
    or an address in an object store. It is kept with the model. `vocab_size` is then the pretrained
    model's, and the ids of special tokens are the family's unless `config` names them. Empty means
    bytes, or byte pairs learned from the training split."""


class PretrainedTextState(TextState):
    """What the task learns from the training split, and the tokenizer that it keeps."""

    tokenizer: str = ""
    """Content of `tokenizer.json`."""


class TransformersCausalLM(PublishedModel, LanguageModel):
    """A causal language model built by `AutoModelForCausalLM.from_config`."""

    Options = TransformersOptions
    kept_files: ClassVar[frozenset[str]] = frozenset({"tokenizer", "config"})

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.settings = dict[str, JsonValue]()

    def fit(self, train: pl.LazyFrame) -> None:
        """Keep the pretrained files, or learn the byte pairs if any are asked for.

        Raises:
            BadTaskError: a file cannot be read, or is not one of such a model.
        """
        options = cast("TransformersOptions", self.options)
        config = {"config": read_settings(options)} if options.pretrained_config else {}
        if options.tokenizer:
            self.load_state({"tokenizer": read_tokenizer(options.tokenizer), **config})
        else:
            super().fit(train)
            self.load_state({**self.state(), **config})

    def state(self) -> dict[str, JsonValue]:
        """Return the pretrained tokenizer or the byte pairs, and the pretrained settings."""
        tokenizer = self.tokenizer
        config: dict[str, JsonValue] = {"config": self.settings} if self.settings else {}
        if isinstance(tokenizer, DocumentTokenizer):
            return {"tokenizer": tokenizer.content, **config}
        return {**super().state(), **config}

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Take over tokenizer or byte pairs, and settings."""
        options = cast("TransformersOptions", self.options)
        self.settings = cast("dict[str, JsonValue]", state.get("config", {}))
        if "tokenizer" not in state:
            super().load_state(state)
            return
        tokenizer = DocumentTokenizer(str(state["tokenizer"]), options.end_of_text)
        require_ids(tokenizer.size, options.tokenizer, options.vocab_size, padded=True)
        self.take_tokenizer(tokenizer)

    def build_model(self) -> nn.Module:
        """Build a model with random weights.

        Raises:
            BadTaskError: the package is not installed, or refuses family or settings; the family
                has fewer positions than a sequence has tokens.
        """
        options = cast("TransformersOptions", self.options)
        own = {**_SPECIAL_TOKENS, **self.settings, **options.config}
        settings = {**own, "vocab_size": options.vocab_size}
        model = build_from_config(options, "AutoModelForCausalLM", settings)
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and positions < options.context_length:
            raise BadTaskError(
                f"context_length = {options.context_length} is beyond the model's positions",
                evidence=f"{options.model_type} has {positions} of them",
                action=f"write context_length = {positions} and read longer documents in several "
                "windows; for a model trained on more, write config.max_position_embeddings  "
                "# all in [model.options]",
            )
        return LogitsOf(model, options.windows)

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of embedding and last layer: the tokens."""
        # Only names and shared weights are looked at: no values are drawn for a large model.
        with torch.device("meta"):
            model = self.build_model()
        inner: Any = cast("LogitsOf", model).model
        ends = (inner.get_input_embeddings(), inner.get_output_embeddings())
        tables = {id(each.weight) for each in ends if each is not None}
        named = model.named_parameters(remove_duplicate=False)
        return {name: self.token_keys(name) for name, value in named if id(value) in tables}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the family's layers: the list of modules with most of the parameters."""
        return find_layers(model)


class TransformersEncoder(PublishedModel, TextTask):
    """Base: texts through an encoder that `transformers` builds from a configuration."""

    Options = TransformersTextOptions
    fitted: PretrainedTextState
    builder: ClassVar[str]
    """The class of the package that builds it."""

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.fitted = PretrainedTextState()
        self.pretrained: PretrainedTokenizer | None = None

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the class shares; keep the tokenizer, or learn the byte pairs if any.

        Raises:
            BadTaskError: the tokenizer cannot be read, or has more ids than the model.
        """
        super().fit(train)
        options = cast("TransformersTextOptions", self.options)
        content = read_tokenizer(options.tokenizer) if options.tokenizer else ""
        self._take(PretrainedTextState(**dict(self.fitted), tokenizer=content))

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Take over class shares and tokenizer."""
        super().load_state(state)
        self._take(self.fitted)

    def read_tokens(self, texts: Sequence[str]) -> Sequence[Encoded]:
        """Return the tokens of each text, special tokens included, at most `context_length`."""
        if self.pretrained is None:
            return super().read_tokens(texts)
        return self.pretrained.encode_batch(texts)

    def decode_tokens(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        if self.pretrained is None:
            return super().decode_tokens(ids)
        return self.pretrained.decode(ids, skip_special_tokens=False)

    def build_model(self) -> nn.Module:
        """Build a model with random weights, of which the last layer starts at the class prior.

        Raises:
            BadTaskError: the package is not installed, or refuses family or settings; the family is
                no encoder, or has fewer positions than a text may have tokens.
        """
        options = cast("TransformersTextOptions", self.options)
        own = {} if options.tokenizer else {**_SPECIAL_TOKENS, "pad_token_id": BOUNDARY}
        sizes = {"vocab_size": options.vocab_size, "num_labels": len(self.fitted.classes)}
        settings = {**own, **options.config, **sizes}
        model = build_from_config(options, self.builder, settings)
        _require_positions(model, options.context_length)
        head = model.get_submodule(find_head(model, len(self.fitted.classes)))
        with torch.no_grad():
            cast("Tensor", head.bias).copy_(torch.tensor(self.fitted.class_shares).log())
        return ClassLogitsOf(model)

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return the keys of embedding and last layer: tokens and classes."""
        with torch.device("meta"):
            model = cast("ClassLogitsOf", self.build_model()).model
        size, inner = self.text_options.vocab_size, cast("Any", model)
        ids = self.tokenizer.keys(size)
        if self.pretrained is not None:
            ids = [self.pretrained.id_to_token(place) or place for place in range(size)]
        table = inner.get_input_embeddings().weight
        name = next(name for name, value in model.named_parameters() if value is table)
        keys = {f"model.{name}": ParameterKeys("token embedding", (ids, None))}
        return {**keys, **self.class_keys(f"model.{find_head(model, len(self.fitted.classes))}")}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the family's layers: the list of modules with most of the parameters."""
        return find_layers(model)

    def _take(self, state: PretrainedTextState) -> None:
        self.fitted = state
        if not state.tokenizer:
            return
        options = cast("TransformersTextOptions", self.options)
        self.pretrained = load_tokenizer(state.tokenizer, options.context_length)
        self.padding = _find_padding(options)
        require_ids(self.pretrained.get_vocab_size(), options.tokenizer, options.vocab_size)
        masks = map(self.pretrained.token_to_id, ("[MASK]", "<mask>"))
        mask = next((each for each in masks if each is not None), None)
        if mask is None and options.token_dropout:
            raise BadTaskError(
                "token_dropout hides tokens, and the tokenizer has no token for that",
                evidence="neither [MASK] nor <mask> is in its vocabulary",
                action="remove token_dropout  # in [model.options]",
            )
        self.hidden_token = self.padding if mask is None else mask


class TransformersTextClassification(TransformersEncoder, TextClassifier):
    """One class for each text, by `AutoModelForSequenceClassification`."""

    builder = "AutoModelForSequenceClassification"


class TransformersTokenClassification(TransformersEncoder, TokenClassifier):
    """A tag for each word, by `AutoModelForTokenClassification`."""

    builder = "AutoModelForTokenClassification"


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


class ClassLogitsOf(nn.Module):
    """The model's logits alone; padding is masked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Ids [B, T] of texts with `length` [B] tokens → logits [B, K], or [B, T, K] of tokens."""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
        logits: Tensor = self.model(input_ids=tokens.long(), attention_mask=mask.long()).logits
        return logits


_BUILT = {
    "AutoModelForCausalLM": "causal model",
    "AutoModelForSequenceClassification": "text classifier",
    "AutoModelForTokenClassification": "token classifier",
    "AutoModelForImageClassification": "picture classifier",
}
"""What each class of the package builds."""


def build_from_config(
    options: ModelOptions, builder: str, settings: Mapping[str, JsonValue]
) -> nn.Module:
    """Build a model of the family with random weights, by a class of `transformers`.

    Raises:
        BadTaskError: the package is not installed, or refuses family or settings.
    """
    package = import_transformers()
    with clear_errors(options, _BUILT[builder]):
        config = package.AutoConfig.for_model(options.model_type, **settings)
        config.architectures = config.architectures or []  # None, of several, is an error there
        model: nn.Module = getattr(package, builder).from_config(config)
    _require_known(options, package.AutoConfig.for_model(options.model_type))
    return model


# Of a published `config.json`: who wrote it, and in which type the weights are stored.
_NO_SETTINGS = frozenset(
    {
        "_name_or_path", "architectures", "auto_map", "dtype", "model_type", "torch_dtype",
        "transformers_version", "vocab_size",
    }
)  # fmt: skip


def read_settings(options: TransformersOptions) -> dict[str, JsonValue]:
    """Return the settings of the family in the pretrained model's `config.json`.

    Raises:
        BadTaskError: there is no such file, or it is of another family or number of ids.
    """
    place = options.pretrained_config
    content = read_pretrained(place, "pretrained_config", "config.json")
    try:
        found: dict[str, JsonValue] = dict(json.loads(content))
    except (ValueError, TypeError) as error:
        raise BadTaskError(
            "model.options.pretrained_config is not a file of settings",
            evidence=str(error),
            action="name the `config.json` of the pretrained model's snapshot",
        ) from error
    for name in ("model_type", "vocab_size"):
        own = getattr(options, name)
        if found.get(name, own) != own:
            raise BadTaskError(
                f"model.options.{name} = {own!r} is not the pretrained model's",
                evidence=f"{place} has {found[name]!r}",
                action=f"write {name} = {json.dumps(found[name])}  # in [model.options]",
            )
    return {name: value for name, value in found.items() if name not in _NO_SETTINGS}


MOST_PADDING = 0.05
"""Share of a causal model's ids that its tokenizer may lack. Published embeddings are padded to a
multiple of 64 to 1,024 rows: 0.2% of Qwen 2.5, 1.8% of Phi-2, 2.3% of DeepSeek LLM."""


def require_ids(size: int, place: str, vocab_size: int, *, padded: bool = False) -> None:
    """Check that a tokenizer of `size` ids, read from `place`, can be that of the model.

    Args:
        size: Of the tokenizer.
        place: Where it was read, for messages.
        vocab_size: The model's.
        padded: Whether a model with many more ids is refused, too.

    Raises:
        BadTaskError: it has more ids than the model, or far fewer.
    """
    is_small = padded and size < (1.0 - MOST_PADDING) * vocab_size
    if size > vocab_size or is_small:
        words = "far fewer" if is_small else "more"
        raise BadTaskError(
            f"the tokenizer has {words} ids than the model: {size:,}, not {vocab_size:,}",
            evidence=f"model.options.tokenizer = {place!r}",
            action=f"write vocab_size = {size}  # in [model.options], or the pretrained model's "
            "own, if it is larger"
            + ("; if it is the model's, name the model's tokenizer" if is_small else ""),
        )


def _find_padding(options: ModelOptions) -> int:
    """Return the id of padding: the family's, or what its settings name."""
    with clear_errors(options, "configuration"):
        config = import_transformers().AutoConfig.for_model(options.model_type, **options.config)
    return int(config.pad_token_id or 0)


REFUSALS = (
    ValueError, TypeError, KeyError, AttributeError, AssertionError, ImportError, RuntimeError,
)  # fmt: skip
"""What models of the package raise for settings and inputs that do not fit."""


def describe_error(error: Exception) -> str:
    """Return kind and first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


@contextmanager
def clear_errors(options: ModelOptions, what: str) -> Iterator[None]:
    """Raise a BadTaskError in the place of what the package raises for family and settings."""
    try:
        yield
    # A RuntimeError as well, but of the machine, not of the settings.
    except torch.OutOfMemoryError:
        raise
    except REFUSALS as error:
        raise BadTaskError(
            f"transformers does not build a {what} of type {options.model_type!r}",
            evidence=describe_error(error),
            action="correct model.options.model_type and model.options.config",
        ) from error


def import_transformers() -> ModuleType:
    """Return the package.

    Raises:
        BadTaskError: it is not installed.
    """
    return import_package(
        "transformers",
        "this task",
        "pip install 'perennial[transformers]', or use a task of its own model: "
        "perennial.tasks.language_modeling:CausalLanguageModel, "
        "perennial.tasks.text_classification:TextClassification, "
        "perennial.tasks.token_classification:TokenClassification or "
        "perennial.tasks.image_classification:ImageClassification",
    )


def find_layers(model: nn.Module) -> Sequence[nn.Module]:
    """Return the list of modules with most of the parameters; nothing without lists."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=lambda each: sum(map(Tensor.numel, each.parameters())), default=None)
    return () if layers is None else list(layers)


def find_head(model: nn.Module, num_classes: int, example: str = "bert") -> str:
    """Return the name of the last layer, which has an output and a bias for each class.

    Raises:
        BadTaskError: there is none; the message names an `example` of a family.
    """
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    heads = [
        name for name, each in layers if each.out_features == num_classes and each.bias is not None
    ]
    if not heads:
        raise BadTaskError(
            f"{type(model).__name__} has no last layer with a bias for each class",
            evidence=f"its last linear layer is {layers[-1][0] if layers else 'missing'}",
            action=f'choose another family: model_type = "{example}"  # in [model.options]',
        )
    return str(heads[-1])


def _require_positions(model: nn.Module, length: int) -> None:
    """Check that the model has a learned position for each token."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # Families with a position for padding count the others from there.
            needed = length + (0 if module.padding_idx is None else module.padding_idx + 1)
            if module.num_embeddings < needed:
                raise BadTaskError(
                    f"context_length = {length} needs {needed} positions",
                    evidence=f"the model has {module.num_embeddings}",
                    action="lower context_length, or write config.max_position_embeddings = "
                    f"{needed}  # in [model.options]",
                )


def _require_known(options: ModelOptions, default: object) -> None:
    """Check that the family has the settings; it would keep unknown ones and ignore them."""
    names = set(vars(default)) | set(getattr(default, "attribute_map", {}))
    unknown = sorted(set(options.config) - names)
    if unknown:
        raise BadTaskError(
            f"model.options.config names {', '.join(unknown)}, which {options.model_type} lacks",
            evidence=f"it has {', '.join(sorted(name for name in names if name[0] != '_'))[:400]}",
            action="correct the names",
        )
