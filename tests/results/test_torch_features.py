"""Tests of the table of MCR-DL's features: its tests exist, and their ends become right verdicts."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from results.scripts.torch_features import FEATURES, SOURCES, Feature, Outcome, names_of_tests, read_report, verdict
from tests import ROOT

TWO = Feature("two", "README", ("a.py::test_x", "b.py::test_y[2]"))


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_every_test_of_the_table_exists() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "slow or not slow", *names_of_tests()]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stdout[-800:]
    assert {feature.source for feature in FEATURES} == set(SOURCES)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"a.py::test_x[1]": "passed", "b.py::test_y[2]": "passed"}, "passed"),
        ({"a.py::test_x[1]": "passed", "a.py::test_x[2]": "failed", "b.py::test_y[2]": "passed"}, "failed: why"),
        ({"a.py::test_x": "skipped", "b.py::test_y[2]": "passed"}, "not run: why"),
        ({"a.py::test_x": "passed", "b.py::test_y[1]": "passed"}, "failed: the test was not found"),
    ],
)
def test_a_feature_passes_only_if_all_its_tests_do(ends: dict[str, str], expected: str) -> None:
    outcomes = {name: Outcome(end, "" if end == "passed" else "why") for name, end in ends.items()}
    assert verdict(TWO, outcomes) == expected


def test_a_report_of_pytest_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_passes_once(n):\n    assert n == 1\n"
        "def test_skipped():\n    pytest.skip('needs a GPU')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "test_ends.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    outcomes = read_report(tmp_path / "report.xml")
    assert {name: outcome.end for name, outcome in outcomes.items()} == {
        "test_ends.py::test_passes_once[1]": "passed",
        "test_ends.py::test_passes_once[2]": "failed",
        "test_ends.py::test_skipped": "skipped",
    }
    assert outcomes["test_ends.py::test_skipped"].reason == "needs a GPU"
