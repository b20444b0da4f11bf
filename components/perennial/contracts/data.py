"""The `[model]`, `[data]` and `[split]` sections, which every step needs."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator

from perennial.contracts.initial import EnsembleSection, Initial, Scratch
from perennial.contracts.old_names import current_task
from perennial.contracts.section import Advanced, Section

Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
ColumnName = Annotated[str, StringConstraints(min_length=1)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class Split(StrEnum):
    """The part of a snapshot that a row belongs to, permanently."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


class ModelSection(Section):
    """The model that is kept trained, and the task that defines it."""

    name: Name
    """The registered model's name: up to 63 lower-case letters, digits and inner hyphens, as
    Kubernetes names things. Never change it: it joins the versions, runs and triggers of one model
    over the years."""
    task: ImportPath
    """The task class as `package.module:ClassName`."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The task's own options, checked by the task's `Options`."""
    initial: Initial = Scratch()
    """Weights that a training starts with: `scratch` (random), or those of the `champion`, of a
    `safetensors` file or of a `huggingface` snapshot."""
    ensemble: EnsembleSection | None = None
    """Serve the mean of the selected checkpoint and the last champions where it is clearly better.
    Set it where quality counts more than the cost of serving; to distil it into one model, name its
    version in `training.distillation`."""

    @field_validator("task")
    @classmethod
    def _current_name(cls, path: str) -> str:
        return current_task(path)


class DataSection(Section):
    """An append-only dataset and what its columns mean."""

    uri: Annotated[str, StringConstraints(min_length=1)]
    """Folder or `s3://bucket/prefix` of the dataset; a relative path is taken from the contract's
    folder."""
    format: Advanced[Literal["parquet"]] = "parquet"
    """File format of the partitions."""
    label: ColumnName
    """The column to predict."""
    time: ColumnName | None = None
    """Column with the time of the prediction. Name it whenever the rows have a time: splits, drift
    and the gate's intervals are then computed on blocks of time. Without it the gate counts rows
    (or groups), drift and decay are judged file by file (`triggers.files_in_a_block`), and
    cooldown, budget and age in days have no effect."""
    time_is_feature: bool = False
    """Whether requests carry the time of the prediction, so that a task of your own may read it:
    the hour, the weekday, an age. Its values never come back, so it is neither validated nor
    watched for drift as other features are."""
    group: ColumnName | None = None
    """Column with the user, patient or session of a row. Under `split.method = "group"` the rows of
    one group never fall into different splits, and the gate counts groups instead of days; under
    `time` they may, and `validate_data` reports how many do; there it may be one of `features` as
    well, such as the user of a recommender."""
    ids: tuple[ColumnName, ...] = ()
    """Columns that identify a row; duplicates are counted on them, the model never sees them."""
    meta: tuple[ColumnName, ...] = ()
    """Columns kept for reports and slices only."""
    features: tuple[ColumnName, ...] = ()
    """Columns that the model sees. Empty means every column without another role. A text or a list
    may be feature and label at once: a model of sequences predicts the rest of its own input."""
    text: tuple[ColumnName, ...] = ()
    """Columns of free text, which have a role of their own as well. Name them: their lengths and
    characters are then validated and watched for drift, where the values of other text columns
    count as categories."""
    available_at: dict[ColumnName, ColumnName] = Field(default_factory=dict)
    """Feature → column with the time at which its value became known, for a feature that an event
    of its own records. A value known after the prediction time is leakage."""
    block_days: Annotated[int, Field(ge=1, le=366)] = 7
    """Length in days of a block of time, the unit of independence for drift and decay. Make it
    cover one full cycle of the stream (a week for most human activity)."""

    @model_validator(mode="after")
    def _one_role_per_column(self) -> Self:
        roles: dict[str, str] = {}
        named = {
            "label": (self.label,),
            "ids": self.ids,
            "meta": self.meta,
            "features": self.features,
            "time": (self.time,),
            "group": (self.group,),
        }
        for role, columns in named.items():
            for column in filter(None, columns):
                both = {role, roles.get(column, role)}
                # A language model predicts its own text, a recommender the items of its own list
                # (`snapshot_data` judges the types); reports and slices may be by group, and a
                # recommender's user is a feature.
                may_be_both = both in (
                    {"label", "features"},
                    {"group", "meta"},
                    {"group", "features"},
                )
                if column in roles and not may_be_both:
                    way = "give each column one role"
                    if both == {"features", "time"}:
                        way += ": drop it from features and set time_is_feature = true"
                    raise ValueError(
                        f"column {column!r} is named as {roles[column]} and as {role}; {way}"
                    )
                roles[column] = role
        needs_time = {"available_at": self.available_at, "time_is_feature": self.time_is_feature}
        for option in (name for name, value in needs_time.items() if value and self.time is None):
            raise ValueError(f"{option} needs `time`, the column holding the prediction time")
        return self


class SplitSection(Section):
    """Rows that train, that choose the checkpoint, and that test; no row ever changes its split."""

    method: Literal["auto", "time", "group", "hash"] = "auto"
    """`time`: the first part of every period trains, the next validates, the last tests, so that
    the newest test rows lie after everything trained on. `group`: by hash of the group column.
    `hash`: by hash of the ids. `auto`: time when `data.time` is set, else group, else hash."""
    period: Literal["week", "month", "quarter", "year"] = "month"
    """The calendar period that is cut under `time`; choose one that new data fills at least once
    between two retrainings. Under `week` the splits hold different days of the week: choose it only
    where these do not matter."""
    validation_fraction: Fraction = 0.15
    """Share of each period that chooses the checkpoint."""
    test_fraction: Fraction = 0.25
    """Share of each period that the gate judges on; raise it when the intervals are too wide."""
    train_days: Annotated[int, Field(ge=1)] | None = None
    """Train and validate on the newest this many days only; None means the whole history."""
    test_days: Annotated[int, Field(ge=1)] | None = None
    """Judge on test rows of the newest this many days only; None means all test rows."""
    salt: Advanced[str] = ""
    """Changes every assignment of `group` and `hash`; never change it for a model in use."""

    @model_validator(mode="after")
    def _train_keeps_a_share(self) -> Self:
        if self.validation_fraction + self.test_fraction >= 0.9:
            raise ValueError(
                f"validation_fraction + test_fraction = "
                f"{self.validation_fraction + self.test_fraction:.2f} leaves too little to train "
                "on; keep their sum below 0.9"
            )
        return self

    def resolved_method(self, data: DataSection) -> Literal["time", "group", "hash"]:
        """Return the method that `auto` stands for under this data section."""
        if self.method != "auto":
            return self.method
        return "time" if data.time else "group" if data.group else "hash"


class TaskColumns(Section):
    """The columns that a task may use, as the snapshot recorded them."""

    label: ColumnName
    features: dict[ColumnName, str]
    """Feature name → polars data type, in order of the names."""

    @field_validator("features")
    @classmethod
    def _in_order_of_names(cls, features: dict[str, str]) -> dict[str, str]:
        return dict(sorted(features.items()))
