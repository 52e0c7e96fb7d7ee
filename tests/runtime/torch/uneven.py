"""Blocks of unequal sizes, of which a rank may know only its own: equal in every mode, with relaying programs too."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import runtime.torch.process_group as ours
from emit.compiler.compile import compile_instructions
from emit.language import Script
from emit.library.index import load_index
from emit.library.saving.add import Addition, add
from emit.targets import TARGETS
from runtime.torch import core
from runtime.torch.choice import SPLITS
from runtime.torch.programs import agree
from runtime.torch.table import FORMAT
from tests.runtime.torch.like_gloo import compare
from tests.runtime.torch.values import expect, folded, values
from topologies.errors import InputError

Call = Callable[[Any, bool], Any]  # Starts a call of a group, asynchronous or not; returns its output and its work.
SIZES = ((0, 5, 0, 2), (7, 7, 7, 7), (40_000, 3, 1, 20_000))  # By rank.


def _split(has_splits: tuple[bool, ...], rows: Callable[[int, int], int], group: Any, wait: bool) -> Any:
    """Call all_to_all_single: rows(a, b) go from rank a to rank b, and rank r states its splits if has_splits[r]."""
    me, n = dist.get_rank(), dist.get_world_size()
    goes, comes = [rows(me, r) for r in range(n)], [rows(r, me) for r in range(n)]
    inputs = torch.cat([values(me, 2 * count, salt=r) for r, count in enumerate(goes)]).view(-1, 2)
    out = torch.zeros(sum(comes), 2)
    return out, dist.all_to_all_single(
        out, inputs, comes if has_splits[me] else None, goes if has_splits[me] else None, group=group, async_op=not wait
    )


def _wanted_rows(rows: Callable[[int, int], int]) -> torch.Tensor:
    me, n = dist.get_rank(), dist.get_world_size()
    return torch.cat([values(r, 2 * rows(r, me), salt=me) for r in range(n)]).view(-1, 2)


def _gather(sizes: tuple[int, ...], root: int, group: Any, wait: bool) -> Any:
    me = dist.get_rank()
    into = [torch.zeros(size, 2).t() for size in sizes] if me == root else None  # It has gaps between its elements.
    own_input = values(me, 2 * sizes[me]).view(2, -1)
    return into, dist.gather(own_input, into, root, group=group, async_op=not wait)


def _scatter(sizes: tuple[int, ...], root: int, group: Any, wait: bool) -> Any:
    me = dist.get_rank()
    parts = [values(root, size, salt=r) for r, size in enumerate(sizes)] if me == root else None
    out = torch.zeros(sizes[me])
    return out, dist.scatter(out, parts, root, group=group, async_op=not wait)


def _all_gather(sizes: tuple[int, ...], group: Any, wait: bool) -> Any:
    me = dist.get_rank()
    into = [torch.zeros(size) for size in sizes]
    return into, dist.all_gather(into, values(me, sizes[me]), group=group, async_op=not wait)


def _reduce_scatter(sizes: tuple[int, ...], op: Any, group: Any, wait: bool) -> Any:
    me = dist.get_rank()
    out = torch.zeros(sizes[me], dtype=torch.int64)
    parts = [values(me, size, torch.int64, salt=r) for r, size in enumerate(sizes)]
    return out, dist.reduce_scatter(out, parts, op, group=group, async_op=not wait)


def _all_to_all(group: Any, wait: bool) -> Any:
    me, n = dist.get_rank(), dist.get_world_size()
    into = [torch.zeros(r + 2 * me) for r in range(n)]
    inputs = [values(me, me + 2 * r, salt=r) for r in range(n)]
    return into, dist.all_to_all(into, inputs, group=group, async_op=not wait)


def _cases() -> Iterator[tuple[str, Call, Any, bool]]:
    """Yield each case: its name, call and required result on this rank, and whether Gloo supports it."""
    me, n = dist.get_rank(), dist.get_world_size()
    nobody, all_but_one = (False,) * n, (False,) + (True,) * (n - 1)

    def equal(_: int, __: int) -> int:
        return 3

    def one_pair(a: int, b: int) -> int:  # Only two ranks see that blocks differ.
        return 5 if {a, b} == {0, n - 1} else 3

    for has_splits in (nobody, all_but_one, tuple(not is_split for is_split in all_but_one)):
        yield f"splits {has_splits}", partial(_split, has_splits, equal), _wanted_rows(equal), True
    first_and_last = tuple(r in (0, n - 1) for r in range(n))
    yield "splits of one pair", partial(_split, first_and_last, one_pair), _wanted_rows(one_pair), True
    for sizes in SIZES:
        for root in (0, n - 2):
            expected = [values(r, 2 * sizes[r]).view(2, -1) for r in range(n)] if me == root else None
            yield f"gather {sizes} to {root}", partial(_gather, sizes, root), expected, False
            yield f"scatter {sizes} of {root}", partial(_scatter, sizes, root), values(root, sizes[me], salt=me), False
        every = [values(r, sizes[r]) for r in range(n)]
        yield f"all_gather {sizes}", partial(_all_gather, sizes), every, False
        inputs = [values(r, sizes[me], torch.int64, salt=me) for r in range(n)]
        yield f"sums {sizes}", partial(_reduce_scatter, sizes, ReduceOp.SUM), folded(inputs, "sum"), True
        common_bits = inputs[0] & inputs[1] & inputs[2] & inputs[3]  # No program of ours supports it.
        yield f"bits {sizes}", partial(_reduce_scatter, sizes, ReduceOp.BAND), common_bits, True
    yield "all_to_all", _all_to_all, [values(r, r + 2 * me, salt=me) for r in range(n)], False


def _all_right(group: Any, modes: tuple[str, ...]) -> None:
    for mode in modes:
        begun = []
        for name, call, expected, _ in _cases():
            for wait in (True, False):
                with ours.using(mode):
                    begun.append((f"{name} {mode} {wait}", *call(group, wait), expected))
        for name, got, work, expected in reversed(begun):
            if work is not None:
                work.wait()
            try:
                compare(got, expected)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None


def _rising(a: int, b: int) -> int:
    return 1 + a + 2 * b


def unequal_blocks() -> None:
    with ours.using("gloo"):  # Ranks that wait for a late one compare their calls, which have other numbers of bytes.
        if dist.get_rank() == 0:
            time.sleep(3)
        out, _ = _split((True,) * dist.get_world_size(), _rising, dist.group.WORLD, True)
        compare(out, _wanted_rows(_rising))
    _all_right(dist.group.WORLD, ("synth", "auto", "gloo"))
    _waits_late()
    gloo = dist.new_group(backend="gloo")
    for _, call, expected, is_gloos in _cases():
        if is_gloos:  # The expected results are Gloo's.
            compare(call(gloo, True)[0], expected)


def _waits_late() -> None:
    """Check that a root need not wait for the receivers of a scatter, which wait only after a call that needs it."""
    me, sizes = dist.get_rank(), SIZES[-1]
    with ours.using("gloo"):
        out, work = _scatter(sizes, 0, dist.group.WORLD, me == 0)
    with ours.using("synth"):
        dist.all_reduce(torch.ones(3))
    if work is not None:
        work.wait()
    compare(out, values(0, sizes[me], salt=me))


def relays(ranks: int) -> list[Script]:
    """Build programs in which blocks are relayed by other ranks."""
    gather, scatter = (Script("chain", name, ranks, root=0) for name in ("gather", "scatter"))
    for r in range(ranks):
        part = gather.chunk(r, "i", 0)
        for hop in reversed(range(1, r)):
            part = part.copy(hop, "s", r)
        part.copy(0, "o", r)
        part = scatter.chunk(0, "i", r)
        for hop in range(1, r):
            part = part.copy(hop, "s", r)
        part.copy(r, "o", 0)
    alltoall = Script("relayed", "alltoall", ranks)
    for a in range(ranks):
        for b in range(ranks):
            part, between = alltoall.chunk(a, "i", b), (a + b) % ranks
            if between not in (a, b):
                part = part.copy(between, "s", a * ranks + b)
            part.copy(b, "o", a)
    return [gather, scatter, alltoall]


def with_programs(folder: Path) -> None:
    """Check a library's programs on equal and on unequal blocks, whose sizes ranks exchange."""
    me, n = dist.get_rank(), dist.get_world_size()
    library = folder / f"relays{me}"
    programs = [compile_instructions(script.instructions()).program for script in relays(n)]
    add([Addition(program, None, TARGETS["executor-nccl"]) for program in programs], library)
    os.environ["SYNTH_LIBRARY"] = str(library)
    group = dist.new_group(timeout=timedelta(seconds=60))
    mixed = (*range(2, n), 1, 0)
    mixed_group = dist.new_group(mixed, sort_ranks=False, timeout=timedelta(seconds=60))
    del os.environ["SYNTH_LIBRARY"]
    assert tuple(dist.get_process_group_ranks(mixed_group)) == mixed
    with ours.using("synth"):
        out, at = torch.zeros(3 * n), mixed.index(me)
        dist.all_to_all_single(out, torch.cat([values(me, 3, salt=place) for place in range(n)]), group=mixed_group)
        assert ours.counters.last("alltoall") not in ("gloo", "synth direct")
        compare(out, torch.cat([values(rank, 3, salt=at) for rank in mixed]))
        goes, comes = [at + 2 * place for place in range(n)], [place + 2 * at for place in range(n)]
        out = torch.zeros(sum(comes))
        inputs = torch.cat([values(me, count, salt=place) for place, count in enumerate(goes)])
        dist.all_to_all_single(out, inputs, comes, goes, group=mixed_group)
        assert "relayed" in ours.counters.last("alltoall")
        compare(out, torch.cat([values(rank, count, salt=at) for rank, count in zip(mixed, comes, strict=True)]))
    _all_right(group, ("synth", "auto"))
    with ours.using("synth"):
        for name, call in (
            ("gather", partial(_gather, (7,) * n, 0)),
            ("scatter", partial(_scatter, (7,) * n, 0)),
            ("alltoall", partial(_split, (me != 1,) * n, lambda _, __: 3)),
        ):
            call(group, True)
            assert ours.counters.last(name) not in ("gloo", "synth direct"), (name, ours.counters.last(name))
        for name, call in (
            ("gather", partial(_gather, (1, 2, 3, 4), 0)),
            ("scatter", partial(_scatter, (9, 5, 0, 4), 0)),
            ("alltoall", partial(_split, (True,) * n, lambda a, b: a + 2 * b)),
            ("alltoall", _all_to_all),
        ):
            call(group, True)
            assert ours.counters.last(name) not in ("gloo", "synth direct"), (name, ours.counters.last(name))
        _split((True,) * n, lambda a, b: 100 if (a, b) == (0, 1) else 0, group, True)
        # One block has all data: for four ranks, that is not too unequal.
        assert "relayed" in ours.counters.last("alltoall")
        wrong = partial(dist.gather, torch.ones(5 if me == 1 else 4), [torch.ones(4)] * n if me == 0 else None, 0)
        text = "rank 1 sends rank 0 5 elements; it must be 4, as many as that rank expects"
        expect([text], partial(wrong, group=group), InputError)
        got, _ = _scatter((3, 2, 1, 0), 0, group, True)  # The group is still usable.
        compare(got, values(0, 3 - me, salt=me))


def by_table(folder: Path) -> None:
    """Check all-to-alls by a table with several answers: by size without splits, on Gloo with splits; no exchange."""
    me, n = dist.get_rank(), dist.get_world_size()
    library, table = folder / f"tabled{me}", folder / f"table{me}.json"
    program = compile_instructions(relays(n)[-1].instructions()).program
    add([Addition(program, None, TARGETS["executor-nccl"])], library)
    name = next(Path(entry.file).stem for entry in load_index(library))
    row = {"collective": "alltoall", "ranks": n, "min_bytes": 8 * n, "max_bytes": 4096, "backend": "synth"}
    rows = [row | {"algorithm": name}, row | {"min_bytes": 4097, "max_bytes": 8192, "algorithm": "direct"}]
    table.write_text(json.dumps({"format": FORMAT, "machine": platform.node(), "rows": rows}))
    os.environ["SYNTH_LIBRARY"], os.environ["SYNTH_TABLE"] = str(library), str(table)
    group = dist.new_group(timeout=timedelta(seconds=60))
    os.environ["SYNTH_CHECK"] = "1"
    comparing = dist.new_group(timeout=timedelta(seconds=60))
    del os.environ["SYNTH_LIBRARY"], os.environ["SYNTH_TABLE"], os.environ["SYNTH_CHECK"]

    def no_exchange(*_: Any) -> Any:
        raise AssertionError("ranks exchange sizes")

    core.exchange_sizes = core.agree_on_block = no_exchange
    none, every = (False,) * n, (True,) * n
    cases: list[tuple[str, Any, Callable[[int, int], int]]] = [("gloo", every, _rising)]
    for rows_of_block, served_by in ((0, "gloo"), (1, program.name), (200, "direct"), (2000, "gloo")):
        cases += [(served_by, none, lambda _, __, count=rows_of_block: count)]
        cases += [("gloo", every, lambda _, __, count=rows_of_block: count)]
    try:
        for wait in (True, False):
            for served_by, has_splits, rows_of in cases:
                out, work = _split(has_splits, rows_of, group, wait)
                if work is not None:
                    work.wait()
                compare(out, _wanted_rows(rows_of))
                assert served_by in ours.counters.last("alltoall"), (served_by, ours.counters.last("alltoall"))
        assert SPLITS in ours.counters.text()
        with ours.known_sizes([[1] * n] * n, 2):  # All ranks know the sizes, so that the table decides.
            compare(_split(every, lambda _, __: 1, group, True)[0], _wanted_rows(lambda _, __: 1))
        assert program.name in ours.counters.last("alltoall"), ours.counters.last("alltoall")
        compare(_all_to_all(group, True)[0], [values(r, r + 2 * me, salt=me) for r in range(n)])
    finally:
        core.exchange_sizes, core.agree_on_block = agree.exchange_sizes, agree.agree_on_block
    # Some ranks state splits, and others do not: they would choose differently, and each of them says so.
    mixed = partial(_split, (False,) + (True,) * (n - 1), lambda _, __: 1, comparing, True)
    expect(["rank 0 calls", program.name, "must be the same on all ranks"], mixed, RuntimeError)
    for has_splits in (none, every):
        compare(_split(has_splits, lambda _, __: 1, comparing, True)[0], _wanted_rows(lambda _, __: 1))


def planned(folder: Path) -> None:
    """Check all-to-alls that are planned on a network of two nodes: values, what ran, and sizes that are known."""
    me, n = dist.get_rank(), dist.get_world_size()
    topology = folder / f"two-nodes{me}.toml"
    topology.write_text(_two_nodes(n))
    os.environ["SYNTH_TOPOLOGY"] = str(topology)
    group = dist.new_group(timeout=timedelta(seconds=60))
    one_node = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    os.environ["SYNTH_CHECK"] = "1"
    comparing = dist.new_group(timeout=timedelta(seconds=60))
    del os.environ["SYNTH_TOPOLOGY"], os.environ["SYNTH_CHECK"]
    _all_right(group, ("auto", "synth", "gloo"))

    def hot(a: int, b: int) -> int:
        """Return the rows from a to b: the first rank sends most, to the other node."""
        return 3000 if a == 0 and b >= n // 2 else 1

    rows = [[hot(a, b) for b in range(n)] for a in range(n)]
    exchanges = []
    core.exchange_sizes = lambda *arguments: exchanges.append(1) or agree.exchange_sizes(*arguments)
    for stated in (None, rows, torch.tensor(rows)):
        for wait in (True, False):
            exchanges.clear()
            with nullcontext() if stated is None else ours.known_sizes(stated, 2):
                out, work = _split((True,) * n, hot, group, wait)
            if work is not None:
                work.wait()
            compare(out, _wanted_rows(hot))
            assert ours.counters.last("alltoall") == "synth planned"
            assert len(exchanges) == (stated is None)
    core.exchange_sizes = agree.exchange_sizes
    with ours.known_sizes(rows, 2) if me == 0 else nullcontext():
        expect(["rank 1 calls", "known sizes"], partial(_split, (True,) * n, hot, comparing, True), RuntimeError)
    with ours.using("gloo"):
        _split((True,) * n, hot, group, True)
    assert ours.counters.last("alltoall") == "gloo"
    for wrong in ([1, 2], torch.tensor(3), None, [[1, 2], [3]], [[-1] * n] * n, [[0.5] * n] * n):
        expect(["must be a square of whole numbers"], partial(ours.known_sizes(wrong).__enter__), InputError)
    with ours.known_sizes([[5] * n] * n):
        expect(["by the known sizes it must be"], partial(_split, (True,) * n, hot, group, True), InputError)
    if me < 2:
        out, inputs = torch.zeros(4), torch.arange(4.0) + 10 * me
        dist.all_to_all_single(out, inputs, [2, 2], [2, 2], group=one_node)
        compare(out, torch.cat([torch.arange(2.0) + 10 * r + 2 * me for r in range(2)]))


def by_rows_for_splits(folder: Path) -> None:
    """Check all-to-alls with splits by rows of their own: by the mean size, which ranks exchange, or know."""
    me, n = dist.get_rank(), dist.get_world_size()
    topology, table = folder / f"nodes{me}.toml", folder / f"splits{me}.json"
    topology.write_text(_two_nodes(n))
    ends = ((0, 2000, None), (2001, 20_000, "planned"), (20_001, 1 << 30, "direct"))
    rows = [
        {"collective": "alltoallv", "ranks": n, "min_bytes": low, "max_bytes": high, "algorithm": algorithm}
        | {"backend": "synth" if algorithm else "gloo"}
        for low, high, algorithm in ends
    ]
    table.write_text(json.dumps({"format": FORMAT, "machine": platform.node(), "rows": rows}))
    os.environ["SYNTH_TOPOLOGY"], os.environ["SYNTH_TABLE"] = str(topology), str(table)
    group = dist.new_group(timeout=timedelta(seconds=60))
    del os.environ["SYNTH_TOPOLOGY"], os.environ["SYNTH_TABLE"]

    def hot(count: int) -> Callable[[int, int], int]:
        """Return the rows from a to b: the first rank sends most, to the other node."""
        return lambda a, b: count if a == 0 and b >= n // 2 else 1

    for count, served_by in ((2, "direct"), (3000, "planned"), (9000, "direct")):
        for knows in (False, True):
            stated = [[hot(count)(a, b) for b in range(n)] for a in range(n)]
            with ours.known_sizes(stated, 2) if knows else nullcontext():
                out, _ = _split((True,) * n, hot(count), group, True)
            compare(out, _wanted_rows(hot(count)))
            assert ours.counters.last("alltoall") == f"synth {served_by}", (count, ours.counters.last("alltoall"))
    out, _ = _split((False,) * n, lambda _, __: 1000, group, True)  # No row is for calls without splits.
    compare(out, _wanted_rows(lambda _, __: 1000))
    assert ours.counters.last("alltoall") == "gloo", ours.counters.last("alltoall")


def _two_nodes(ranks: int) -> str:
    """Return a topology: fast links inside each half of the ranks, a slow one from each rank to its like."""
    half = ranks // 2
    inside = [f"{a}>{b}" for h in (0, half) for a in range(h, h + half) for b in range(a + 1, h + half)]
    across = [f"{r}>{r + half}" for r in range(half)]
    lines = ['name = "two-nodes"', f"ranks = {ranks}", f'nodes = ["0-{half - 1}", "{half}-{ranks - 1}"]']
    for pairs, gbs in ((inside, 10), (across, 0.01)):
        lines += ["[[links]]", f'pairs = "{" ".join(pairs)}"', "both = true", f"gbs = {gbs}", "alpha_us = 10"]
    return "\n".join(lines)


def checked() -> None:
    """Check that SYNTH_CHECK names on every rank two ranks that differ, where nothing else would notice."""
    me, n = dist.get_rank(), dist.get_world_size()
    os.environ["SYNTH_CHECK"] = "1"
    group = dist.new_group(timeout=timedelta(seconds=60))
    del os.environ["SYNTH_CHECK"]
    for mode in ("synth", "auto"):
        with ours.using(mode):
            parts = [torch.ones(r + 1) for r in range(n)] if me == 0 else None
            out = torch.zeros(me + 1 + (me == 2))
            expect(["rank 0 sends rank 2 3 elements; it must be 4"], partial(dist.scatter, out, parts, 0, group))
    _all_right(group, ("auto",))


UNEVEN = {"unequal blocks": unequal_blocks, "unequal blocks, checked": checked}
