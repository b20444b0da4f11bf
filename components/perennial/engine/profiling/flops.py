"""FLOPs: arithmetic of an update, and peak throughput of the device."""

import logging
import re

import torch
from torch.utils.flop_counter import FlopCounterMode

from perennial.engine.adapters import add_adapter
from perennial.engine.config.training import TrainingSection
from perennial.engine.optimization.parameters import freeze
from perennial.engine.task import Batch, Task, inputs_of, to_device
from perennial.engine.world.distributed import World

logger = logging.getLogger(__name__)

# Dense peak in TFLOP/s by name of the device and type of the products, from NVIDIA's data sheets.
PEAK_TFLOPS: dict[str, dict[str, float]] = {
    "B200": {"bf16": 2250.0, "fp16": 2250.0, "tf32": 1125.0, "fp32": 75.0},
    "H200": {"bf16": 989.0, "fp16": 989.0, "tf32": 494.0, "fp32": 67.0},
    "H100 PCIe": {"bf16": 756.0, "fp16": 756.0, "tf32": 378.0, "fp32": 51.0},
    "H100 NVL": {"bf16": 835.0, "fp16": 835.0, "tf32": 417.0, "fp32": 60.0},
    "H100": {"bf16": 989.0, "fp16": 989.0, "tf32": 494.0, "fp32": 67.0},
    "A100": {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5},
    "L40S": {"bf16": 362.0, "fp16": 362.0, "tf32": 183.0, "fp32": 91.6},
    "L4": {"bf16": 121.0, "fp16": 121.0, "tf32": 60.0, "fp32": 30.3},
    "A10": {"bf16": 125.0, "fp16": 125.0, "tf32": 62.5, "fp32": 31.2},
    "V100": {"fp16": 125.0, "fp32": 15.7},
    "T4": {"fp16": 65.0, "fp32": 8.1},
}


def flops_per_example(
    task: Task, batch: Batch, training: TrainingSection | None = None
) -> float | None:
    """Count the arithmetic of one forward and backward pass per example.

    Gradients of what the training freezes are not counted.

    Counted without computing anything, on tensors without content. Element-wise operations are not
    counted, as is usual for a utilisation.

    Returns: None when the model or the loss needs the tensors' content; the log gives the reason.
    """
    inputs = to_device(batch, torch.device("meta"))
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            model = task.build_model().to("meta")
            if training is not None:
                add_adapter(model, training)
                # Of stages, the one that trains most is likely the longest.
                freeze(model, training.model_copy(update={"stages": ()}))
            model.train()
            output = model(**inputs_of(inputs)).float()
            torch.autograd.backward(task.losses(output, inputs).sum())
    except Exception as error:  # a user's model may do anything; utilisation is not worth a failure
        logger.info("flops=unknown reason=%s: %s", type(error).__name__, error)
        return None
    examples = len(next(iter(batch.values())))
    return float(counter.get_total_flops()) / examples


def peak_flops(device_name: str, precision: str, *, allow_tf32: bool) -> float | None:
    """Return the peak operations per second of a device; None when it is not in the table."""
    kind = "tf32" if precision == "fp32" and allow_tf32 else precision
    for name, peaks in PEAK_TFLOPS.items():
        # To the end of the word: an A1000, A10G or L40 is another device than an A100, A10 or L4.
        if re.search(rf"{name}\b", device_name) and kind in peaks:
            return peaks[kind] * 1e12
    return None


def peak_flops_of(training: TrainingSection, world: World) -> float | None:
    """Return the peak throughput of all devices; None when it is not known."""
    if training.peak_tflops is not None:
        return training.peak_tflops * 1e12 * world.size
    if world.device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(world.device)
    peak = peak_flops(name, training.precision, allow_tf32=training.allow_tf32)
    return peak and peak * world.size
