from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from perennial.contracts.errors import PerennialError
from perennial.engine.config.optimization import AdamW8bit, Optimizer
from perennial.engine.config.training import TrainingSection
from perennial.engine.memory import plan as memory_plan
from perennial.engine.memory.footprint import (
    Candidate,
    Circumstances,
    UpdateMemory,
    candidates,
    estimate,
)
from perennial.engine.memory.live import LiveMemory, Part, PassMemory, measure_pass
from perennial.engine.memory.plan import (
    MARGIN,
    PlannedMemory,
    available_memory,
    host_memory,
    make_plan,
    plan_strategy,
    stored_plan,
)
from perennial.engine.optimization.optimizer import build_optimizer, parameter_groups
from perennial.engine.task import LABEL
from perennial.engine.world.distributed import World
from perennial.train_model.report import training_page
from tiny_training import TinyModel, TinyOptions, finished, largest_difference, tiny_job, weights

CPU = torch.device("cpu")


class Wide:
    """A task of four equal blocks; per row, activations take far more than per weight."""

    needs_whole_batch = False

    def __init__(self, width=256, depth=4):
        self.width, self.depth = width, depth

    def build_model(self):
        blocks = (
            nn.Sequential(nn.Linear(self.width, self.width), nn.GELU(), nn.GELU(), nn.Tanh())
            for _ in range(self.depth)
        )
        return Model(nn.ModuleList(blocks), nn.Linear(self.width, 1))

    def blocks(self, model):
        return list(model.blocks)

    def training_losses(self, output, batch):
        return (output.squeeze(-1) - batch[LABEL]).square()

    def auxiliary_losses(self, model):
        return None


class Model(nn.Module):
    def __init__(self, blocks, head):
        super().__init__()
        self.blocks, self.head = blocks, head

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Rows:
    """The rows of a split."""

    rows = 4096

    def __init__(self, width=256):
        self.width = width

    def gather(self, indices):
        return {"x": torch.randn(len(indices), self.width), LABEL: torch.randn(len(indices))}


class Together(World):
    """Several processes of which this is the first: the value of the first holds."""

    def from_first(self, value):
        return value

    def to_first(self, value):
        return [value]


def world(size):
    return Together(rank=0, local_rank=0, size=size, device=CPU)


def section(**changes):
    values = {"strategy": "auto", "global_batch_size": 512, "micro_batch_size": 512,
              "checkpoints": {"asynchronous": False}}  # fmt: skip
    return TrainingSection(**(values | changes))


def planned(monkeypatch, available, size=2, task=None, **changes):
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: int(available))
    return make_plan(section(**changes), world(size), task or Wide(), Rows())


@pytest.fixture(scope="module")
def tables():
    """The peaks of all layouts of `Wide`, by name."""

    def of(size):
        found = {}
        around = Circumstances(section(), size, "cpu")
        activations = memory_plan.Activations(around, world(size), Wide(), Rows(), 10**9)
        for candidate in candidates(section(), size, has_blocks=True):
            found_ = activations.estimate(candidate, around)
            found[found_.name] = found_.peak
        return found

    return of


@pytest.mark.parametrize(
    ("size", "layouts"),
    [
        (1, ["single", "single + selective checkpointing", "single + full checkpointing"]),
        (
            4,
            [
                "ddp",
                "fsdp (ZeRO 2)",
                "fsdp (ZeRO 3)",
                "fsdp (ZeRO 3) + selective checkpointing",
                "fsdp (ZeRO 3) + full checkpointing",
            ],
        ),
    ],
)
def test_each_layout_is_chosen_when_the_one_before_does_not_fit(monkeypatch, tables, size, layouts):
    table = tables(size)
    assert list(table) == layouts
    assert sorted(table.values(), reverse=True) == list(table.values())
    for name, peak in table.items():
        # Just above the need, margin included; 1% for the measurement of other random rows.
        plan = planned(monkeypatch, peak * 1.01 / (1 - MARGIN), size)
        assert plan.chosen.name == name
        assert plan.chosen.peak <= plan.limit
        assert plan.reason.startswith(name)
        assert [estimate.name for estimate in plan.estimates] == layouts[: len(plan.estimates)]


@pytest.mark.parametrize(
    ("size", "advice"),
    [
        (1, ["micro_batch_size = "]),
        (2, ["num_processes = 4", "micro_batch_size = "]),
    ],
)
def test_what_never_fits_is_an_error_that_says_what_would(monkeypatch, tables, size, advice):
    least = min(tables(size).values())
    with pytest.raises(PerennialError, match="found no layout that fits") as caught:
        planned(monkeypatch, least * 0.9, size)
    for part in advice:
        assert part in caught.value.action
    assert "too much" in caught.value.evidence


@pytest.mark.parametrize(("size", "name"), [(1, "micro_batch_size"), (2, "num_processes")])
def test_what_is_advised_fits(monkeypatch, tables, size, name):
    available = min(tables(size).values()) * 0.98 / (1 - MARGIN)
    with pytest.raises(PerennialError) as caught:
        planned(monkeypatch, available, size)
    value = int(caught.value.action.split(f"{name} = ")[1].split()[0])
    changes = {"micro_batch_size": value} if size == 1 else {}
    plan = planned(monkeypatch, available, value if size > 1 else 1, **changes)
    assert plan.chosen.peak <= plan.limit


def test_an_option_that_a_layout_refuses_rules_it_out(monkeypatch):
    """SGD's fused kernel cannot update shards; offloading needs them."""
    plan = planned(monkeypatch, 10**9, memory={"parameter_offload": True})
    assert plan.chosen.name == "fsdp (ZeRO 3)"
    with pytest.raises(ValidationError, match="does not run under strategy"):
        section(optimizer={"name": "sgd", "implementation": "fused"})


def test_checkpointing_that_was_asked_for_is_kept(monkeypatch):
    plan = planned(monkeypatch, 10**9, memory={"activation_checkpointing": "selective"})
    assert plan.chosen.name == "ddp + selective checkpointing"


def test_without_blocks_checkpointing_is_no_way_out(monkeypatch):
    class Whole(Wide):
        def blocks(self, model):
            return ()

    names = [found.name for found in planned(monkeypatch, 10**9, task=Whole()).estimates]
    assert names == ["ddp"]
    assert len(candidates(section(), 2, has_blocks=False)) == 3


@pytest.mark.parametrize(
    ("parallelism", "layouts"),
    [
        ({"context": 2}, ["ddp", "fsdp (ZeRO 2)", "fsdp (ZeRO 3)"]),
        ({"tensor": 2}, ["fsdp (ZeRO 2)", "fsdp (ZeRO 3)"]),
        ({"pipeline": 2}, ["fsdp (ZeRO 2)", "fsdp (ZeRO 3)"]),
        ({"replicas": 2, "expert": 2}, ["hsdp (ZeRO 2)", "hsdp (ZeRO 3)"]),
        ({"zero_stage": 2}, ["fsdp (ZeRO 2)"]),
    ],
    ids=str,
)
def test_auto_keeps_to_the_dimensions_of_the_contract(parallelism, layouts):
    training = section(parallelism=parallelism)
    found = candidates(training, 4, has_blocks=False)
    assert [
        f"{each.strategy} (ZeRO {each.zero_stage})".removesuffix(" (ZeRO 0)") for each in found
    ] == layouts
    for each in found:
        chosen = each.applied(training).parallelism
        assert {name: getattr(chosen, name) for name in parallelism} == parallelism


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_only_shards_are_offloaded(strategy):
    with pytest.raises(ValidationError, match="parameter_offload"):
        section(strategy=strategy, memory={"parameter_offload": True})


def test_a_pass_that_would_not_fit_is_measured_in_part(monkeypatch):
    full = planned(monkeypatch, 10**9, 1)
    around = Circumstances(section(), 1, "cpu")
    partial = memory_plan.Activations(around, world(1), Wide(), Rows(), 2_100_000)
    (measured,) = partial.under("none", 512)
    assert partial.measured_rows == 128
    assert measured.rows == full.micro_batch_rows == 512
    everything = memory_plan.Activations(around, world(1), Wide(), Rows(), 10**9)
    (exact,) = everything.under("none", 512)
    assert measured.activations == pytest.approx(exact.activations, rel=0.1)
    assert measured.with_gradients == pytest.approx(exact.with_gradients, rel=0.2)


class Bytes:
    """A model of 100 bytes, twice of which the optimizer keeps."""

    whole, buffers, blocks, outside, unquantized = 100, 0, (40, 40), 20, 0

    def weights(self, shards=1):
        return 100 // shards

    trainable = weights

    def update(self, shards):
        return UpdateMemory(state=200 // shards, temporary=100 // shards)


# What sharding and accumulating do to each part of the table, with a model of 100 bytes.
@pytest.mark.parametrize(
    ("candidate", "micro", "processes", "changes", "expected"),
    [
        (("single", 0), 8, 1, {}, {"weights": 100, "gradients": 100, "optimizer_state": 200,
                                  "activations": 30, "update": 100, "peak": 500}),
        (("single", 0), 4, 1, {}, {"activations": 50, "peak": 500}),
        (("ddp", 0), 4, 2, {}, {"communication": 100, "activations": 30, "peak": 600}),
        (("fsdp", 3), 4, 2, {}, {"weights": 50, "gradients": 50, "optimizer_state": 100,
                                "gathered": 20 + 2 * 40, "communication": 40 + 40,
                                "activations": 50, "update": 50, "peak": 200 + 230}),
        (("fsdp", 2), 4, 2, {}, {"gathered": 100}),
        (("fsdp", 3), 2, 2, {}, {"gradients": 100, "communication": 40}),
        (("fsdp", 3), 4, 2, {"precision": "bf16"}, {"gathered": 50, "communication": 60}),
        (("ddp", 0), 4, 2, {"averaging": {}}, {"averaged_weights": 100}),
        (("ddp", 0), 4, 2, {"checkpoints": {"asynchronous": True}}, {"staging": 300}),
    ],
)  # fmt: skip
def test_the_parts_of_an_estimate(candidate, micro, processes, changes, expected):
    model = Bytes()
    measured = PassMemory(
        rows=8, activations=50, with_gradients=130, with_outside=60, weight_casts=0
    )
    settings = section(global_batch_size=8, micro_batch_size=micro, **changes)
    around = Circumstances(settings, processes, "cpu")
    found = estimate(Candidate(*candidate, "none"), model, [measured], around)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("strategy", "device", "settings", "loading"),
    [
        ("ddp", "cuda", {}, 100),
        ("fsdp", "cuda", {}, 10 + 40),
        ("fsdp", "cuda", {"memory": {"parameter_offload": True}}, 40),
        ("fsdp", "cpu", {}, 100 + 4),
    ],
)
def test_a_model_is_never_whole_on_a_gpu_that_has_a_shard(strategy, device, settings, loading):
    """Ten processes, where what is kept of the model is less than the largest module."""
    model = Bytes()
    measured = PassMemory(rows=1, activations=0, with_gradients=0, with_outside=0, weight_casts=0)
    around = Circumstances(section(global_batch_size=10, **settings), 10, device)
    found = estimate(Candidate(strategy, 3, "none"), model, [measured], around)
    assert found.loading == loading
    assert found.peak >= loading


OPTIMIZERS = [
    {"name": "adamw"}, {"name": "adamw", "implementation": "fused"}, {"name": "adam"},
    {"name": "nadam"}, {"name": "sgd"}, {"name": "sgd", "momentum": 0.0, "nesterov": False},
    {"name": "sgd", "weight_decay": 0.1}, {"name": "adafactor"},
]  # fmt: skip


def test_every_optimizer_is_checked_here():
    schema = TypeAdapter(Optimizer).json_schema()["$defs"]
    names = {value["properties"]["name"]["const"] for value in schema.values()}
    assert names == {settings["name"] for settings in OPTIMIZERS} | {"adamw8bit"}


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=str)
def test_an_optimizers_memory_is_what_it_takes(settings):
    training = TrainingSection(optimizer=settings)
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 300))
    groups = parameter_groups(model, training.optimizer)
    planned = UpdateMemory.of(groups, training.optimizer, is_on_gpu=False)
    optimizer = build_optimizer(model, training)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    state = [
        v for values in optimizer.state.values() for v in values.values() if torch.is_tensor(v)
    ]
    assert planned.state == sum(value.nbytes for value in state)
    existing = [*state, *model.parameters(), *(p.grad for p in model.parameters())]
    with LiveMemory(CPU, existing) as memory:
        optimizer.step()
    # Without values, Adafactor's sums of squares make float64 copies of one matrix.
    copies = 2 * 8 * 300 * 200 if settings["name"] == "adafactor" else 0
    assert memory.peak - 1000 <= planned.temporary <= memory.peak + copies + 11_000


def test_the_fused_kernel_of_a_gpu_needs_no_room():
    model, settings = nn.Linear(100, 100), TrainingSection().optimizer
    groups = parameter_groups(model, settings)
    assert UpdateMemory.of(groups, settings, is_on_gpu=False).temporary > 0
    assert UpdateMemory.of(groups, settings, is_on_gpu=True).temporary == 0


def test_moments_of_eight_bits_take_a_quarter():
    settings = AdamW8bit(name="adamw8bit")
    groups = parameter_groups(nn.Linear(512, 512), settings)
    found = UpdateMemory.of(groups, settings, is_on_gpu=False)
    matrix = 2 * (512 * 512 + 512 * 2 * 4)
    assert found.state == matrix + 2 * 4 * 512, "the small bias keeps float32"


def test_live_memory_counts_what_lives_and_no_more():
    x = torch.zeros(1000)
    with LiveMemory(CPU, [x]) as memory:
        y = x + 1
        view = y[:10]
        assert memory.live == 4000
        z = y * 2
        assert memory.live == 8000
        del y
        assert memory.live == 8000, "the view holds it"
        del view
        assert memory.live == 4000
        x.add_(1)
    assert memory.peak == 8000
    del z


def test_a_pass_is_measured_against_arithmetic():
    """One linear layer: its output, the loss's parts, and the gradients of both."""
    task = Wide(width=512, depth=1)
    model, rows = task.build_model(), 256
    batch = Rows(512).gather(range(rows))
    found = measure_pass(Part(model), task, batch, section())
    stream = rows * 512 * 4
    inputs = sum(tensor.nbytes for tensor in batch.values())
    # Three activations are alive when the backward pass starts, the first of which is followed by
    # its gradient, and by the gradient of the layer's weights.
    assert 3 * stream + inputs < found.activations < 5 * stream + inputs + 512 * 512 * 4
    head = 4 * (512 + 1)
    assert found.activations <= found.with_outside <= found.activations + head
    assert found.with_gradients >= found.with_outside
    assert all(parameter.grad is None for parameter in model.parameters())


def test_casts_of_weights_are_counted_apart():
    task = Wide()
    model = task.build_model()
    batch = Rows().gather(range(64))
    found = measure_pass(Part(model), task, batch, section(strategy="single", precision="bf16"))
    matrices = sum(p.numel() for p in model.parameters())
    assert found.weight_casts == pytest.approx(2 * matrices, rel=0.01)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 2_048_000),
        ({"memory.max": "max", "memory.current": "5", "memory.stat": "inactive_file 1"}, 2_048_000),
        (
            {
                "memory.max": "1000000",
                "memory.current": "700000",
                "memory.stat": "inactive_file 100",
            },
            300_100,
        ),
        (
            {
                "memory/memory.limit_in_bytes": "500000",
                "memory/memory.usage_in_bytes": "400000",
                "memory/memory.stat": "cache 3\ntotal_inactive_file 50000",
            },
            150_000,
        ),
        ({"memory.max": "10", "memory.current": "70", "memory.stat": "inactive_file 0"}, 0),
    ],
    ids=["no group", "no limit", "version 2", "version 1", "over the limit"],
)
def test_a_containers_limit_counts(tmp_path, files, expected):
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  4000 kB\nMemAvailable:    2000 kB\n")
    for name, text in files.items():
        target = tmp_path / "groups" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    assert host_memory(tmp_path / "groups", info) == expected


def test_processes_share_the_hosts_memory():
    alone = available_memory(CPU, {"LOCAL_WORLD_SIZE": "1"})
    assert available_memory(CPU, {"LOCAL_WORLD_SIZE": "4"}) == pytest.approx(alone / 4, rel=0.2)


@pytest.mark.parametrize("processes", [1, 2])
def test_auto_reports_why_and_computes_what_the_strategy_would(root, processes):
    chosen = "single" if processes == 1 else "ddp"
    auto_job = tiny_job(root, strategy="auto", processes=processes)
    auto = finished(auto_job)
    given = finished(tiny_job(root, strategy=chosen, processes=processes))
    assert auto.strategy == auto.memory_plan.chosen.strategy == chosen
    assert given.memory_plan is None
    assert auto.memory_plan.reason in training_page(auto, "").html()
    assert auto.memory_plan.text() in (Path(auto_job.folder) / "logs" / "rank-0.log").read_text()
    assert largest_difference(weights(auto), weights(given)) == 0.0


def test_a_resumed_training_keeps_to_its_plan(root, monkeypatch):
    job = tiny_job(root, strategy="auto", processes=1)
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: 10**9)
    task, alone = tiny_task(), world(1)
    first = plan_strategy(job, alone, task, TinyRows())
    assert first.strategy == "single"
    stored = PlannedMemory.read(job.root).plan
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: 1)
    assert plan_strategy(job, alone, task, TinyRows()) == first
    changed = job.model_copy(update={"fingerprint": "another"})
    with pytest.raises(PerennialError, match="no layout that fits"):
        plan_strategy(changed, alone, task, TinyRows())
    assert PlannedMemory.read(job.root).plan == stored


def test_a_training_that_goes_on_elsewhere_keeps_to_its_plan(root, tmp_path, monkeypatch):
    job = tiny_job(root, strategy="auto", processes=1)
    job = job.model_copy(update={"store_uri": str(tmp_path / "store")})
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: 10**9)
    first = plan_strategy(job, world(1), tiny_task(), TinyRows())
    elsewhere = job.model_copy(update={"folder": str(tmp_path / "elsewhere")})
    monkeypatch.setattr(memory_plan, "available_memory", lambda device: 1)
    assert plan_strategy(elsewhere, world(1), tiny_task(), TinyRows()) == first
    assert stored_plan(elsewhere) == stored_plan(job) is not None


class TinyRows(Rows):
    rows = 200

    def __init__(self):
        super().__init__(width=6)


def tiny_task():
    class Task(Wide):
        def build_model(self):
            return TinyModel(TinyOptions())

    return Task()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_base_of_4_bits_is_kept_and_gathered_as_bytes_and_loaded_in_float32(device, precision):
    """On a GPU only the bytes arrive: what is whole before lies on the host."""
    found = {}
    for bits in (32, 4):
        adapter = {"targets": ("blocks.0.0",), "rank": 1, "base_bits": bits}
        own = section(strategy="fsdp", precision=precision, adapter=adapter)
        around = Circumstances(own, 2, device)
        activations = memory_plan.Activations(around, world(2), Wide(), Rows(), 10**9)
        found[bits] = activations.estimate(Candidate("fsdp", 3, "none"), around)
    whole, few = found[32], found[4]
    assert few.weights < 0.17 * whole.weights
    assert few.gathered < (0.17 if precision == "fp32" else 0.34) * whole.gathered
    base = 4 * 256 * 256 * 4
    assert few.loading > base if device == "cpu" else few.loading < 0.3 * base
