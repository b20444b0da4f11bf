"""A plain loop that shows whether a task learns, without the platform's engine."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import torch

from perennial.contracts.data import TaskColumns
from perennial.engine.task import LABEL, WEIGHT, inputs_of


def task_of(case, folder: Path):
    """The case's task, as the platform would make it, and its rows."""
    contract = tomllib.loads(case.contract)
    named = contract["data"]
    rows = case.rows()
    path = folder / f"examined_{case.name}.py"
    path.write_text(case.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    roles = {
        named["label"],
        named.get("time"),
        named.get("group"),
        *named.get("ids", ()),
        *named.get("meta", ()),
    }
    features = named.get("features") or [name for name in rows.columns if name not in roles]
    columns = TaskColumns(
        label=named["label"], features={name: str(rows.schema[name]) for name in features}
    )
    task_type = getattr(module, case.task_class)
    return task_type, columns, rows, contract


def split(rows: pl.DataFrame, time: str | None, seed=0):
    """Seven tenths to learn from, the rest to judge by: the last days of each month where there is a time."""
    if time:
        late = rows[time].dt.day() > 21
        return rows.filter(~late), rows.filter(late).sample(fraction=1.0, shuffle=True, seed=seed)
    order = np.random.default_rng(seed).permutation(rows.height)
    cut = int(rows.height * 0.7)
    return rows[order[:cut]], rows[order[cut:]]


def fitted(task_type, columns, train):
    """Fit, and hand the state over as JSON, as serving would get it."""
    first = task_type(task_type.Options(), columns)
    first.fit(train.lazy())
    second = task_type(task_type.Options(), columns)
    second.load_state(json.loads(json.dumps(first.state(), sort_keys=True)))
    return second


def mean_loss(task, model, batch):
    model.eval()
    with torch.no_grad():
        losses = task.losses(model(**inputs_of(batch)), batch)
    weights = batch.get(WEIGHT, torch.ones(len(losses)))
    return float((losses * weights).sum() / weights.sum())


def whole_groups(task, rows):
    return rows.head(rows.height - rows.height % task.scored_together)


def learn(case, folder: Path, steps: int | None = None, most=20_000):
    """Train by hand; losses on held-out rows: before, after, and after with shuffled inputs."""
    task_type, columns, rows, contract = task_of(case, folder)
    train, test = split(rows, contract["data"].get("time"))
    task = fitted(task_type, columns, train)
    torch.manual_seed(1)
    model = task.build_model()
    options = contract["training"]
    named = options["optimizer"]
    params = model.parameters()
    optimizer = (
        torch.optim.SGD(params, named["learning_rate"], momentum=0.9, nesterov=True)
        if named.get("name") == "sgd"
        else torch.optim.AdamW(
            params, named["learning_rate"], weight_decay=named.get("weight_decay", 0.01)
        )
    )
    size = options["global_batch_size"]
    batch = task.encode(train.head(most))
    held = task.encode(whole_groups(task, test.head(1024)))
    initial = mean_loss(task, model, {name: tensor[:1024] for name, tensor in batch.items()})
    before = mean_loss(task, model, held)
    expected = task.expected_initial_loss()
    generator = torch.Generator().manual_seed(2)
    rng = np.random.default_rng(3)
    count = len(batch[LABEL])
    for _ in range(steps or options["steps"]):
        picked = torch.from_numpy(rng.permutation(count)[:size])
        part = task.augment({name: tensor[picked] for name, tensor in batch.items()}, generator)
        model.train()
        losses = task.training_losses(model(**inputs_of(part)), part)
        weights = part.get(WEIGHT, torch.ones(len(losses)))
        optimizer.zero_grad()
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    final = mean_loss(task, model, held)
    other = torch.from_numpy(rng.permutation(len(held[LABEL])))
    mixed = {
        name: tensor if name in (LABEL, WEIGHT) else tensor[other] for name, tensor in held.items()
    }
    if not held[LABEL].any():  # the label is among the inputs: pair queries with foreign answers
        first = next(iter(inputs_of(held)))
        mixed = held | {first: held[first][other]}
    return {
        "expected": expected,
        "initial": initial,
        "before": before,
        "final": final,
        "shuffled": mean_loss(task, model, mixed),
    }
