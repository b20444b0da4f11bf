"""Initial weights: load the stored weights that a training starts with into a new model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from perennial.clients.object_store import open_store, sha256_of_file
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import BadDataError, BadTaskError, DamagedModelError, join_names
from perennial.contracts.initial_model import FOLDER, InitialModel
from perennial.data.verified_files import is_verified, record_verified
from perennial.engine.export import read_tensors
from perennial.engine.task import ParameterKeys, Task, load_task

SHOWN = 5  # names in a message
Copies = dict[str, Callable[[Tensor], list[str]]]
"""Name in the model → what copies its stored weights into a tensor, and returns a line for each
position that only one of both has."""


@torch.no_grad()
def load_initial_weights(model: nn.Module, task: Task, initial: InitialModel) -> tuple[str, ...]:
    """Copy stored weights into a new model, in place, in its own types.

    Returns:
        A line for each parameter that did not take over the stored one as it is.

    Raises:
        DamagedModelError: a file is not the one that was pinned, or has values that are not finite.
        BadTaskError: names or shapes do not fit the model.
    """
    copies, notes = plan_copies(model, task, initial)
    state = model.state_dict()
    return (*(line for name, copy in copies.items() for line in copy(state[name])), *notes)


def plan_copies(model: nn.Module, task: Task, initial: InitialModel) -> tuple[Copies, list[str]]:
    """Find the stored weights of each parameter of a new model, which may be on the meta device.

    Returns:
        The copies, and a line for each parameter that is new or left out.

    Raises:
        DamagedModelError: a file is not the one that was pinned, or has values that are not finite.
        BadTaskError: names do not fit the model.
    """
    stored = _with_own_names(model, task, read_weights(initial))
    _require_used(initial, model, stored)
    own, former = task.parameter_keys(), _former_keys(initial)
    places = {keys.name: name for name, keys in former.items()}
    state, used, fresh = model.state_dict(keep_vars=True), set[str](), set[str]()
    copies: Copies = {}
    _require_tied(state, stored)
    for name in state:
        keys = own.get(name)
        source = places.get(keys.name, "") if keys and former else name
        if source not in stored or _matches(name, initial.new):
            fresh.add(name)
            continue
        used.add(source)
        then = former[source] if keys and former else None
        copies[name] = partial(
            copy_weights,
            source=stored[source],
            name=name,
            own=keys if then else None,
            former=then,
        )
    # A stored parameter may be listed once where the model has it under two names.
    loaded = {_place(state[name]) for name in state if name not in fresh}
    keyed = {name for name in own if former}
    missing = [
        name
        for name in fresh - keyed
        if _place(state[name]) not in loaded and not _matches(name, initial.new)
    ]
    # The weights of a replaced head are there, and not wanted.
    unwanted = (*initial.unused, *initial.new)
    left = stored.keys() - used - former.keys()
    extra = [name for name in left if not _matches(name, unwanted)]
    if missing or extra:
        raise _misfit(initial, sorted(missing), sorted(extra))
    notes = [f"{own[name].name}: new" for name in sorted(fresh & keyed)]
    notes += [f"{former[name].name}: left out" for name in sorted(former.keys() - used)]
    return copies, notes


def fresh_names(model: nn.Module, initial: InitialModel) -> set[str]:
    """Return the parameters that start at random by `model.initial.new`."""
    return {name for name, _ in model.named_parameters() if _matches(name, initial.new)}


def find_random_values(model: nn.Module, task: Task, initial: InitialModel) -> set[str]:
    """Return the parameters of which some values are not stored: they start at random."""
    former = {keys.name: keys.keys for keys in _former_keys(initial).values()}
    found = fresh_names(model, initial)
    for name, own in task.parameter_keys().items() if former else ():
        then = former.get(own.name)
        if then is None or any(
            mine is not None and old is not None and set(mine) - set(old)
            for mine, old in zip(own.keys, then, strict=False)
        ):
            found.add(name)
    return found


def read_weights(initial: InitialModel) -> dict[str, Tensor]:
    """Return stored name, renamed for the model → tensor, mapped from the verified files.

    Raises:
        DamagedModelError: a file is not the one that was pinned, or cannot be read.
        BadTaskError: two stored names become one.
    """
    found: list[tuple[str, Tensor]] = []
    for sha256 in initial.origin.files.values():
        tensors = read_tensors(fetch_weights(initial.store_uri, sha256))
        found += [(_renamed(name, initial.rename), value) for name, value in tensors.items()]
    twice = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
    if twice:
        raise BadTaskError(
            f"model.initial.rename gives two stored weights the name {twice[0]!r}",
            action="make the beginnings longer, so that each name stays different",
        )
    bad = [n for n, each in found if each.is_floating_point() and not each.isfinite().all()]
    if bad:
        raise DamagedModelError(
            f"the initial weights cannot be used: {bad[0]} has values that are not finite",
            evidence=initial.origin.describe(),
            action="name another file in [model.initial]",
        )
    return dict(found)


def _with_own_names(model: nn.Module, task: Task, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the stored tensors under the model's names, where they were published under others."""
    published = task.published_names(model, stored)
    named = {name: value for name, value in stored.items() if name not in published}
    return {**{published[name]: stored[name] for name in published}, **named}


def fetch_weights(store_uri: str, sha256: str) -> Path:
    """Return a local file with pinned weights, verified once per machine.

    Raises:
        DamagedModelError: the store has no such file, or another one.
    """
    cache, key = data_cache(), f"{FOLDER}/{sha256}.safetensors"
    try:
        path = open_store(store_uri).fetch(key, cache)
    except BadDataError as error:
        raise DamagedModelError(
            f"pinned weights are gone from the store: {key}",
            evidence=error.problem,
            action="restore it from a backup, or copy it from its origin to this place",
        ) from error
    if not is_verified(path, sha256, cache):
        found = sha256_of_file(path)
        if found != sha256:
            raise DamagedModelError(
                f"{store_uri}/{key} is not the file that was pinned",
                evidence=f"SHA-256 of {store_uri}/{key} is {found}",
                action="delete it: the next run stores it again from its origin",
            )
        record_verified(path, sha256, cache)
    return path


def copy_weights(
    target: Tensor,
    source: Tensor,
    name: str,
    own: ParameterKeys | None,
    former: ParameterKeys | None,
) -> list[str]:
    """Copy a stored tensor into a parameter; positions with keys go where their key is now.

    Returns:
        A line for positions that only one of both has.

    Raises:
        BadTaskError: the shapes differ, and no keys tell which positions are the same.
    """
    keys = own.keys if own else (None,) * target.ndim
    then = former.keys if former else (None,) * source.ndim
    pairs = list(zip(keys, then, strict=False))
    differs = [
        place
        for place, (mine, theirs) in enumerate(pairs)
        if (mine is None or theirs is None) and target.shape[place] != source.shape[place]
    ]
    if target.ndim != source.ndim or differs:
        raise BadTaskError(
            f"the stored weights do not fit the model: {name} has another shape",
            evidence=f"stored {list(source.shape)}, in the model {list(target.shape)}",
            action="correct model.options; or add the name to model.initial.new, so that it starts "
            'at random; or set model.initial.source = "scratch" for this training',
        )
    if all(None in pair or tuple(pair[0] or ()) == tuple(pair[1] or ()) for pair in pairs):
        target.copy_(source)
        return []
    # Indices of one dimension each, which broadcast to all positions that both tensors have.
    here, there, notes = list[Tensor](), list[Tensor](), list[str]()
    for dimension, (mine, theirs) in enumerate(pairs):
        kept = _kept(mine, theirs, target.shape[dimension])
        shape = [1] * target.ndim
        shape[dimension] = len(kept)
        here.append(torch.tensor([place for place, _ in kept], dtype=torch.long).view(shape))
        there.append(torch.tensor([place for _, place in kept], dtype=torch.long).view(shape))
        if mine is not None and theirs is not None:
            changes = (("new", set(mine) - set(theirs)), ("left out", set(theirs) - set(mine)))
            title = own.name if own else name
            notes += [f"{title}: {word} {_listed(each)}" for word, each in changes if each]
    target[tuple(here)] = source[tuple(there)].to(target.dtype)
    return notes


def _kept(
    mine: Sequence[object] | None, theirs: Sequence[object] | None, size: int
) -> list[tuple[int, int]]:
    """Return the positions now and then of what both have."""
    if mine is None or theirs is None:
        return [(place, place) for place in range(size)]
    places = {key: place for place, key in enumerate(theirs)}
    return [(place, places[key]) for place, key in enumerate(mine) if key in places]


def _former_keys(initial: InitialModel) -> Mapping[str, ParameterKeys]:
    former = initial.former
    if former is None:
        return {}
    task = load_task(former.task, former.options, former.columns)
    task.load_state(former.state)
    return task.parameter_keys()


def _renamed(name: str, rename: Mapping[str, str]) -> str:
    fitting = [beginning for beginning in rename if name.startswith(beginning)]
    if not fitting:
        return name
    beginning = max(fitting, key=len)
    return rename[beginning] + name.removeprefix(beginning)


def _require_used(initial: InitialModel, model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Check that every pattern matches something.

    Raises:
        BadTaskError: one does not, so it would be ignored.
    """
    for option, patterns, names in (
        ("new", initial.new, model.state_dict()),
        ("unused", initial.unused, stored),
    ):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise BadTaskError(
                    f"model.initial.{option}: {pattern!r} matches no name",
                    evidence=f"some names are: {_listed(list(names))}",
                    action="correct the pattern (`*` stands for any text), or remove it",
                )


def _require_tied(state: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    """Check that one tensor of the model is not stored as two, of which the last would win.

    Raises:
        BadTaskError: it is, with different values.
    """
    first: dict[tuple[int, torch.Size], str] = {}
    for name in (each for each in state if each in stored and state[each].numel()):
        other = first.setdefault((_place(state[name]), state[name].shape), name)
        if not torch.equal(stored[name], stored[other]):
            raise BadTaskError(
                f"the model ties {other} and {name}, and the stored weights do not",
                evidence="their values differ",
                action="build the model untied, as with `tie_word_embeddings = false` in the "
                "settings of transformers",
            )


def _place(tensor: Tensor) -> int:
    """Return what tied tensors have in common; on the meta device, they are one object."""
    return tensor.data_ptr() or id(tensor)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(names: Sequence[object] | set[object]) -> str:
    return join_names(sorted(map(str, names)), SHOWN)


def _misfit(initial: InitialModel, missing: list[str], extra: list[str]) -> BadTaskError:
    parts = (("the model lacks", extra), ("the stored weights lack", missing))
    return BadTaskError(
        "the stored weights do not fit the model: names differ",
        evidence="; ".join(f"{what} {_listed(names)}" for what, names in parts if names)
        + f" ({initial.origin.describe()})",
        action="correct model.initial.rename; or name what starts at random in model.initial.new, "
        "and what is not needed in model.initial.unused",
    )
