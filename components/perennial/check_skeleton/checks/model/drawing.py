"""Drawing: detects whether code draws random numbers, even from a fixed seed."""

from collections.abc import Callable, Sequence

from torch.overrides import TorchFunctionMode

DRAWS = ("rand", "normal", "bernoulli", "multinomial", "poisson", "uniform", "exponential",
         "dropout")  # fmt: skip


class Drawing(TorchFunctionMode):
    """Records whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.has_drawn = False

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        name = getattr(func, "__name__", "").lstrip("_")
        # Dropout in evaluation mode is called, and draws nothing.
        self.has_drawn |= name.startswith(DRAWS) and not (
            "dropout" in name and given.get("training", True) is False
        )
        return func(*args, **given)
