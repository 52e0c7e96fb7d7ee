"""List the features that MCR-DL offers, run the test of each for our back end of PyTorch, and write what came out.

    python -m results.scripts.torch_features

makes torch_features.md. MCR-DL is "MCR-DL: Mix-and-Match Communication Runtime for Deep Learning" (IPDPS 2023, arXiv
2303.08374). A feature has the public source that states it; the text of the paper's Table I was not at hand, so rows
that only it could confirm say so. The tests are those of this repository. Needs PyTorch; takes four minutes, on a busy
machine eight.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from results.measuring.measure import ROOT, grid, page, write

LIMIT_S = 900
SOURCES = {
    "abstract": "the paper's abstract (arXiv 2303.08374)",
    "README": "the README of the released sources, v0.1 (github.com/OSU-Nowlab/MCR-DL)",
    "mcr_dl/comm.py": "the functions of that file of the released sources",
    "no source": "named when this table was planned, as a feature of the paper; no public text at hand confirms it",
}
TORCH, MEASURE, CLI = "tests/runtime/torch/", "tests/runtime/measure/", "tests/synth/app/cli/"


@dataclass(frozen=True)
class Feature:
    """A feature of MCR-DL and the tests that show ours.

    Attributes:
        name: What MCR-DL offers, in a few words.
        source: Key of SOURCES.
        tests: Names of tests as pytest takes them, with all their parameters if they end in none; empty if we do not
            offer the feature.
        remark: What a reader should know besides; "" for nothing.
        lacks: What a test would need that tests of this repository cannot have; "" for nothing.
    """

    name: str
    source: str
    tests: tuple[str, ...]
    remark: str = ""
    lacks: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a test ended: passed, failed or skipped, and why if it did not pass."""

    end: str
    reason: str = ""


def _checks(*names: str, session: str = "main") -> tuple[str, ...]:
    """Return the names of the tests of checks, each of which four ranks run."""
    return tuple(f"{TORCH}test_process_group.py::test_every_rank_passes[{session}-{name}]" for name in names)


_MIXED = f"{TORCH}test_added.py::test_programs_on_several_back_ends_end_and_are_right"
_BY_SIZE = f"{TORCH}test_added.py::test_a_table_selects_an_added_back_end_by_size"
_TUNED = f"{CLI}test_tune.py::test_tune_writes_the_table_that_was_measured"
_USED = f"{TORCH}test_added.py::test_using_and_the_variable_select_it_and_tune_measures_it"
_OTHERS = f"{TORCH}test_core.py::test_ranks_of_another_library_run_our_algorithms"

FEATURES = (
    Feature("all point-to-point operations: send, recv, isend, irecv", "abstract", _checks("messages synth")),
    Feature("a back end chosen for each operation", "abstract", (_USED,)),
    Feature("several back ends at the same time without deadlock", "abstract", (_MIXED,)),
    Feature("a tuning suite that measures the back ends", "abstract", (_TUNED,)),
    Feature("the back end selected by the tensor's size", "abstract", (_BY_SIZE,)),
    Feature(
        "extensible by further back ends",
        "abstract",
        (f"{TORCH}test_added.py::test_modules_that_register_are_imported", _USED),
    ),
    Feature(
        "training of mixtures of experts, DLRMs and dense models",
        "abstract",
        ("tests/results/test_torch_workloads.py::test_a_job_trains_every_workload_with_every_method",),
        "`torch_workloads.md` is to have times",
    ),
    Feature("broadcast, reduce, gather, scatter", "mcr_dl/comm.py", _checks("rooted synth")),
    Feature("all_reduce, inference_all_reduce", "mcr_dl/comm.py", _checks("all-reduce synth", "inference synth")),
    Feature("all_gather, all_gather_into_tensor", "mcr_dl/comm.py", _checks("all-gather synth")),
    Feature("reduce_scatter, reduce_scatter_tensor", "mcr_dl/comm.py", _checks("reduce-scatter synth")),
    Feature("all_to_all, all_to_all_single", "mcr_dl/comm.py", _checks("all-to-all synth")),
    Feature(
        "all_to_all_single with split sizes (all-to-all-v)",
        "mcr_dl/comm.py",
        _checks("unequal blocks", "unequal blocks, with programs", "unequal blocks, planned"),
    ),
    Feature("barrier, monitored_barrier", "mcr_dl/comm.py", _checks("barriers of all kinds synth", "barriers synth")),
    Feature("non-blocking operations (async_op)", "mcr_dl/comm.py", _checks("asynchronous synth", "callbacks synth")),
    Feature(
        "coalesced operations, coalescing manager",
        "mcr_dl/comm.py",
        _checks("coalesced synth", "coalesced as one by one synth"),
    ),
    Feature("groups of some of the ranks", "mcr_dl/comm.py", _checks("subgroups synth", "groups in threads synth")),
    Feature("the interface of torch.distributed", "mcr_dl/comm.py", _checks("like gloo synth", session="more")),
    Feature(
        "a summary of calls with stragglers (log_summary)",
        "mcr_dl/comm.py",
        (f"{TORCH}test_logs.py::test_calls_are_counted_by_size_class",
         f"{TORCH}test_logs.py::test_the_document_keeps_its_schema"),
    ),
    Feature(
        "NCCL for CUDA tensors", "mcr_dl/comm.py", (f"{TORCH}test_cuda.py::test_collectives_of_cuda_tensors",)
    ),
    Feature(
        "MPI as a back end",
        "mcr_dl/comm.py",
        (),
        "by `register`, which is tested with other back ends of torch",
        "needs PyTorch built with MPI",
    ),
    Feature(
        "rank and size from the variables of an MPI launcher",
        "mcr_dl/comm.py",
        (),
        "only for torchcomms; for torch.distributed torchrun sets them",
    ),
    Feature(
        "communication decoupled from torch.distributed",
        "README",
        (f"{TORCH}test_core.py::test_the_core_imports_neither_c10d_nor_its_face", _OTHERS),
    ),
    Feature(
        "logs of the communication",
        "README",
        (f"{TORCH}test_logs.py::test_variables_let_each_rank_write_a_log_and_a_trace",),
    ),
    Feature("benchmarks of single operations over sizes", "README", (f"{CLI}test_bench.py::test_over_torch", _TUNED)),
    Feature(
        "compression",
        "README",
        (f"{TORCH}test_compression.py::test_sums_stay_within_their_limit_and_training_ends_where_it_does_without",),
    ),
    Feature("vector gathers, scatters and reduce-scatters", "no source", _checks("unequal blocks, checked")),
    Feature(
        "fusion of small calls",
        "no source",
        (*_checks("ddp fused synth", session="more"),
         f"{TORCH}test_packing.py::test_a_buffer_holds_one_type_and_no_more_than_its_limit"),
    ),
    Feature(
        "persistent operations",
        "no source",
        _checks("persistent synth") + _checks("persistent auto", session="more"),
    ),
)  # fmt: skip


def names_of_tests(features: Iterable[Feature] = FEATURES) -> list[str]:
    """Return the names of all tests of the features, each once, in their order."""
    return list(dict.fromkeys(name for feature in features for name in feature.tests))


def run_tests(names: Iterable[str]) -> dict[str, Outcome]:
    """Run tests in one process of pytest, and return how each ended, by its name with its parameters.

    Args:
        names: Names of tests as pytest takes them.

    Raises:
        SystemExit: pytest cannot run them, for example since a name is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", f"--junitxml={report}", *names]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        if run.returncode not in (0, 1) or not report.exists():
            raise SystemExit(f"torch_features: pytest ran no tests: {(run.stdout + run.stderr).strip()[-400:]}")
        return read_report(report)


def read_report(report: Path) -> dict[str, Outcome]:
    """Return how each test of a report in JUnit's form ended, by its name as pytest takes it."""
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        ends = {child.tag: child.attrib.get("message", "") for child in case}
        if "failure" in ends or "error" in ends:
            outcomes[name] = Outcome("failed", ends.get("failure") or ends.get("error", ""))
        else:
            outcomes[name] = Outcome("skipped", ends["skipped"]) if "skipped" in ends else Outcome("passed")
    return outcomes


def verdict(feature: Feature, outcomes: Mapping[str, Outcome]) -> str:
    """Return "passed", "failed" or "not run" with the reason, or "not offered" for a feature that has no tests."""
    if not feature.tests:
        return f"not run: {feature.lacks}" if feature.lacks else "not offered"
    ends = []
    for name in feature.tests:
        own = [end for test, end in outcomes.items() if test == name or test.startswith(f"{name}[")]
        ends += own or [Outcome("failed", "the test was not found")]
    failed = next((end for end in ends if end.end == "failed"), None)
    skipped = next((end for end in ends if end.end == "skipped"), None)
    if failed is not None:
        return f"failed: {failed.reason.splitlines()[0][:120] if failed.reason else 'without a message'}"
    return "passed" if skipped is None else f"not run: {skipped.reason}"


def table(outcomes: Mapping[str, Outcome], features: Iterable[Feature] = FEATURES) -> str:
    """Return the rows of the features as Markdown."""
    rows = []
    for feature in features:
        tests = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in feature.tests) or "–"
        rows.append((feature.name, feature.source, tests, verdict(feature, outcomes), feature.remark))
    return grid(("feature of MCR-DL", "source", "our test", "outcome", "remark"), rows)


def main() -> int:
    """Run the tests, write the table, and return 1 if one of them failed."""
    if find_spec("torch") is None:
        print("torch_features needs PyTorch; install it with: pip install '.[torch]'", file=sys.stderr)
        return 2
    import torch  # The import is slow and optional.

    outcomes = run_tests(names_of_tests())
    verdicts = [verdict(feature, outcomes) for feature in FEATURES]
    count = {word: sum(text.startswith(word) for text in verdicts) for word in ("passed", "failed", "not")}
    about = (
        f"Of {len(FEATURES)} features {count['passed']} pass, {count['failed']} fail, and {count['not']} are not run or"
        f" not offered (PyTorch {torch.__version__}). The text of the paper's Table I was not at hand: a row is in this"
        " table because of the public source that is named. The released MCR-DL has no mixed back ends, as its README"
        " says. Its claim of faster small messages is about speed: `torch_overhead.md` has ours."
    )
    sources = grid(("source", "what it is"), SOURCES.items())
    write(__file__, page(__file__, "MCR-DL's features and our tests", [about, table(outcomes), "## Sources", sources]))
    return int(count["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
