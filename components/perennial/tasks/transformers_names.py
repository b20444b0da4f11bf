"""Published names: what snapshots call the parameters of a model of `transformers`.

The package renames parameters from one release to the next, and translates when it loads or writes
a snapshot: a ViT's `layers.0.attention.q_proj` is `encoder.layer.0.attention.attention.query` in
all files.
"""

from collections.abc import Collection, Mapping
from typing import Any, cast

from torch import nn

from perennial.engine.task import Task
from perennial.tasks.columns.tokenization import import_package

WRAPPER = "model."
"""The package's model is this part of ours."""


class PublishedModel(Task):
    """Base of tasks whose model is one of `transformers`, as the attribute `model` of a wrapper."""

    def published_names(self, model: nn.Module, stored: Collection[str]) -> Mapping[str, str]:
        """Return stored name → the model's, of names that the package has renamed."""
        mapping, loading = (
            import_package(f"transformers.{part}", "this task", "pip install 'transformers>=5'")
            for part in ("conversion_mapping", "core_model_loading")
        )
        rules = mapping.get_model_conversion_mapping(cast("Any", model).model)
        # Others join or split tensors; what only they would name is reported as missing.
        renamings = [each for each in rules if isinstance(each, loading.WeightRenaming)]
        own, found = model.state_dict().keys(), dict[str, str]()
        for name in set(stored) - own:
            source = name.removeprefix(WRAPPER)
            target = WRAPPER + loading.rename_source_key(source, renamings, [])[0]
            if name.startswith(WRAPPER) and target in own and target not in stored:
                found[name] = target
        return found
