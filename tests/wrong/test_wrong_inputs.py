"""Tests that wrong command lines end in one line and exit code 2 without writing, and wrong calls in InputError."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import pytest

import synth as synth_package
from tests.synth.app.cli.calling import Call, caller
from tests.wrong import python_calls
from tests.wrong.command_lines import RIGHT, Case, cases, contents, fault, parameters, prepare
from topologies.errors import InputError, UnknownKeyword

CASES = cases()
SLOW = {
    "optimize",
    "lower",
    "bench",
    "report",
    "compile",
}  # Commands that work before they check all arguments; every third call is tried.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wrong")


@pytest.fixture
def synth(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Return the command, called in this process, in a folder with files of all kinds."""
    monkeypatch.chdir(folder)
    call = caller(monkeypatch, capsys)
    if not any(folder.iterdir()):
        prepare(folder, call)
    return call


def test_cases_cover_all_commands() -> None:
    assert len({case.arguments for case in CASES}) == len(CASES) > 1000
    parameters_of_cases = {(case.command, case.where) for case in CASES}
    assert all((command, param.opts[0]) in parameters_of_cases for command, param in parameters())


@pytest.mark.parametrize("command", RIGHT)
def test_wrong_values(synth: Call, folder: Path, command: str) -> None:
    cases_of_command = [case for case in CASES if case.command == command and case.where]
    _refused(cases_of_command[:: 3 if command in SLOW else 1], synth, folder)


def test_wrong_combinations(synth: Call, folder: Path) -> None:
    _refused([case for case in CASES if not case.where], synth, folder)


def _refused(wrong_calls: list[Case], synth: Call, folder: Path) -> None:
    before, faults = contents(folder), []
    for case in wrong_calls:
        fault_text = fault(case, synth(*case.arguments))
        if not fault_text and contents(folder) != before:
            fault_text = "something was written"
            before = contents(folder)
        if fault_text:
            faults.append(f"{' '.join(map(repr, case.arguments))[:200]}: {fault_text}")
    assert not faults, "\n".join(faults)


def test_wrong_calls_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for function, right, _ in python_calls.functions().values():
        function(**right)  # The right arguments must be accepted.
    shutil.rmtree(tmp_path / "written")
    calls = list(python_calls.cases())
    assert len(calls) > 250
    faults = [
        f"{call.function}({call.argument}={call.value!r}): {fault_text}"
        for call in calls
        if (fault_text := python_calls.fault(call))
    ]
    assert not faults, "\n".join(faults)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    sorted(
        {*synth_package.__all__}
        - {
            "Collective",
            "Goal",
            "InputError",
            "MessageLost",
            "SendTable",
            "SynthError",
            "VerificationError",
            "Synthesis",
            "__version__",
            "json_kinds",
            "mscclpp_plan_dir",
        }
    ),
)
def test_calls_with_missing_or_unknown_arguments_show_a_right_one(name: str) -> None:
    """Check that the error is an InputError and a TypeError of one line, for each public function and class."""
    function = getattr(synth_package, name)
    with pytest.raises(
        InputError, match=rf"^{name}: missing a required argument: .*; it must be as in synth\.{name}\("
    ) as error:
        function()
    assert isinstance(error.value, TypeError)
    with pytest.raises(UnknownKeyword, match=rf"^{name}: has no keyword 'nosuch'; "):
        function(nosuch=1)
    with pytest.raises(InputError, match="too many positional arguments"):
        function(*[None] * 20)


@pytest.mark.parametrize("kind", [synth_package.Synthesis, synth_package.SendTable, synth_package.Selector])
def test_methods_check_their_keywords_as_functions_do(kind: type) -> None:
    """Check each public method that takes arguments, as the reference page on errors says."""
    for name, method in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(method) and len(inspect.signature(method).parameters) > 1:
            with pytest.raises(UnknownKeyword, match="has no keyword 'nosuch'"):
                method(None, nosuch=1)


def test_every_error_is_of_the_public_hierarchy() -> None:
    assert {synth_package.InputError, TypeError, ValueError} <= {*UnknownKeyword.__mro__}
    for error in (synth_package.InputError, synth_package.VerificationError, synth_package.MessageLost):
        assert issubclass(error, synth_package.SynthError)
