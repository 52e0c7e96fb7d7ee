"""More than one group at a time: calls in turn, from different threads, of groups that end and start again."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
import torch.distributed as dist

from tests.runtime.torch.values import folded, same, values


def in_turn() -> None:
    """Check calls of overlapping groups, all started before the first wait, and waited for in another order."""
    me, n = dist.get_rank(), dist.get_world_size()
    members = [list(range(n)), [0, 1], [n - 1, 0], list(range(1, n)), list(range(n))]
    groups = [dist.new_group(ranks) for ranks in members]
    begun = []
    for iteration in range(6):
        for k, (ranks, group) in enumerate(zip(members, groups, strict=True)):
            if me in ranks:
                tensor = values(me, 3000 * (iteration % 2) + 10, salt=10 * iteration + k)
                begun.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, sorted(ranks), iteration, k))
    for work, tensor, ranks, iteration, k in reversed(begun):
        work.wait()
        count = 3000 * (iteration % 2) + 10
        same(tensor, folded([values(r, count, salt=10 * iteration + k) for r in ranks], "sum"))
    for ranks, group in zip(members, groups, strict=True):
        if me in ranks:
            dist.destroy_process_group(group)


def in_threads() -> None:
    """Check blocking calls of three groups, with a thread for each and no order between the threads."""
    me, n = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(3)]
    faults: list[BaseException] = []

    def use(k: int) -> None:
        try:
            for iteration in range(12):
                tensor = values(me, 500, salt=100 * k + iteration)
                dist.all_reduce(tensor, group=groups[k])
                same(tensor, folded([values(r, 500, salt=100 * k + iteration) for r in range(n)], "sum"))
        except BaseException as error:
            faults.append(error)

    order = [(me + k) % 3 for k in range(3)]  # Every rank starts them in another order.
    threads = [threading.Thread(target=use, args=(k,)) for k in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "stands still"
    if faults:
        raise faults[0]
    for group in groups:
        dist.destroy_process_group(group)


def meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    me, n = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("outer", "inner"))
    for name in ("outer", "inner"):
        group = mesh.get_group(name)
        ranks = dist.get_process_group_ranks(group)
        tensor = values(me, 20)
        dist.all_reduce(tensor, group=group)
        same(tensor, folded([values(r, 20) for r in ranks], "sum"))


def again(folder: Path) -> None:
    """Check that the whole job can end its groups and start again in the same processes, as a session's last check."""
    me, n = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(2000), async_op=True)  # Nothing waits for it.
    for attempt in range(2):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("synth", init_method=f"file://{folder}/again{attempt}", rank=me, world_size=n)
        tensor = values(me, 100)
        dist.all_reduce(tensor)
        same(tensor, folded([values(r, 100) for r in range(n)], "sum"))
    dist.barrier()


GROUPS = {"groups in turn": in_turn, "groups in threads": in_threads, "meshes": meshes}
