"""Back ends that a script adds: their names, tables that name them, and programs of calls on several at once."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from runtime.torch.added import ADDED, import_registering, known_names, register
from runtime.torch.choice import CallChoice, Chooser, Method
from runtime.torch.table import TableCall, load_table
from tests.runtime.torch.ranks import run_ranks
from topologies.errors import InputError

CALL = TableCall("allreduce", 1 << 20, "float32", (0, 1, 2, 3))


@pytest.fixture(autouse=True)
def nothing_added() -> Iterator[None]:
    """Begin and end without added back ends."""
    ADDED.clear()
    yield
    ADDED.clear()


def table(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "table.json"
    whole = {"collective": "allreduce", "ranks": 4, "min_bytes": 0}
    document = {"format": "synth-choice-1", "machine": platform.node(), "rows": [whole | row for row in rows]}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["", "gloo", "auto", "synth", "Upper", "1st", "a b", "x" * 41, 7])
def test_names_that_cannot_be_added_are_refused(name: object) -> None:
    with pytest.raises(InputError, match="the name must be"):
        register(name, lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="devices"):
        register("ucc", lambda *_: None, devices="cpu")
    assert known_names() == ("auto", "synth", "gloo")


def test_a_table_selects_an_added_back_end_by_size(tmp_path: Path) -> None:
    path = table(tmp_path, {"max_bytes": 4096, "backend": "ucc"}, {"min_bytes": 4097, "backend": "gloo"})
    with pytest.raises(InputError, match="must be synth or gloo"):
        load_table(path)
    register("ucc", lambda *_: None)
    chooser = Chooser(table=path)
    assert chooser.choose(CALL._replace(size_bytes=8)) == CallChoice(None, "by the table", added="ucc")
    assert chooser.choose(CALL) == CallChoice(None, "by the table")
    assert chooser.paths(CALL) == {"ucc", "wrapped"}
    # Calls go straight to Gloo only where it surely serves them.
    assert [(size, reason is None) for size, reason in chooser.wrapped_ranges(CALL)] == [(0, True), (4097, False)]


def test_using_and_the_variable_select_it_and_tune_measures_it() -> None:
    with pytest.raises(InputError, match="SYNTH_BACKEND=ucc"):
        Chooser(backend="ucc")
    register("ucc", lambda *_: None)
    assert Chooser(backend="ucc").choose(CALL).added == "ucc"
    assert Chooser(backend="auto").choose(CALL, Method("ucc")) == CallChoice(None, "asked for", added="ucc")
    assert Chooser(backend="auto").methods(CALL)[:2] == [Method("gloo"), Method("ucc")]


def test_modules_that_register_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fast_network.py").write_text(
        "from runtime.torch.added import register\nregister('fast', lambda *_: None)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import_registering({"SYNTH_REGISTER": "fast_network"})
    assert list(ADDED) == ["fast"]
    with pytest.raises(InputError, match="SYNTH_REGISTER=absent_module: no such module"):
        import_registering({"SYNTH_REGISTER": "absent_module"})


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_programs_on_several_back_ends_end_and_are_right(seed: int, tmp_path: Path) -> None:
    """Check random asynchronous calls of overlapping groups of 4 ranks, each on one of four back ends."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    results = [tmp_path / str(rank) for rank in range(4)]
    command = ["tests.runtime.torch.several_backends", "60", str(seed)]
    ran = run_ranks(command, f"file://{tmp_path / 'store'}", results, plain)
    assert [code for code, _ in ran] == [0] * 4, "\n".join(text for _, text in ran)
    for path in results:
        answer = json.loads(path.read_text())
        assert answer["wrong"] == []
        assert {"gloo", "synth", "second", "third"} <= set(answer["served"])
