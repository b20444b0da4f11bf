"""The `[training.distillation]` section: learning from the predictions of registered versions."""

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from perennial.contracts.section import Section

TeacherName = Annotated[
    str,
    StringConstraints(pattern=r"^([a-z]([a-z0-9-]{0,61}[a-z0-9])?)?@([1-9][0-9]*|champion)$"),
]


class Distillation(Section):
    """Learning from teachers beside the labels (Hinton et al. 2015, arXiv:1503.02531).

    For tasks of kind `binary`, `multiclass` and `regression`. The teachers predict each training
    row once, before the training. Their predictions are averaged.
    """

    teachers: Annotated[tuple[TeacherName, ...], Field(min_length=1)]
    """Registered versions, as `MODEL@3` or `MODEL@champion`; `@3` and `@champion` are of this
    model. Name a larger model, or several versions whose mean is better than each."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the teachers in the loss; the labels have the rest. Raise it where labels are noisy
    or few, 1 ignores them; lower it where the teachers are hardly better than the model."""
    temperature: Annotated[float, Field(ge=1.0, le=100.0)] | None = None
    """For classes: probabilities of teachers and model are softened by it, and the loss is
    multiplied by its square, so that its gradient keeps its size (section 2 of the paper). None
    means 2. Raise it where teachers are nearly certain of each row."""

    @property
    def softening(self) -> float:
        """Return the temperature in use."""
        return self.temperature or 2.0

    @field_validator("teachers")
    @classmethod
    def _are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is named {names.count(twice[0])} times; name it once")
        return names
