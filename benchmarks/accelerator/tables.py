"""Tables: what was measured, for people."""

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import torch

from benchmarks.accelerator.sizes import Sizes
from benchmarks.memory_plan import GOAL
from benchmarks.throughput.by_hand import BestLoop
from benchmarks.throughput.perennial import Perennial
from perennial.contracts.memory import MemoryEstimate
from perennial.tasks.decoder import Decoder

MFU_GOAL = 0.5
TORCHTITAN = (
    "torchtitan was not run: its trainer needs a GPU, and a tokenizer and data set to be fetched, "
    "and its smallest published decoder is `llama3_8b`. `torchrun --nproc-per-node 1 -m "
    "torchtitan.train --module llama3 --config llama3_8b` prints its tokens/s and its MFU, which "
    "counts half of the pairs of attention."
)


def race_lines(title: str, found: dict[str, Any], unit: str, units: int) -> list[str]:
    """The table of a race.

    Args:
        title: Above it.
        found: By `race_decoders` or `race_images`.
        unit: What is counted.
        units: How many of them an update has.
    """
    walls = {name: np.array(times)[:, 0] / found["steps"] for name, times in found["times"].items()}
    lines = [
        *("", f"## {title}", ""),
        f"| contender | {unit}/s | ms per update | MFU | speed / best hand-written, by round |",
        "|---|---|---|---|---|",
    ]
    for name, seconds in walls.items():
        middle = float(np.median(seconds))
        low, ratio, high = np.quantile(walls[BestLoop.name] / seconds, [0.25, 0.5, 0.75])
        lines.append(
            f"| {name} | {units / middle:,.0f} | {middle * 1e3:.2f} | {share(found, middle)} | "
            f"{ratio:.3f} ({low:.3f} to {high:.3f}) |"
        )
    return lines


def share(found: dict[str, Any], seconds: float) -> str:
    """The utilisation, where the device's peak is known."""
    if not (found["flops"] and found["peak"]):
        return "-"
    return f"{found['flops'] / seconds / found['peak']:.1%}"


def decoder_lines(found: dict[str, Any], sizes: Sizes) -> list[str]:
    """Table, formula and verdict of the decoder."""
    options, tokens = sizes.decoder, sizes.sequences * sizes.decoder.context_length
    with torch.device("meta"):
        parameters = sum(each.numel() for each in Decoder(options).parameters())
    title = f"Decoder of {parameters / 1e6:,.1f} million parameters, bfloat16"
    lines = race_lines(title, found, "tokens", tokens)
    unneeded = 6 * options.layers * options.width * options.context_length * tokens
    lines += [
        "",
        f"{sizes.sequences} sequences of {options.context_length} tokens per update, blocks "
        "compiled, AdamW in one kernel. MFU = FLOPs of the forward and backward pass of an "
        "update / (its seconds · dense peak of the device in bfloat16). FLOPs are counted from the "
        f"operations: {found['flops']:.4g} per update = 6 per token and parameter outside "
        "the embedding + 12 · layers · width · length per token, for attention over all pairs. "
        "Counting only the pairs that causal attention needs, MFU is "
        f"{1 - unneeded / found['flops']:.3f} times as much.",
        "",
        TORCHTITAN,
        "",
    ]
    if not found["peak"]:
        return [*lines, f"Goal: MFU ≥ {MFU_GOAL:.0%} on an H200. Not measured here."]
    seconds = float(np.median(np.array(found["times"][Perennial.name])[:, 0])) / found["steps"]
    is_reached = found["flops"] / seconds / found["peak"] >= MFU_GOAL
    verdict = "reached" if is_reached else "not reached"
    return [*lines, f"Goal: MFU ≥ {MFU_GOAL:.0%} on an H200. Here: {verdict}."]


def memory_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Plans beside peaks."""
    lines = [
        *("", "## Memory plan and measured peak of the decoder, not compiled", ""),
        f"| layout | planned MB | measured MB | error | within {GOAL:.0%} |",
        "|---|---|---|---|---|",
    ]
    for each in found:
        plan, measured = MemoryEstimate.model_validate(each["plan"]), each["measured"]
        error = plan.peak / measured - 1.0
        lines.append(
            f"| {plan.name} | {plan.peak / 1e6:,.1f} | {measured / 1e6:,.1f} | {error:+.1%} | "
            f"{'yes' if abs(error) <= GOAL else 'no'} |"
        )
    return lines


def checkpoint_lines(found: dict[str, Any]) -> list[str]:
    """What each save cost."""
    lines = [
        *("", "## Asynchronous checkpoint of the decoder", ""),
        "| save | blocked s | stall s | in updates | overlapped updates: slower by | number | on "
        "disk after s |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, each in enumerate(found["saves"]):
        slower = "-" if each["overlapped"] is None else f"{each['overlapped']:.3f}"
        lines.append(
            f"| {number + 1}{' (allocates)' if number == 0 else ''} | {each['blocked']:.4f} | "
            f"{each['stalled']:.4f} | {each['stalled'] / each['update']:.3f} | {slower} | "
            f"{each['updates']} | {each['written']:.2f} |"
        )
    return [
        *lines,
        "",
        "Blocked: the call that saves. Stall: that and the next update, less one without a save: "
        "on a GPU the copy is queued and done before it.",
    ]


def head(device_type: str, rounds: int) -> list[str]:
    """What was measured, and what it is worth."""
    if device_type == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory / 1e9
        device, warning = f"{torch.cuda.get_device_name()}, {memory:.0f} GB", []
    else:
        device = f"CPU, {platform.machine()}, {os.cpu_count()} cores"
        warning = ["**CPU, small sizes: shows that the script runs, nothing else.**", ""]
    return [
        *("# Accelerator", "", *warning),
        f"`python -m benchmarks.accelerator`, {date.today()}: {device}, Python "
        f"{platform.python_version()}, torch {importlib.metadata.version('torch')}, {rounds} "
        "rounds; medians (quartiles).",
    ]
