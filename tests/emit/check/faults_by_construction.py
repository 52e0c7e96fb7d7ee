"""Faults in the numbers of a program, which are certain by construction."""

from __future__ import annotations

import random
from dataclasses import replace

from emit.program import READS_DST, READS_SRC, RECEIVES, SENDS, WRITES_DST, Program
from emit.targets import TARGETS
from tests.emit.check.equivalent_programs import awaited, cut_in_two, finer, on_channels_from, reordered
from tests.emit.check.planted_fault import Planted, Planter, Where, ends_of, sizes_of, steps_of
from tests.emit.right_programs import Right
from tests.emit.small_programs import direct_gather, direct_scatter, with_block, with_gpu, with_step

# --- overrun


def _beyond(right: Right, rng: random.Random, side: str, ops: frozenset[str], *, below: bool) -> Planted | None:
    for place, s in steps_of(right.program, rng, ops):
        buffer = getattr(s, f"{side}_buf")
        size = sizes_of(right.program, place[0])[buffer]
        at = -rng.randrange(1, 4) if below else size - s.count + 1 + rng.randrange(3)
        changed = with_step(right.program, *place, **{f"{side}_off": at})
        cells = {(place[0], buffer, x) for x in range(at, at + s.count) if not 0 <= x < size}
        return Planted("overrun", changed, right.goal, frozenset({place}), frozenset(cells))
    return None


def source_beyond(right: Right, rng: random.Random) -> Planted | None:
    return _beyond(right, rng, "src", READS_SRC, below=False)


def destination_beyond(right: Right, rng: random.Random) -> Planted | None:
    return _beyond(right, rng, "dst", WRITES_DST | READS_DST, below=False)


def negative_offset(right: Right, rng: random.Random) -> Planted | None:
    side, ops = rng.choice([("src", READS_SRC), ("dst", WRITES_DST)])
    return _beyond(right, rng, side, ops, below=True)


def scratch_too_small(right: Right, rng: random.Random) -> Planted | None:
    """Make the scratch one chunk smaller than some step needs."""
    ranks = [r for r, gpu in enumerate(right.program.gpus) if gpu.s_chunks]
    rng.shuffle(ranks)
    for rank in ranks:
        gpu = right.program.gpus[rank]
        last = gpu.s_chunks - 1
        users: set[Where] = set()
        for r, t, x, s in right.program.steps():
            src = s.op in READS_SRC and s.src_buf == "s" and s.src_off + s.count > last
            dst = s.op in WRITES_DST and s.dst_buf == "s" and s.dst_off + s.count > last
            if r == rank and (src or dst):
                users.add((r, t, x))
        if users:
            changed = with_gpu(right.program, rank, replace(gpu, s_chunks=last))
            return Planted("overrun", changed, right.goal, frozenset(users), frozenset({(rank, "s", last)}))
    return None


# --- unpaired


def _of_blocks(program: Program, blocks: set[tuple[int, int]]) -> frozenset[Where]:
    """Return places that stand for any step in these threadblocks."""
    inside = {(r, t, x) for r, t, x, _ in program.steps() if (r, t) in blocks}
    return frozenset(inside | {(r, t, None) for r, t in blocks})


def missing_end(right: Right, rng: random.Random) -> Planted | None:
    """Remove one end of a transmission: the receive of a send, or the send of a receive."""
    for (r, t, x), s in steps_of(right.program, rng, frozenset({"s", "r"})):
        tb = right.program.gpus[r].threadblocks[t]
        if x in awaited(right.program, r, t) or len(tb.steps) == 1:
            continue
        key = (r, tb.send, tb.channel) if s.op == "s" else (tb.recv, r, tb.channel)
        changed = reordered(right.program, r, t, [y for y in range(len(tb.steps)) if y != x])
        ends = {place[:2] for side in ends_of(right.program)[key] for place in side}
        return Planted("unpaired", changed, right.goal, _of_blocks(changed, ends))
    return None


def another_peer(right: Right, rng: random.Random) -> Planted | None:
    """Make one end of a connection name a rank whose threadblock does not name it."""
    for (r, t, _), s in steps_of(right.program, rng, SENDS | RECEIVES):
        tb = right.program.gpus[r].threadblocks[t]
        side = "send" if s.op in SENDS else "recv"
        used = {(getattr(b, side), b.channel) for b in right.program.gpus[r].threadblocks}
        peers = [p for p in range(right.program.nranks) if p != r and (p, tb.channel) not in used]
        if peers:
            changed = with_block(right.program, r, t, replace(tb, **{side: rng.choice(peers)}))
            return Planted("unpaired", changed, right.goal, _of_blocks(changed, {(r, t)}))
    return None


def another_channel(right: Right, rng: random.Random) -> Planted | None:
    for (r, t, _), _ in steps_of(right.program, rng, SENDS | RECEIVES):
        tb = right.program.gpus[r].threadblocks[t]
        changed = with_block(right.program, r, t, replace(tb, channel=right.program.nchannels))
        return Planted("unpaired", changed, right.goal, _of_blocks(changed, {(r, t)}))
    return None


def no_peer(right: Right, rng: random.Random) -> Planted | None:
    """Add a send or a receive to a threadblock without a peer for it."""
    for (r, t, _), s in steps_of(right.program, rng, SENDS | RECEIVES):
        tb = right.program.gpus[r].threadblocks[t]
        side, ops = ("send", SENDS) if s.op in SENDS else ("recv", RECEIVES)
        changed = with_block(right.program, r, t, replace(tb, **{side: -1}))
        places = {(r, t, x) for x, step in enumerate(tb.steps) if step.op in ops}
        return Planted("unpaired", changed, right.goal, frozenset(places))
    return None


# --- dangling dependency


def _dangling(right: Right, rng: random.Random, field: str) -> Planted | None:
    """Make a dependency point to a threadblock or step that does not exist, or set only half of it."""
    program = right.program
    for place, s in steps_of(program, rng, frozenset({*SENDS, *RECEIVES, "cpy", "re", "nop"})):
        blocks = program.gpus[place[0]].threadblocks
        tb, at = (s.dep_tb, s.dep_step) if s.dep_tb >= 0 else (rng.randrange(len(blocks)), 0)
        if field == "tb":
            tb = len(blocks) + rng.randrange(3)
        elif field == "step":
            at = len(blocks[tb].steps) + rng.randrange(3)
        elif rng.random() < 0.5:
            tb = -1
        else:
            at = -1
        changed = with_step(program, *place, dep_tb=tb, dep_step=at)
        return Planted("dangling dependency", changed, right.goal, frozenset({place}))
    return None


def no_such_tb(right: Right, rng: random.Random) -> Planted | None:
    return _dangling(right, rng, "tb")


def no_such_step(right: Right, rng: random.Random) -> Planted | None:
    return _dangling(right, rng, "step")


def half_a_wait(right: Right, rng: random.Random) -> Planted | None:
    return _dangling(right, rng, "half")


def silent_step(right: Right, rng: random.Random) -> Planted | None:
    """Remove `has_dep` from a step that another step waits for."""
    waiting = [((r, t, x), s) for r, t, x, s in right.program.steps() if s.dep_tb >= 0]
    if not waiting:
        return None
    (rank, _, _), s = rng.choice(waiting)
    changed = with_step(right.program, rank, s.dep_tb, s.dep_step, has_dep=False)
    same = {p for p, o in waiting if (p[0], o.dep_tb, o.dep_step) == (rank, s.dep_tb, s.dep_step)}
    return Planted("dangling dependency", changed, right.goal, frozenset(same))


# --- unequal counts


def _unequal(right: Right, rng: random.Random, side: int) -> Planted | None:
    """Make one end of a transmission move another count of chunks, within the bounds of its buffers."""
    pairs = [(a, b) for out, into in ends_of(right.program).values() for a, b in zip(out, into, strict=True)]
    for pair in rng.sample(pairs, min(len(pairs), 12)):
        r, t, x = pair[side]
        s = right.program.gpus[r].threadblocks[t].steps[x]
        for count in (s.count + 1, s.count - 1):
            sizes = sizes_of(right.program, r)
            inside = all(
                getattr(s, f"{end}_off") + count <= sizes[getattr(s, f"{end}_buf")]
                for end, ops in (("src", READS_SRC), ("dst", WRITES_DST))
                if s.op in ops
            )
            if count > 0 and inside and s.op in ("s", "r"):
                changed = with_step(right.program, r, t, x, count=count)
                return Planted("unequal counts", changed, right.goal, frozenset(pair))
    return None


def sends_another_count(right: Right, rng: random.Random) -> Planted | None:
    return _unequal(right, rng, 0)


def receives_another_count(right: Right, rng: random.Random) -> Planted | None:
    return _unequal(right, rng, 1)


# --- limits


def channel_too_high(right: Right, rng: random.Random) -> Planted | None:
    """Set the channel of a connection to one that the target does not have."""
    ops = {s.op for _, _, _, s in right.program.steps()}
    target = rng.choice([name for name, row in TARGETS.items() if ops <= row.limits.ops])
    blocks = [(r, t) for r, gpu in enumerate(right.program.gpus) for t in range(len(gpu.threadblocks))]
    changed, moved_blocks = on_channels_from(right.program, TARGETS[target].limits.channels, rng.choice(blocks))
    places = frozenset((r, t, None) for r, t in moved_blocks)
    return Planted("limit", changed, right.goal, places, target=target)


def channel_too_full(right: Right, rng: random.Random) -> Planted | None:  # noqa: ARG001 - a program of its own
    """Return a program with more peers of one rank on a channel than the channel has room for."""
    limits = TARGETS["executor-nccl"].limits
    n = limits.tbs_per_channel + 2 + rng.randrange(8)
    root = rng.randrange(n)
    program = rng.choice([direct_gather, direct_scatter])(n, root, rng.random() < 0.5)
    return Planted("limit", program, None, frozenset({(root, None, None)}), target="executor-nccl")


def too_many_steps(right: Right, rng: random.Random) -> Planted | None:
    """Split chunks until a threadblock exceeds the limit of steps."""
    target = rng.choice(list(TARGETS))
    longest = max(len(tb.steps) for gpu in right.program.gpus for tb in gpu.threadblocks)
    most = TARGETS[target].limits.steps_per_tb
    changed = finer(right.program, most // longest + 1)
    places = {
        (r, t, None)
        for r, gpu in enumerate(changed.gpus)
        for t, tb in enumerate(gpu.threadblocks)
        if len(tb.steps) > most
    }
    return Planted("limit", changed, None, frozenset(places), target=target) if places else None


# --- duplicate connection


def cut_threadblock(right: Right, rng: random.Random) -> Planted | None:
    """Split a threadblock in two that have the same peers."""
    for (r, t, _), _ in steps_of(right.program, rng, SENDS | RECEIVES):
        count = len(right.program.gpus[r].threadblocks[t].steps)
        if count > 1:
            changed = cut_in_two(right.program, r, t, rng.randrange(1, count))
            last = len(changed.gpus[r].threadblocks) - 1
            return Planted("duplicate connection", changed, right.goal, frozenset({(r, last, None)}))
    return None


def declared_twice(right: Right, rng: random.Random) -> Planted | None:
    """Make a threadblock declare the peer of another threadblock, whether it uses it or not."""
    program = right.program
    for (r, t, _), s in steps_of(program, rng, SENDS | RECEIVES):
        side = "send" if s.op in SENDS else "recv"
        tb = program.gpus[r].threadblocks[t]
        free_blocks = [x for x, b in enumerate(program.gpus[r].threadblocks) if x != t and getattr(b, side) < 0]
        if free_blocks:
            second_block = rng.choice(free_blocks)
            block = replace(program.gpus[r].threadblocks[second_block], channel=tb.channel, **{side: getattr(tb, side)})
            changed = with_block(program, r, second_block, block)
            places: frozenset[Where] = frozenset({(r, max(t, second_block), None)})
            return Planted("duplicate connection", changed, right.goal, places)
    return None


BUILT: dict[str, dict[str, Planter]] = {
    "overrun": {
        "source beyond the end": source_beyond,
        "destination beyond the end": destination_beyond,
        "an offset below 0": negative_offset,
        "too little scratch": scratch_too_small,
    },
    "unpaired": {
        "an end that is missing": missing_end,
        "another peer": another_peer,
        "another channel": another_channel,
        "no peer": no_peer,
    },
    "unequal counts": {"at the sender": sends_another_count, "at the receiver": receives_another_count},
    "dangling dependency": {
        "no such threadblock": no_such_tb,
        "no such step": no_such_step,
        "half a wait": half_a_wait,
        "a step that never says so": silent_step,
    },
    "limit: channels": {"a channel too high": channel_too_high, "too many peers on one": channel_too_full},
    "limit: steps": {"too fine chunks": too_many_steps},
    "duplicate connection": {"a threadblock cut in two": cut_threadblock, "declared twice": declared_twice},
}
