"""Whether torchrun has started this process, and which of its processes it is."""

from __future__ import annotations

import os

from nosology.core import ConfigError


def process_counts() -> tuple[int, int]:
    """The number of processes per machine and of machines: 1 and 1 unless torchrun has started this process.

    RANK or LOCAL_WORLD_SIZE alone do not count: schedulers and notebooks leave them in the environment.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # as torch.distributed and Fabric recognise torchrun
        return 1, 1
    return _environment_number("LOCAL_WORLD_SIZE", 1), _environment_number("GROUP_WORLD_SIZE", 1)


def is_first_process() -> bool:
    """Whether this process writes the outputs: the only one, or the one with rank 0 under torchrun."""
    return process_counts() == (1, 1) or _environment_number("RANK", 0) == 0


def _environment_number(name: str, default: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdecimal():
        raise ConfigError(f"${name} must be a number, as torchrun sets it; got {value!r}")
    return int(value)
