"""The `[training.adapter]` options: low-rank matrices that are trained beside frozen weights."""

from typing import Annotated, Final, Literal

from pydantic import Field

from perennial.contracts.section import Section

Patterns = tuple[str, ...]
FULL_BITS: Final = 32  # of the weights that a training has


class Adapter(Section):
    """A LoRA adapter: the product of two low-rank matrices, added to frozen weights.

    The frozen weights, its base, come from `[model.initial]`. Checkpoints and versions hold the
    adapter and name the base by its digests (Hu et al. 2021, arXiv:2106.09685).
    """

    targets: Annotated[Patterns, Field(min_length=1)]
    """Patterns of the modules that get an adapter, such as `"*.attention.*"`: linear layers,
    convolutions and embeddings. Start with all linear layers of the blocks; name fewer where
    memory is short."""
    rank: Annotated[int, Field(ge=1)] = 8
    """Rows of the one matrix, columns of the other. Raise it when the training loss stays above
    that of training all weights; 4 to 8 sufficed in the paper."""
    alpha: Annotated[float, Field(gt=0.0)] = 16.0
    """The product is scaled by `alpha / rank`. Keep the ratio when you change the rank; tune the
    learning rate before it."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout of the adapter's inputs. Raise it to 0.05 or 0.1 when few rows are overfitted."""
    whole: Patterns = ()
    """Patterns of parameters that are trained as they are besides, such as `"head.*"`; what starts
    at random (`model.initial.new`) must be among them."""
    base_bits: Literal[4, 8, 32] = FULL_BITS
    """Bits of each weight in the base's linear layers while training and serving; the scale of 64
    weights adds half a bit. Set it to 4 (NF4, as in QLoRA, arXiv:2305.14314) or 8 where the base
    does not fit in memory; steps become slower, and what is scored and served is the quantized base
    with its adapter."""
    merge: bool = False
    """Export the sum of base and adapter. Turn it on where a served model must not read the object
    store, or where a prediction must take no longer than the base's; each version is then as large
    as the base."""

    def describe(self) -> str:
        """Return the adapter for people, in one line."""
        more = f", {', '.join(self.whole)} trained whole" if self.whole else ""
        kept = "merged into its base" if self.merge else "kept beside its base"
        bits = f" of {self.base_bits} bits" if self.base_bits < FULL_BITS else ""
        return (
            f"LoRA of rank {self.rank}, alpha {self.alpha:g}, on {', '.join(self.targets)}{more}, "
            f"{kept}{bits}"
        )
