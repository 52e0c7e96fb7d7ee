"""The GPUs of this machine through CuPy: their names, the compiler's options, and how many blocks fit on them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import permutations
from typing import Any

from runtime.gpu.encoding import REDUCTION_NAMES, TYPE_NAMES
from topologies.errors import InputError

THREADS = (512, 256, 128, 64)  # Of a block; the first number with which all blocks fit is used.


def cupy() -> Any:
    """Import CuPy and return the module.

    Raises:
        InputError: CuPy is not installed (the message says how to install it), or there is no GPU.
    """
    try:
        module = importlib.import_module("cupy")
    except ImportError:
        raise InputError(
            "the GPU back end needs CuPy: pip install '.[cuda13]' (CUDA 12: [cuda12]) in a copy of synth's sources"
        ) from None
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"no GPU can be used: {error}") from None
    if not count:
        raise InputError("no GPU can be used: the driver shows none")
    return module


def gpu_names() -> str:
    """Return the numbers and names of this machine's GPUs as text: "GPU 0 NAME, GPU 1 NAME".

    Raises:
        InputError: As for `cupy`.
    """
    runtime = cupy().cuda.runtime
    names = [runtime.getDeviceProperties(number)["name"] for number in range(runtime.getDeviceCount())]
    return ", ".join(f"GPU {number} {name.decode(errors='replace')}" for number, name in enumerate(names))


def compiler_options(
    kind: str, op: str, threads: int, *, paced: bool = False, several: bool = False
) -> tuple[str, ...]:
    """Return NVRTC's options other than the architecture, for a data type, a reduction and a number of threads a block.

    Args:
        kind: Data type.
        op: Reduction.
        threads: Threads of a block.
        paced: True if a network is emulated.
        several: True if more than one GPU takes part.
    """
    return (
        "-std=c++17",
        f"-DTYPE={TYPE_NAMES[kind]}",
        f"-DREDUCTION={REDUCTION_NAMES[op]}",
        f"-DTHREADS={threads}",
        *(["-DPACED"] if paced else []),
        *(["-DSEVERAL"] if several else []),
    )


def threads_that_fit(blocks: int, processors: int, per_processor: dict[int, int]) -> int:
    """Return the most threads a block with which all blocks are on the GPU at once, since blocks wait for each other.

    Args:
        blocks: Number of blocks.
        processors: Number of multiprocessors.
        per_processor: Number of blocks that one multiprocessor holds, by threads a block; not empty.

    Raises:
        InputError: The blocks fit with no number of threads.
    """
    for threads in sorted(per_processor, reverse=True):
        if blocks <= processors * per_processor[threads]:
            return threads
    most = processors * max(per_processor.values())
    raise InputError(
        f"{blocks} threadblocks of all ranks, of which {most} fit on this GPU at once;"
        f" it must be at most {most}: use fewer channels or instances"
    )


def connect(cp: Any, devices: Sequence[int]) -> None:
    """Set up peer access between all GPUs, so that each can write to the others' memory; it stays for the process.

    Args:
        cp: The module CuPy.
        devices: Numbers of the GPUs; of a single one only the number is checked.

    Raises:
        InputError: A GPU does not exist or is named twice, or two GPUs have no peer access.
    """
    runtime = cp.cuda.runtime
    count = runtime.getDeviceCount()
    for number, device in enumerate(devices):
        if not 0 <= device < count or device in devices[:number]:
            raise InputError(
                f"GPU {device}: not there or named twice; it must be different numbers from 0 to {count - 1}"
            )
    for device, peer in permutations(devices, 2):
        if not runtime.deviceCanAccessPeer(device, peer):
            raise InputError(
                f"GPU {device} cannot reach the memory of GPU {peer}; they must have peer access to each other"
            )
        with cp.cuda.Device(device):
            try:
                runtime.deviceEnablePeerAccess(peer)
            except runtime.CUDARuntimeError as error:
                if "PeerAccessAlreadyEnabled" not in str(error):
                    raise InputError(f"GPU {device} to the memory of GPU {peer}: {error}") from None
