"""Schedule files for tests: written, taken apart and put together again."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.storage.schedule_file import StoredSchedule, load_schedule, write_schedule
from synth.timing.simulate import timed
from synth.verify.replay import replay
from tests.random_problems import answered

Members = dict[str, bytes]
TOPOLOGY = ("name", "nranks", "switches", "alpha_assumed", "sms", "compute_capability", "summary", "source")
LINKS = ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "nodes")
NETWORK = ("src", "dst", "alpha_us", "bandwidth_gbs", "uses_ptr", "uses_idx", "capacity_gbs")
PLAIN = ("name", "nranks", "chunks", "nchunks", "root")
COLUMNS = ("reduces", "fraction", "pre", "post", "in_index", "out_index")
SENDS = ("chunk", "link", "step", "reduces", "start_us", "end_us")


def same(stored: StoredSchedule, problem: Problem, schedule: Schedule) -> None:
    again = stored.problem
    assert (again.group, again.relays) == (problem.group, problem.relays)
    assert (again.quotient is None) == (problem.quotient is None)
    if problem.quotient is not None and again.quotient is not None:
        assert again.quotient.translations == problem.quotient.translations
    for stored_part, original_part, plain, arrays in (
        (again.topology, problem.topology, TOPOLOGY, LINKS),
        (again.network, problem.network, ("ranks", "resource_names"), NETWORK),
        (again.collective, problem.collective, PLAIN, COLUMNS),
        (stored.schedule, schedule, ("size_bytes",), SENDS),
    ):
        for name in plain:
            assert np.array_equal(getattr(stored_part, name), getattr(original_part, name)), name
        for name in arrays:
            assert getattr(stored_part, name).dtype == getattr(original_part, name).dtype, name
            assert np.array_equal(getattr(stored_part, name), getattr(original_part, name)), name


def written(folder: Path, problem: Problem, size_bytes: float = 1 << 20) -> Path:
    schedule = timed(problem, answered(problem, 1e6), size_bytes)
    replay(problem, schedule)
    path = write_schedule(folder / "a.synth", problem, schedule, "route")
    same(load_schedule(path), problem, schedule)
    again = write_schedule(folder / "again.synth", problem, schedule, "route")
    assert path.read_bytes() == again.read_bytes()
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []
    return path


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path: Path, parts: Members | list[tuple[str, bytes]], how: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in parts.items() if isinstance(parts, dict) else parts:
            archive.writestr(name, data)
