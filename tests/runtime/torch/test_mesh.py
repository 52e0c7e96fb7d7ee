"""The DeviceMesh that `synth place` writes: a rank's place in its groups is its coordinate, in any order of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch
import torch.distributed as dist

from synth.parallelism.axes import Axis, process_groups
from synth.parallelism.launch import torch_module

RANKS = 8


@contextmanager
def process(rank: int) -> Iterator[None]:
    """Start one rank of torch's fake back end, which makes groups and sends nothing."""
    # It is part of torch, but not of its public interface.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group(backend="fake", rank=rank, world_size=RANKS, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def device_mesh(ranks: np.ndarray, text: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(text, "mesh.py", "exec"), names)
    assert names["ORDER"] == ranks.reshape(-1).tolist()
    return names["device_mesh"]("cpu")


ORDERS = {
    "own": np.arange(8).reshape(2, 2, 2),
    "ascending": np.arange(8).reshape(2, 4).T.reshape(4, 2),
    "descending": np.arange(8)[::-1].reshape(4, 2),
    "mixed": np.array([3, 0, 5, 1, 7, 2, 6, 4]).reshape(2, 2, 2),
    "one axis": np.array([3, 0, 5, 1, 7, 2, 6, 4]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("order", list(ORDERS))
def test_groups_and_coordinates_are_those_of_the_placement(order: str) -> None:
    ranks = ORDERS[order]
    axes = tuple(Axis(f"a{i}", size) for i, size in enumerate(ranks.shape))
    text = torch_module(ranks, axes, "synth place")
    for rank in range(RANKS):
        with process(rank):
            mesh = device_mesh(ranks, text)
            assert mesh.mesh.tolist() == ranks.tolist()
            assert mesh.mesh_dim_names == tuple(axis.name for axis in axes)
            for dim, axis in enumerate(axes):
                (own,) = (g for g in process_groups(ranks, [dim]).tolist() if rank in g)
                group = mesh.get_group(axis.name)
                assert dist.get_process_group_ranks(group) == own
                assert dist.get_group_rank(group, rank) == own.index(rank) == mesh.get_local_rank(axis.name)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torch_sorts_the_groups_of_a_plain_mesh() -> None:
    """Check that torch sorts the groups of a plain mesh, which is why the module makes its groups itself."""
    ranks = ORDERS["mixed"]
    with process(3):
        mesh = dist.device_mesh.DeviceMesh("cpu", torch.tensor(ranks), mesh_dim_names=("a", "b", "c"))
        assert dist.get_process_group_ranks(mesh.get_group("a")) == [3, 7]
        assert dist.get_process_group_ranks(mesh.get_group("c")) == [0, 3]
