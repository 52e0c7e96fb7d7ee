"""Tests that chunks of different sizes become files that are right, run, and take the times of the table."""

from pathlib import Path

import pytest

from emit.formats import verify_file
from emit.library.index import load_index
from emit.library.lowered import Lowered
from emit.library.saving.save import save
from emit.msccl.read import read_msccl
from runtime.bench import Settings, measure
from runtime.host.executor import HostExecutor
from synth.app.synthesis import synthesize
from synth.model.collective import uneven
from synth.search.settings import TargetSettings
from synth.solvers.workers import Workers
from tests.synth.model.test_common_chunk import EVEN, ODD


@pytest.mark.parametrize("target", ["msccl", "mscclpp"])
@pytest.mark.parametrize("sizes", [EVEN, ODD])
def test_the_file_is_right_runs_and_never_beats_its_bound(sizes: list[list[int]], target: str, tmp_path: Path) -> None:
    with Workers(()) as no_workers:
        options = {"engine": "flow", "budget": 1, "target": target, "workers": no_workers, "costs": "none"}
        result = synthesize(uneven("alltoallv", sizes), "dgx-a100", [0, 1, 2, 3], **options).result
    saved = save(result, tmp_path, TargetSettings(target))
    assert not saved.refused
    for entry, served in zip(load_index(tmp_path), saved.result.ranges, strict=True):
        assert verify_file(entry.path, entry.goal()).status == "right"
        lowered = served.execution
        assert isinstance(lowered, Lowered)
        took_us, least_us = served.time_us(1 << 30), result.bound.at(1 << 30)[0]
        assert least_us * (1 - 1e-9) <= took_us <= served.algorithm.time_us(1 << 30) * 1.01
        if target == "msccl":
            program, goal = read_msccl(entry.path), entry.goal()
            row = measure(program, goal, 1 << 16, HostExecutor(program, goal), Settings(iterations=1, warmup=0))
            assert row.wrong == 0
