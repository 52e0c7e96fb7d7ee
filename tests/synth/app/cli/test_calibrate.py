"""`synth calibrate`: what it measures stands in the file, and every later answer uses it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit.goal import Goal
from emit.msccl.read import read_msccl
from emit.program import Program
from emit.timing.predict import Predictor
from runtime.backends import BACKENDS
from runtime.dtypes import Array
from runtime.measure import fits
from synth.app.cli.measuring.calibrate import SHOWN_REMARKS
from tests.synth.app.cli.calling import Call
from topologies.costed import with_costs
from topologies.costs import PROTOCOLS, Costs, Protocol
from topologies.load import load
from topologies.topology import Topology

# It is so slow that messages that take long are small.
PLANTED = {
    "LL": Protocol(300.0, latency_us={"other": 40.0}, efficiency={"other": 0.4}),
    "LL128": Protocol(400.0, 0.004, {"other": 60.0}, {"other": 0.8}),
    "Simple": Protocol(500.0, 0.005, {"other": 90.0}, gap_us={"other": 20.0}),
}
NEAR = 0.04


def planted() -> Topology:
    plain = load("full:2")
    return with_costs(replace(plain, bandwidth_gbs=np.full(plain.nlinks, 0.01)), Costs(PLANTED))


class ClockedGpu:
    """A GPU whose own clock shows what a probe between two ranks takes on the planted machine."""

    arrays = np
    kernel_us: float | None = None
    emulated = recorded = None

    def __init__(self, program: Program, goal: Goal | None, **_: Any) -> None:
        assert goal is not None
        self._sender = int(goal.initial[0][0])
        self._predictor = Predictor(program, planted())

    def at(self, rank: int) -> nullcontext[None]:  # noqa: ARG002 - there is one memory
        return nullcontext()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], **_: str) -> None:
        for output in outputs:
            output[:] = inputs[self._sender]
        self.kernel_us = self._predictor.time_us(inputs[0].nbytes / self._predictor.program.gpus[0].i_chunks)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = replace(BACKENDS["gpu"], require=lambda: None, machine=lambda: "GPU 0 of tests")
    monkeypatch.setitem(BACKENDS, "gpu", backend)
    monkeypatch.setattr("runtime.gpu.executor.GpuExecutor", ClockedGpu)


@pytest.mark.usefixtures("gpu")
def test_answers_and_proofs_use_a_calibrated_file(synth: Call) -> None:
    answer = synth("calibrate", "--backend", "gpu", "--ranks", "2", "-o", "here.toml")
    assert (answer.code, answer.err) == (0, "")
    calibrated = load("here.toml")
    assert calibrated.bandwidth_gbs == pytest.approx([0.01, 0.01], rel=NEAR)
    assert calibrated.costs is not None
    for name, costs in calibrated.costs.protocols.items():
        assert costs.start_us == pytest.approx(PLANTED[name].start_us, rel=NEAR)
        assert costs.latency_us == pytest.approx(PLANTED[name].latency_us, rel=NEAR)
        assert costs.gap_us == pytest.approx(PLANTED[name].gap_us, rel=NEAR)
        assert costs.threadblock_gbs == pytest.approx(PLANTED[name].threadblock_gbs, rel=NEAR)
        assert costs.efficiency["other"] == pytest.approx(PLANTED[name].efficiency.get("other", 1.0), rel=NEAR)
    assert "full:2, measured by synth calibrate --backend gpu on 20" in calibrated.costs.source
    assert "GPU 0 of tests" in calibrated.costs.source
    assert [line.split()[:2] for line in answer.out.splitlines()[1:4]] == [[name, "other"] for name in PLANTED]

    arguments = (
        "--topo",
        "here.toml",
        "--costs",
        "machine",
        "--engine",
        "baseline",
        "--budget",
        "20s",
        "--out",
        "lib",
        "--proof",
    )
    answer = synth("allreduce", "--size", "64K", *arguments)
    assert answer.code == 0, answer.err
    assert calibrated.costs.source in answer.flat, answer.out
    entries = json.loads(Path("lib/index.json").read_text())["algorithms"]
    proofs = [*Path("lib").glob("**/*.proof.json")]
    stated = [json.loads(proof.read_text())["question"] for proof in proofs]
    assert {document["costs"]["source"] for document in (*entries, *stated)} == {calibrated.costs.source}
    assert entries
    assert proofs
    for proof in proofs:
        schedule = proof.with_name(proof.name.replace(".proof.json", ".synth"))
        assert synth("prove", schedule).code == 0
    file = next(Path("lib").glob("msccl/*.xml"))
    report = json.loads(
        synth("simulate", file, "--topo", "here.toml", "--costs", "machine", "--sizes", "64K", "--json").out
    )
    on_planted = Predictor(read_msccl(file), planted()).time_us(1 << 16)
    assert report["sizes"][0]["time_us"] == pytest.approx(on_planted, rel=NEAR)
    rows = json.loads(
        synth(
            "bench", file, "--backend", "host", "--topo", "here.toml", "--costs", "machine", "-b", "64K", "--json"
        ).out
    )["rows"]
    assert rows[0]["predicted_us"] == pytest.approx(on_planted, rel=NEAR)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_moves_something_else_is_not_written(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClockedGpu, "run", lambda self, *_, **__: setattr(self, "kernel_us", 1.0))
    refusal = synth("calibrate", "--backend", "gpu", "--ranks", "2", "-o", "here.toml").refusal
    assert "elements wrong where probe_LL_1x32x1_0-1 was run" in refusal
    assert not Path("here.toml").exists()


def plant_times(monkeypatch: pytest.MonkeyPatch, planted_us: Callable[[float, int], float]) -> None:
    """Replace the time of every run by a function of that time and of the run's number; accept few small messages."""
    runs = count()
    right_run = ClockedGpu.run

    def run(self: ClockedGpu, *arrays: Any, **arguments: str) -> None:
        right_run(self, *arrays, **arguments)
        assert self.kernel_us is not None
        self.kernel_us = planted_us(self.kernel_us, next(runs))

    monkeypatch.setattr(ClockedGpu, "run", run)
    for name, value in (("MOST", 6), ("MOST_BYTES", 1 << 14)):
        monkeypatch.setattr(fits, name, value)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("planted_us", "message"),
    [
        (lambda us, run: us * 2.0 ** (run % 7), "does not repeat, the least 3 times that were measured lie "),
        (lambda *_: 20_000.0, "take no longer than of 4096 bytes (2e+04 µs and 2e+04 µs)"),
    ],
    ids=["busy machine", "shaped link"],
)
def test_noise_is_refused_or_accepted_and_recorded(
    synth: Call, monkeypatch: pytest.MonkeyPatch, planted_us: Callable[[float, int], float], message: str
) -> None:
    plant_times(monkeypatch, planted_us)
    arguments = ("calibrate", "--backend", "gpu", "--ranks", "2", "-o", "here.toml")
    refusal = synth(*arguments).refusal
    assert message in refusal
    assert refusal.endswith("or give --accept-noise to write the figure anyway")
    assert not Path("here.toml").exists()

    answer = synth(*arguments, "--accept-noise")
    assert answer.code == 0, answer.err
    warning, *remarks = answer.err.splitlines()
    assert re.fullmatch(
        r"warning: \d+ figures? (is|are) noisy and accepted by --accept-noise;"
        r" searches with here.toml may choose wrongly:",
        warning,
    )
    assert any(message in remark for remark in remarks)
    written = Path("here.toml").read_text()
    head = [line.removeprefix("# ") for line in written.splitlines() if line.startswith("# ")]
    assert head[0] == "This measurement is noisy. --accept-noise accepted what follows."
    assert [remark.strip() for remark in remarks[:SHOWN_REMARKS]] == head[1 : 1 + SHOWN_REMARKS]
    assert len(remarks) == min(len(head) - 1, SHOWN_REMARKS + 1)
    # Every answer that counts with these costs names their source.
    costs = load("here.toml").costs
    assert costs is not None
    assert f"noisy and accepted by --accept-noise, the first: {head[1]}" in costs.source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "host"), "--ranks: is not given"),
        (("--backend", "host", "--ranks", "2", "--devices", "0"), "--devices: not with --backend host"),
        (("--backend", "host", "--ranks", "3", "--topo", "ring:4"), "ring:4 has 4"),
        (("--backend", "host", "--topo", "ring:4", "-o", "here.json"), ".toml"),
        (("--backend", "hots", "--ranks", "2"), "'hots'"),
    ],
)
def test_refusals(synth: Call, arguments: tuple[str, ...], message: str) -> None:
    assert message in synth("calibrate", *arguments).refusal


def test_a_job_must_have_the_stated_ranks(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.backends.find_spec", lambda _: True)  # refused before torch is loaded
    monkeypatch.setenv("RANK", "0")
    for world_size, arguments, message in (
        ("4", ("--ranks", "2"), "a job of 4"),
        ("four", (), "WORLD_SIZE='four'"),
        ("0", (), "WORLD_SIZE='0'"),
        ("2", ("--backend", "host", "--ranks", "2"), "is one of several ranks"),  # they would disturb each other
    ):
        monkeypatch.setenv("WORLD_SIZE", world_size)
        assert message in synth("calibrate", *arguments).refusal


def test_a_real_executor(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a calibration on a real executor, on a busy machine, with fewer and shorter messages than usual."""
    for name, value in (("NOISE", math.inf), ("SHORT_US", 500.0), ("LARGER_TAKE", 1.2), ("MOST", 6)):
        monkeypatch.setattr(fits, name, value)
    # Without the option, a time that another process took would be refused.
    answer = synth("calibrate", "--backend", "host", "--ranks", "2", "-o", "here.toml", "--accept-noise")
    assert answer.code == 0, answer.err
    calibrated = load("here.toml")
    assert calibrated.costs is not None
    assert set(calibrated.costs.protocols) == set(PROTOCOLS)
    assert (calibrated.bandwidth_gbs > 0).all()
    assert not any(word in Path("here.toml").read_text() + answer.out for word in ("nan%", "inf%", "nan ", "inf "))
