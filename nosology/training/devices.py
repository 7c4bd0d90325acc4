"""The device of a process and its tie to others, through Lightning Fabric."""

from __future__ import annotations

import os

import torch
from lightning_fabric import Fabric

from nosology.training.settings import LoopSettings

_CPU_TOKENS = 16_384  # of a micro-batch where a recipe leaves it open; on a GPU
_BYTES_A_TOKEN = 2**19  # one for so much of its memory


def launch(settings: LoopSettings) -> Fabric:
    """The device of this process and its tie to the others: one device under plain python, all under torchrun."""
    here, nodes = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ.get("GROUP_WORLD_SIZE", 1))
    bf16 = settings.precision == "bf16" or (
        settings.precision == "auto" and torch.cuda.is_available() and torch.cuda.is_bf16_supported(False)
    )
    fabric = Fabric(
        devices=here,
        num_nodes=nodes,
        strategy="ddp" if here * nodes > 1 else "auto",
        precision="bf16-mixed" if bf16 else "64-true" if settings.precision == "fp64" else "32-true",
    )
    fabric.launch()
    return fabric


def seed_device(device: torch.device, seed: int) -> None:
    """Seeds the generators in use. torch.manual_seed would keep a note, for ever, of each call for absent devices."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def room(device: torch.device) -> int:
    """Tokens of a micro-batch that the device surely has room for."""
    if device.type != "cuda":
        return _CPU_TOKENS
    return torch.cuda.get_device_properties(device).total_memory // _BYTES_A_TOKEN
