"""The GPUs of this machine through CuPy: whether there are any, the compiler's options, how many blocks fit."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from runtime.gpu.encoding import REDUCTION_NAMES, TYPE_NAMES
from topologies.errors import InputError

THREADS = (512, 256, 128, 64)  # of a block, the first with which all blocks fit


def cupy() -> Any:
    """The module. Raises InputError that says how to install it, or that there is no GPU."""
    try:
        module = importlib.import_module("cupy")
    except ImportError:
        raise InputError(
            "the GPU back end needs CuPy: pip install 'synth-collectives[cuda13]' ([cuda12] for CUDA 12)"
        ) from None
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"no GPU can be used: {error}") from None
    if not count:
        raise InputError("no GPU can be used: the driver shows none")
    return module


def gpu_names() -> str:
    """The GPUs of this machine, by number and name. Raises InputError as `cupy` does."""
    runtime = cupy().cuda.runtime
    names = [runtime.getDeviceProperties(number)["name"] for number in range(runtime.getDeviceCount())]
    return ", ".join(f"GPU {number} {name.decode(errors='replace')}" for number, name in enumerate(names))


def compiler_options(
    kind: str, op: str, threads: int, *, paced: bool = False, several: bool = False
) -> tuple[str, ...]:
    """Options of NVRTC beside the architecture, for one data type, reduction and number of threads a block."""
    return (
        "-std=c++17",
        f"-DTYPE={TYPE_NAMES[kind]}",
        f"-DREDUCTION={REDUCTION_NAMES[op]}",
        f"-DTHREADS={threads}",
        *(["-DPACED"] if paced else []),
        *(["-DSEVERAL"] if several else []),
    )


def threads_that_fit(blocks: int, processors: int, per_processor: dict[int, int]) -> int:
    """Threads a block with which all blocks are on the GPU at once: blocks wait for each other, so they must be.

    per_processor: how many blocks of so many threads one multiprocessor holds. Raises InputError where none does.
    """
    for threads in sorted(per_processor, reverse=True):
        if blocks <= processors * per_processor[threads]:
            return threads
    most = processors * max(per_processor.values())
    raise InputError(
        f"{blocks} threadblocks on all ranks together, of which {most} fit on this GPU at once;"
        f" it must be at most {most}: fewer channels or instances make fewer"
    )


def connect(cp: Any, devices: Sequence[int]) -> None:
    """Let every GPU write into the others' memory. Raises InputError where two cannot."""
    runtime = cp.cuda.runtime
    count = runtime.getDeviceCount()
    for number, device in enumerate(devices):
        if not 0 <= device < count or device in devices[:number]:
            raise InputError(
                f"GPU {device}: not there or named twice; it must be different numbers from 0 to {count - 1}"
            )
    for device, other in permutations(devices, 2):
        if not runtime.deviceCanAccessPeer(device, other):
            raise InputError(
                f"GPU {device} cannot reach the memory of GPU {other}; they must have peer access to each other"
            )
        with cp.cuda.Device(device):
            try:
                runtime.deviceEnablePeerAccess(other)
            except runtime.CUDARuntimeError as error:
                if "PeerAccessAlreadyEnabled" not in str(error):
                    raise InputError(f"GPU {device} to the memory of GPU {other}: {error}") from None
