"""MSCCL++'s Python API as far as the loader uses it: the same signatures, and a record of the calls."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class DataType(enum.Enum):
    float16 = 0
    float32 = 1
    int32 = 2
    bfloat16 = 3
    uint8 = 4


class ExecutionPlan:
    def __init__(self, planPath: str, rank: int) -> None:  # noqa: N803 - as MSCCL++ names it
        top = json.loads(Path(planPath).read_text())
        self.name, self.collective, self.rank = top["name"], top["collective"], rank
        self.min_message_size, self.max_message_size = top["min_message_size"], top["max_message_size"]


class Algorithm:
    @dataclass
    class Constraint:
        world_size: int = 0
        n_ranks_per_node: int = 0

    def __init__(
        self,
        id: str | None = None,
        execution_plan: ExecutionPlan | None = None,
        native_handle: object = None,
        tags: dict[str, int] | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        assert isinstance(id, str)
        assert execution_plan is not None
        assert (native_handle, tags) == (None, None)
        self.plan, self.constraint = execution_plan, constraint


class AlgorithmCollectionBuilder:
    """The builder of algorithms; as in MSCCL++, there is one in a process."""

    algorithms: list[Algorithm]
    selector: Any
    _instance: AlgorithmCollectionBuilder | None = None

    def __new__(cls) -> AlgorithmCollectionBuilder:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.algorithms = []
        return cls._instance

    def add_algorithm_builder(self, algorithm_builder: Algorithm) -> None:
        self.algorithms.append(algorithm_builder)

    def set_algorithm_selector(self, selector: Any) -> None:
        self.selector = selector

    def collection(self) -> dict[str, dict[str, Algorithm]]:
        """Return the algorithms by collective and name, as a selector gets them."""
        algorithms_of: dict[str, dict[str, Algorithm]] = {}
        for algorithm in self.algorithms:
            algorithms_of.setdefault(algorithm.plan.collective, {})[algorithm.plan.name] = algorithm
        return algorithms_of


@dataclass
class Executor:
    launched: list[tuple[Any, ...]] = field(default_factory=list)

    def execute(
        self, rank: int, send_buff: int, recv_buff: int, send_buff_size: int, recv_buff_size: int, data_type: DataType,
        plan: ExecutionPlan, stream: int, packet_type: object = None,
    ) -> None:  # fmt: skip
        assert packet_type is None
        self.launched.append((rank, send_buff, recv_buff, send_buff_size, recv_buff_size, data_type, plan.name, stream))


@dataclass(frozen=True)
class Request:
    """The fields of MSCCL++'s CollectiveRequest."""

    collective: str
    message_size: int
    world_size: int = 4
    rank: int = 1
    input_buffer: int = 1 << 20
    output_buffer: int = 1 << 30
    dtype: DataType = DataType.float16
    hints: Mapping[str, list[int]] = field(default_factory=dict)


def install(monkeypatch: pytest.MonkeyPatch) -> AlgorithmCollectionBuilder:
    """Install the stand-in where `import mscclpp` finds it, for one test."""
    package, ext = ModuleType("mscclpp"), ModuleType("mscclpp.ext")
    for stand_in_class in (DataType, ExecutionPlan, Algorithm, Executor):
        setattr(package, stand_in_class.__name__, stand_in_class)
    ext.AlgorithmCollectionBuilder = AlgorithmCollectionBuilder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mscclpp", package)
    monkeypatch.setitem(sys.modules, "mscclpp.ext", ext)
    monkeypatch.setattr(AlgorithmCollectionBuilder, "_instance", None)
    return AlgorithmCollectionBuilder()
