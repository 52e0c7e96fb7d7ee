"""NumPy and CPU threads in place of CuPy: all that the GPU executor uses of it, for tests without a GPU.

A launch runs in its own thread, one after the other on a GPU; code that reads memory waits for all of them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.gpu.encoding import REDUCTION_NAMES, TYPE_NAMES

PROCESSORS = 40  # Of each GPU, with room for one block of 256 threads.


class DeviceArray(np.ndarray[Any, Any]):
    """An array in this machine's memory with the interface of CuPy's arrays."""

    _on: int

    def __array_finalize__(self, template: Any) -> None:
        self._on = getattr(template, "_on", Device.current)

    def __array_function__(self, function: Any, types: Any, arguments: Any, more: Any) -> Any:
        assert function is not np.shares_memory, "CuPy's looks at every element"
        return super().__array_function__(function, types, arguments, more)

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self._on)

    def get(self) -> Any:
        Device.wait()
        return np.array(self)


def device_array(values: Any, dtype: Any = None) -> DeviceArray:
    array = np.array(values, dtype=dtype).view(DeviceArray)
    array._on = Device.current
    return array


class Device:
    """The current GPU, and the threads that run on each GPU."""

    count = 1
    current = 0
    peers = True
    running: dict[int, threading.Thread]

    def __init__(self, number: int | None = None) -> None:
        self.id = Device.current if number is None else number
        self.attributes = {"MultiProcessorCount": PROCESSORS}

    def synchronize(self) -> None:
        Device.wait()

    def __enter__(self) -> Device:
        self.before, Device.current = Device.current, self.id
        return self

    def __exit__(self, *_: object) -> None:
        Device.current = self.before

    @classmethod
    def wait(cls) -> None:
        for thread in list(cls.running.values()):
            thread.join()


class Module:
    """The interface of RawModule on the shim: the kernel on CPU threads, two in a block."""

    libraries: dict[bool, Path]
    made: list[tuple[str, ...]]

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        assert "synth_interpret" in code
        assert "#include" not in code  # A GPU's compiler gets no path.
        definitions = dict(option[2:].split("=", 1) for option in options if option.startswith("-D") and "=" in option)
        self.type = list(TYPE_NAMES.values()).index(definitions["TYPE"])
        self.reduction = list(dict.fromkeys(REDUCTION_NAMES.values())).index(definitions["REDUCTION"])
        self.threads = int(definitions["THREADS"])
        self.library = ctypes.CDLL(str(Module.libraries["-DPACED" in options]))
        Module.made.append(options)

    def get_function(self, name: str) -> Any:
        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[DeviceArray]) -> None:
            assert block == (self.threads,)
            assert arguments[0].device.id == Device.current
            settings = (self.type, self.reduction, int(name == "synth_average"), grid[0], 2)
            before = Device.running.get(Device.current)

            def work() -> None:
                if before is not None:
                    before.join()
                self.library.synth_launch(ctypes.c_void_p(arguments[0].data.ptr), *settings)

            Device.running[Device.current] = threading.Thread(target=work)
            Device.running[Device.current].start()

        launch.kernel = SimpleNamespace(ptr=0)  # type: ignore[attr-defined]
        return launch


class RuntimeFailure(RuntimeError):
    """The stand-in of CUDARuntimeError."""


def install_fake_cupy(patch: pytest.MonkeyPatch, libraries: dict[bool, Path], count: int = 1) -> Any:
    """Install this module in place of CuPy, and return it.

    Args:
        patch: Pytest's monkeypatch.
        libraries: The kernel, plain (False) and paced (True).
        count: Number of GPUs.
    """
    Module.libraries, Module.made = libraries, []
    Device.count, Device.current, Device.peers, Device.running = count, 0, True, {}
    connected: set[tuple[int, int]] = set()

    def enable(peer: int) -> None:
        if (Device.current, peer) in connected:
            raise RuntimeFailure("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
        connected.add((Device.current, peer))

    def copyto(target: DeviceArray, source: DeviceArray) -> None:
        Device.wait()
        np.copyto(target, source)

    event = SimpleNamespace(record=lambda: None, synchronize=Device.wait)
    module: Any = ModuleType("cupy")
    module.ndarray, module.RawModule, module.asarray, module.copyto = (
        DeviceArray,
        Module,
        device_array,
        copyto,
    )
    module.may_share_memory = np.may_share_memory
    module.zeros = module.empty = lambda shape, dtype: device_array(np.zeros(shape, dtype))
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            getDeviceCount=lambda: Device.count,
            CUDARuntimeError=RuntimeFailure,
            deviceCanAccessPeer=lambda device, peer: int(Device.peers and device != peer),
            deviceEnablePeerAccess=enable,
        ),
        driver=SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda _, threads, __: 256 // threads),
        Device=Device,
        Event=lambda: event,
        get_elapsed_time=lambda begun, ended: 1.0,  # noqa: ARG005
    )
    module.connected = connected
    patch.setitem(sys.modules, "cupy", module)
    return module
