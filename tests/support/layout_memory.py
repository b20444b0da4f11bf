"""A rank that plans the memory of its layout, then makes an update and counts what is there."""

import gc
import json
import sys
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from perennial.engine.data.batching import BatchPlan
from perennial.engine.handover import receive_job
from perennial.engine.memory.footprint import Candidate
from perennial.engine.memory.plan import Activations, circumstances
from perennial.engine.objective import both_losses, forward
from perennial.engine.optimization.optimizer import build_optimizer
from perennial.engine.optimization.parameters import local
from perennial.engine.parallelism.context import own_sequences
from perennial.engine.parallelism.parallelize import set_gradient_sync
from perennial.engine.parallelism.pipeline import Pipeline, passes_in_flight
from perennial.engine.task import load_task
from perennial.engine.worker import initial_model
from perennial.engine.world.distributed import World
from small_decoder import LENGTH, VOCABULARY


class RandomTokens:
    """Rows of random tokens, as an encoded split gives them."""

    rows = 1000

    def gather(self, rows):
        tokens = torch.from_numpy(
            np.random.default_rng(0).integers(VOCABULARY, size=(len(rows), LENGTH))
        )
        return {"tokens": tokens, "label": tokens}


class SavedForBackward:
    """The most bytes of activations that autograd kept at a time.

    Neither weights count, which are known by their shapes, nor what was there before, such as the
    buffers of a pipeline.
    """

    def __init__(self, model):
        self.bytes = self.most = 0
        self._weights = {tuple(sorted(local(each).shape)) for each in model.parameters()}
        self._weights |= {tuple(sorted(each.shape)) for each in model.parameters()}
        tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
        self._existing = [local(each).untyped_storage() for each in tensors]
        self._seen = {each._cdata: 0 for each in self._existing}

    def pack(self, tensor):
        storage = local(tensor).untyped_storage()
        key = storage._cdata
        if tuple(sorted(tensor.shape)) not in self._weights and key not in self._seen:
            self._seen[key] = size = storage.nbytes()
            weakref.finalize(storage, self._drop, key, size)
            self.bytes += size
            self.most = max(self.most, self.bytes)
        return tensor

    def _drop(self, key, size):
        self._seen.pop(key, None)
        self.bytes -= size


def compare_memory() -> int:
    """Write what the plan expects of this rank beside what is there after an update."""
    job = receive_job(sys.argv[1])
    section = job.training
    world = World.join().arrange(section)
    task, data = load_task(job.model.task, job.model.options, {}), RandomTokens()
    around = circumstances(section, world)
    activations = Activations(around, world, task, data, available=2**40)
    checkpointing = section.memory.activation_checkpointing
    candidate = Candidate(section.strategy, section.parallelism.zero_stage or 3, checkpointing)
    worst = activations.estimate(candidate, around)
    passes = activations.under(checkpointing, around.batches.pass_rows)
    model = initial_model(task, data, section, world)
    whole = model.whole if isinstance(model, Pipeline) else ()
    optimizer = build_optimizer(model, section, whole)
    batches = own_batches(task, data, section, world)
    update(model, task, batches, section)  # the first one tries the stages of a pipeline out
    model.zero_grad()
    gc.collect()
    saved = SavedForBackward(model)
    with saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        update(model, task, batches, section)
    gradients = sum(local(each.grad).nbytes for each in model.parameters())
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    count = around.batches.accumulation_steps if around.is_pipeline else 1
    order = passes_in_flight(section.parallelism, around.stage, count)
    kept = [
        sum(n * each.kept for n, each in zip(counts, passes, strict=True)) for counts, _ in order
    ]
    found = {
        "planned": {
            "weights": activations.model.weights(around.shards),
            "gradients": activations.model.trainable(around.shards),
            "optimizer": activations.model.update(around.shards).state,
            "kept": max(kept),
        },
        "measured": {
            "weights": sum(local(each).nbytes for each in model.parameters()),
            "gradients": gradients,
            "optimizer": sum(local(value).nbytes for value in states if torch.is_tensor(value)),
            "kept": saved.most,
        },
        "worst": worst.model_dump(),
        "shard": world.layout.dense.get_coordinate()[2],
    }  # fmt: skip
    (Path(job.folder) / f"memory-{world.rank}.json").write_text(json.dumps(found))
    world.barrier()
    return 0


def own_batches(task, data, section, world):
    """This rank's micro-batches of an update."""
    plan = BatchPlan(section.global_batch_size, section.micro_batch_size, world.data_size)
    slices = plan.micro_batches(world.data_rank)
    batches = [data.gather(np.arange(each.stop - each.start)) for each in slices]
    return own_sequences(batches, task, world.layout)


def update(model, task, batches, section):
    """Run the forward and backward passes of an update."""
    if isinstance(model, Pipeline):
        model.add_gradients(batches, partial(both_losses, task, section=section), 1.0)
        return
    for number, batch in enumerate(batches, start=1):
        set_gradient_sync(model, enabled=number == len(batches))
        torch.autograd.backward(forward(task, model, batch, section)[1])
