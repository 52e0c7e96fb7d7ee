"""Chunks that an executor can keep under way, and instances that a device has threadblocks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emit.compiler.fill import least_bytes
from emit.compiler.instances import side_by_side
from emit.compiler.ir import instructions_of
from emit.compiler.lower import lower
from emit.program import FIFO_DEPTH
from emit.targets import target_named
from synth.baselines import baseline_named
from synth.model.problem import Problem, make_problem
from topologies.costed import under, with_costs
from topologies.errors import InputError
from topologies.load import load

LIMITS = replace(target_named("executor-nccl").limits, sms=72)
SIZE = 1 << 20


def costed(machine: str, collective: str, protocol: str = "Simple") -> Problem:
    return make_problem(under(with_costs(load(machine)), protocol), collective)


def test_chunks_may_be_smaller_the_more_slots_there_are_and_the_shorter_the_latency() -> None:
    net = costed("dgx1", "broadcast").network
    least = least_bytes(net, LIMITS, FIFO_DEPTH["Simple"])
    assert least_bytes(net, LIMITS, 2 * FIFO_DEPTH["Simple"]) == pytest.approx(least / 2, abs=1)
    assert least_bytes(replace(net, alpha_us=net.alpha_us / 2), LIMITS, 2) == pytest.approx(least / 2, abs=1)
    assert least_bytes(net, replace(LIMITS, sms=36), 2) == pytest.approx(least * 9 / 4, abs=3)  # 4 channels, not 9
    assert least_bytes(replace(net, alpha_us=0 * net.alpha_us), LIMITS, 2) == 0


def test_what_links_share_they_have_between_them() -> None:
    """Seven links of 240 GB/s leave one port of 240: a connection is kept busy by a seventh of it."""
    net = costed("dgx-a100", "broadcast").network
    slots = (LIMITS.sms // 14) * 2
    assert least_bytes(net, LIMITS, 2) == pytest.approx(1.5 * 3.4 * 240e3 / 7 / slots, rel=1e-3)


def test_more_instances_than_threadblocks_are_refused_before_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = costed("dgx1", "broadcast")
    ring = min(baseline_named(problem, "ring", SIZE), key=lambda one: len(one.schedule))
    one = lower(ring, "chain", protocol="Simple", limits=LIMITS)[0]
    each = max(
        sum(peer >= 0 for peer in side)
        for gpu in one.gpus
        for side in ([tb.send for tb in gpu.threadblocks], [tb.recv for tb in gpu.threadblocks])
    )
    ir = replace(instructions_of(one, None, False), instances=2, interleaved=None)
    assert max(len(gpu.threadblocks) for gpu in side_by_side(one, ir, replace(LIMITS, sms=2 * each)).gpus) <= 2 * each
    monkeypatch.setattr("emit.compiler.instances.repeat", lambda *_: pytest.fail("laid out"))
    with pytest.raises(InputError, match=f"{2 * each} threadblocks a rank; there is room for {2 * each - 1}"):
        side_by_side(one, ir, replace(LIMITS, sms=2 * each - 1))
