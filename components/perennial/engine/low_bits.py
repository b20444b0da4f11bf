"""Low bits: frozen linear layers whose weights are codes of 4 or 8 bits, and a scale per block.

As in QLoRA (Dettmers et al. 2023, arXiv:2305.14314): 64 values of a row are divided by their
largest magnitude and rounded to the nearest level. Codes and scales are plain parameters, which
every strategy shards or copies as any other; float32 weights exist for one layer at a time.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn import functional

from perennial.contracts.errors import PerennialError
from perennial.engine.optimization.parameters import local, named_weights

BLOCK = 64  # values with one scale, as in the paper
# NormalFloat: quantiles of a normal distribution, with an exact zero (appendix E of the paper).
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
LEVELS = {4: NF4, 8: tuple(step / 127 for step in range(-127, 128))}


# Not torchao's NF4Tensor: the part of a weight in each process has to be a multiple of 16,384
# values there, which a matrix of 768 x 768 over 8 processes is not.
class LowBitLinear(nn.Linear):
    """A frozen linear layer of 4.5 or 8.5 bits per weight, scales included.

    Gradients pass to its inputs, and to its bias where that is trained.

    Attributes:
        codes: Bytes, [outputs, padded inputs * bits / 8]; of 4 bits, two levels in each.
        scales: Largest magnitude of each block, float32, [outputs, blocks].
        table: Levels of each byte, [256, 8 / bits]; derived, so no checkpoint holds it.
    """

    codes: nn.Parameter
    scales: nn.Parameter
    table: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # computed, where nn.Linear stores it
        """The weights that the codes stand for, [outputs, inputs], float32."""
        return dequantize(self.codes, self.scales, self.table)[:, : self.in_features]

    def forward(self, input: Tensor) -> Tensor:
        """[…, inputs] → [..., outputs]."""
        # PyTorch leaves `apply` untyped.
        apply = cast("Callable[..., Tensor]", _Product.apply)
        product = apply(input, self.codes, self.scales, self.table)
        return product if self.bias is None else product + self.bias.to(product.dtype)


class _Product(torch.autograd.Function):
    """Inputs times weights, of which the codes are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, input: Tensor, codes: Tensor, scales: Tensor, table: Tensor
    ) -> Tensor:
        ctx.save_for_backward(codes, scales, table)
        cast("Any", ctx).inputs = input.shape[-1]
        weights = dequantize(codes, scales, table)[:, : input.shape[-1]]
        return functional.linear(input, weights.to(input.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        weights = dequantize(*cast("Any", ctx).saved_tensors)[:, : cast("Any", ctx).inputs]
        return gradient @ weights.to(gradient.dtype), None, None, None


def quantize(weights: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the codes and scales of a matrix: [R, C] → bytes [R, P * bits / 8], [R, P / 64].

    P is C rounded up to whole blocks. A value is off by half the distance of two levels at most,
    times its block's scale: 0.152 of it with 4 bits, 0.004 with 8.
    """
    levels = torch.tensor(LEVELS[bits], device=weights.device)
    padded = functional.pad(weights.detach().float(), (0, -weights.shape[1] % BLOCK))
    blocks = padded.reshape(len(padded), -1, BLOCK)
    scales = blocks.abs().amax(-1)
    values = blocks / scales.where(scales > 0, 1.0)[..., None]  # a block of zeros stays one
    places = torch.bucketize(values, (levels[1:] + levels[:-1]) / 2, out_int32=True)
    codes = places.to(torch.uint8).flatten(1)
    return codes[:, ::2] << 4 | codes[:, 1::2] if bits == 4 else codes, scales


def dequantize(codes: Tensor, scales: Tensor, table: Tensor) -> Tensor:
    """Return float32 weights, [R, P]: padded columns are zero."""
    values = functional.embedding(codes.int(), table)
    return (values.view(*scales.shape, BLOCK) * scales[..., None]).flatten(1)


def levels_of_bytes(bits: int, device: torch.device) -> Tensor:
    """Return the values that each byte stands for, before they are scaled: [256, 8 / bits]."""
    levels, codes = torch.tensor(LEVELS[bits], device=device), torch.arange(256, device=device)
    if bits == 4:
        return torch.stack([levels[codes >> 4], levels[codes & 15]], dim=1)
    return levels[codes.clamp(max=len(levels) - 1)][:, None]


def quantize_linears(model: nn.Module, bits: int) -> None:
    """Turn the frozen linear layers that can be into `LowBitLinear`, in place, layer by layer.

    Left in float32: layers with fewer than 64 inputs, weights that two modules share, and linear
    layers with a `forward` of their own.

    Raises:
        PerennialError: no layer is left.
    """
    names: dict[int, int] = {}
    for value in named_weights(model).values():
        names[id(value)] = names.get(id(value), 0) + 1
    found = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        # Without a parameter of that name, the weight is computed from others.
        and (weight := dict(module.named_parameters(recurse=False)).get("weight")) is not None
        and not weight.requires_grad
        and names[id(weight)] == 1
        and module.in_features >= BLOCK
    ]
    if not found:
        raise PerennialError(
            f"training.adapter.base_bits = {bits} has no effect: no linear layer can be quantized",
            evidence=f"it needs {BLOCK} inputs, weights of its own that are frozen, and the "
            "`forward` of nn.Linear",
            action="remove base_bits",
        )
    for module in found:
        codes, scales = quantize(module.weight, bits)
        # Weights may be on the meta device, to be loaded later; what is derived has its values.
        table = levels_of_bytes(bits, torch.device("cpu") if codes.is_meta else codes.device)
        # In place, so that hooks and other references to the layer stay.
        del module.weight
        module.__class__ = LowBitLinear
        module.codes = nn.Parameter(codes, requires_grad=False)
        module.scales = nn.Parameter(scales, requires_grad=False)
        module.register_buffer("table", table, persistent=False)


@torch.no_grad()
def dequantize_linears(model: nn.Module) -> None:
    """Turn each `LowBitLinear` into a linear layer with the float32 weights, in place."""
    for module in low_bit_layers(model):
        rows = dequantize(local(module.codes), local(module.scales), module.table)
        weight: Tensor = rows[:, : module.in_features].contiguous()
        if isinstance(module.codes, DTensor):  # of a sharded model, which is divided by rows
            mesh, placements = module.codes.device_mesh, module.codes.placements
            shape = torch.Size((module.out_features, module.in_features))
            weight = DTensor.from_local(
                weight, mesh, placements, shape=shape, stride=(module.in_features, 1)
            )
        del module.codes, module.scales, module.table
        plain = cast("nn.Linear", module)
        plain.__class__ = nn.Linear
        plain.weight = nn.Parameter(weight, requires_grad=False)


def low_bit_layers(model: nn.Module) -> list[LowBitLinear]:
    """Return the layers whose weights are codes."""
    return [module for module in model.modules() if isinstance(module, LowBitLinear)]
