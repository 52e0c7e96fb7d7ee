"""The engine `skewed` answers all-to-alls of given sizes, near the bound, and refuses other questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emit.formats import verify_file
from emit.library.saving.save import save
from emit.library.selection.lookup import goal_beside
from synth.app.synthesis import synthesize
from synth.engines.request import Options
from synth.engines.skewed.search import NAME, accepts
from synth.model.collective import uneven
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from tests.synth.engines.skewed.questions import skewed
from topologies.load import load


def test_it_is_for_sizes_of_one_group() -> None:
    sizes = uneven("alltoallv", np.ones((4, 4)))
    assert "for alltoallv" in accepts(make_problem(load("full:4"), "alltoall"), Options())
    assert "2 to 128" in accepts(make_problem(load("torus:16x16"), uneven("alltoallv", np.ones((256, 256)))), Options())
    assert "--steps" in accepts(make_problem(load("full:4"), sizes), Options(steps=2))
    assert "without relays" in accepts(make_problem(load("full:5"), sizes, range(4), relays=(4,)), Options())
    assert not accepts(make_problem(load("full:4"), sizes), Options())
    assert not accepts(make_problem(load("ring:4"), sizes), Options())


def test_it_answers_near_the_bound() -> None:
    sizes = skewed("hot", 16, 1 << 12)  # Sizes in units of 4 KiB, since programs hold blocks in cells of one size.
    problem = uneven("alltoallv", sizes.astype(float))
    answer = synthesize(problem, "dgx-h100:2", engine=NAME, size="256M", target="none", costs="none", budget=5).result
    offer = answer.ranges[0]
    assert offer.algorithm.engine == NAME
    assert offer.time_us(1 << 28) <= 1.03 * answer.bound.at(1 << 28)[0]


@pytest.mark.parametrize(
    ("target", "group"), [("mscclpp", (0, 1, 8, 9)), ("msccl", (0, 1, 8, 9)), ("msccl", (0, 1, 2, 5))]
)
def test_programs_of_its_plans_are_right(tmp_path: Path, target: str, group: tuple[int, ...]) -> None:
    sizes = uneven("alltoallv", [[0, 2, 1, 5], [1, 0, 0, 3], [4, 4, 0, 1], [0, 1, 2, 0]])
    question = {"engine": NAME, "size": 1 << 22, "costs": "none", "budget": 2}
    answer = synthesize(sizes, "dgx-h100:2" if 8 in group else "dgx1", group, target=target, **question)
    [files] = save(answer.result, tmp_path, TargetSettings(target)).files
    assert verify_file(files["file"], goal_beside(files["file"])).status == "right"
    assert any(offer.algorithm.engine == NAME for offer in (*answer.result.ranges, *answer.result.unused))
