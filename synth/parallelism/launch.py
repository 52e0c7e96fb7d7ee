"""A placement in the forms of launchers and torch: host order, Open MPI's rankfile, and a DeviceMesh.

Position p of a placement is the global rank p of a job that is started in its order; `init_device_mesh` then needs
nothing more. A job that keeps the ranks of the topology gets the mesh from the written Python module instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synth.model.collective import Ints
from synth.parallelism.axes import Axis, process_groups
from topologies.topology import Topology


def slots(topology: Topology) -> Ints:
    """Return the position of every rank among the ranks of its node, from 0 and in ascending order: int64 (ranks,)."""
    order = np.argsort(topology.nodes, kind="stable")
    first = np.searchsorted(topology.nodes[order], topology.nodes[order])
    place = np.empty(topology.nranks, dtype=np.int64)
    place[order] = np.arange(topology.nranks) - first
    return place


def rankfile(topology: Topology, order: Sequence[int]) -> str:
    """Write a rankfile of Open MPI: rank p runs on slot s of the n-th host of the allocation ("+n2 slot=5").

    Args:
        topology: The topology; it says on which node (n, from 0) and slot each of its ranks is.
        order: The topology's rank at every position p of the placement.
    """
    place = slots(topology)
    lines = (f"rank {p}=+n{topology.nodes[rank]} slot={place[rank]}" for p, rank in enumerate(order))
    return "\n".join(lines) + "\n"


def host_order(topology: Topology, order: Sequence[int]) -> str:
    """Write the host of every position on a line: Slurm's SLURM_HOSTFILE (--distribution=arbitrary), MPICH's -f.

    A host is named after its node: node0, node1, …

    Args:
        topology: The topology.
        order: The topology's rank at every position of the placement.
    """
    return "".join(f"node{topology.nodes[rank]}\n" for rank in order)


def is_ascending(ranks: Ints) -> bool:
    """Return True if every group along one axis has ascending ranks, as torch's new_group sorts them."""
    return all(bool((np.diff(process_groups(ranks, [axis]), axis=1) > 0).all()) for axis in range(ranks.ndim))


def torch_module(ranks: Ints, axes: Sequence[Axis], source: str) -> str:
    """Return the text of a Python module that makes the placement a DeviceMesh of the topology's ranks.

    The module has NAMES and SHAPE of the axes, ORDER (the rank at every position), and `device_mesh(device)`, which
    every rank of a job calls whose global ranks are the topology's ranks.

    Where the ranks of a group do not ascend in the mesh, torch would sort them (`new_group`), and a member's place in
    the group would not be its coordinate. The module then creates the groups first, unsorted (torch 2.13 or newer).

    Args:
        ranks: The mesh: the rank at each coordinate.
        axes: The axes of the mesh.
        source: The command that wrote the module, in one line.
    """
    names = ", ".join(repr(axis.name) for axis in axes) + ("," if len(axes) == 1 else "")
    shape = ", ".join(str(axis.size) for axis in axes) + ("," if len(axes) == 1 else "")
    head = f'''"""{source.replace(chr(92), "/").replace(chr(34), "'")}

Ranks are numbered as in the topology. For a job that is started in ORDER (rankfile, hosts), so that global rank p is
rank ORDER[p] here, torch's own is right: init_device_mesh(device, SHAPE, mesh_dim_names=NAMES).
"""

import torch
'''
    order = ", ".join(str(int(rank)) for rank in ranks.reshape(-1))
    table = f"\nNAMES = ({names})\nSHAPE = ({shape})\nORDER = [{order}]\n\n\n"
    if is_ascending(ranks):
        return f'''{head}from torch.distributed.device_mesh import DeviceMesh
{table}def device_mesh(device="cuda"):
    """The mesh; every rank calls it once, after init_process_group."""
    return DeviceMesh(device, torch.tensor(ORDER).view(SHAPE), mesh_dim_names=NAMES)
'''
    return f'''{head}import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
{table}def device_mesh(device="cuda"):
    """The mesh; every rank calls it once, after init_process_group."""
    mesh = torch.tensor(ORDER).view(SHAPE)
    own = []
    for dim, size in enumerate(SHAPE):
        for ranks in mesh.movedim(dim, -1).reshape(-1, size).tolist():
            group = dist.new_group(ranks, sort_ranks=False)
            if dist.get_rank() in ranks:
                own.append(group)
    return DeviceMesh.from_group(own if len(own) > 1 else own[0], device, mesh=mesh, mesh_dim_names=NAMES)
'''
