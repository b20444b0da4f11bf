"""Device memory: the bytes that one process of a training may use."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMORY_INFO = Path("/proc/meminfo")


def available_memory(device: torch.device, environment: Mapping[str, str] = os.environ) -> int:
    """Return the device's free bytes; the host's are divided by its training processes."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return host_memory() // int(environment.get("LOCAL_WORLD_SIZE", "1"))


def device_name(device: torch.device) -> str:
    """Return the device's name for messages."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU's memory"


def host_memory(groups: Path = CONTROL_GROUPS, info: Path = MEMORY_INFO) -> int:
    """Return the bytes that may still be allocated, within host memory and container limit."""
    fields = dict(line.split(":") for line in info.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        if not (groups / limit).exists():
            continue
        text = (groups / limit).read_text().strip()
        if text == "max":
            continue
        statistics = dict(
            line.split()
            for line in (groups / usage).with_name("memory.stat").read_text().splitlines()
        )
        # The kernel frees cached files when memory runs short.
        used = int((groups / usage).read_text()) - int(statistics[inactive])
        available = min(available, int(text) - used)
    return max(available, 0)
