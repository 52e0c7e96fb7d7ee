"""Tests of what answers for dead and slow parts are compared with: the best that is known of the healthy network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.synth.app.cli.calling import Call

_HEALTHY = ("allreduce", "--topo", "ring:4", "--size", "64K", "--engine", "route", "--json")
_HURT = (*_HEALTHY, "--without", "link:0-1", "--budget", "1s")


@pytest.mark.parametrize("known", ["cache", "library"])
def test_the_healthy_time_is_the_best_that_is_known(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    monkeypatch.setenv("SYNTH_CACHE", str(working_folder / "cache") if known == "cache" else "none")
    healthy = json.loads(synth(*_HEALTHY, "--budget", "20s", "--out", "healthy").out)["algorithms"][0]
    hurt = json.loads(synth(*_HURT, "--out", "healthy" if known == "library" else "hurt").out)["algorithms"][0]
    assert hurt["time_us"] / hurt["vs_healthy"] <= healthy["time_us"] * (1 + 1e-6)


def test_a_wrong_file_of_the_healthy_network_is_not_compared_with(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNTH_CACHE", "none")
    assert synth(*_HEALTHY, "--budget", "1s", "--out", "lib").code == 0
    for path in (working_folder / "lib" / "msccl").iterdir():
        path.write_text("<algo/>")
    hurt = synth(*_HURT, "--out", "lib")
    assert hurt.code == 0
    assert json.loads(hurt.out)["algorithms"][0]["vs_healthy"] >= 1
