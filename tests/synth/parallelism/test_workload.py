"""Workloads: what files state, formulas, and refusals in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from synth.parallelism.axes import Axis
from synth.parallelism.formula import evaluate
from synth.parallelism.workload import Call, read_workload, ready
from topologies.errors import InputError

EXAMPLES = Path(__file__).parents[3] / "examples" / "workloads"
AXES = (Axis("pp", 2), Axis("dp", 2), Axis("tp", 8))


def written(folder: Path, text: str) -> str:
    path = folder / "step.toml"
    path.write_text(text)
    return str(path)


CALL = '[[call]]\ncollective = "all_reduce"\nover = ["dp"]\nbytes = "1G"\n'


def test_a_file_of_calls(tmp_path: Path) -> None:
    text = (
        CALL + 'times = 3\n[[call]]\nname = "x"\ncollective = "alltoall"\nover = ["tp", "pp"]\nbytes = "2 * 3 + tp"\n'
    )
    workload = read_workload(written(tmp_path, text), AXES)
    assert workload.calls == (
        Call("call 1", "allreduce", (1,), 1 << 30, 3.0),
        Call("x", "alltoall", (0, 2), 14),
    )
    assert workload.phases == ((0,), (1,))


def test_calls_overlap_only_where_all_of_a_phase_allow_it(tmp_path: Path) -> None:
    names = {"a": [], "b": ["a"], "c": ["a"], "d": []}
    text = "".join(f'{CALL}name = "{name}"\noverlaps = {overlaps}\n' for name, overlaps in names.items())
    assert read_workload(written(tmp_path, text), AXES).phases == ((0, 1), (2,), (3,))


@pytest.mark.parametrize("name", list(ready()))
def test_built_in_descriptions_hold_on_any_of_their_axes(name: str) -> None:
    assert ready()[name]
    whole = read_workload(name, tuple(Axis(a, 2) for a in ("pp", "dp", "ep", "tp")))
    only = read_workload(name, (Axis("dp", 4),))
    assert {call.name for call in only.calls} <= {call.name for call in whole.calls}
    assert all(call.over == (0,) for call in only.calls)


def test_a_base_is_used_with_other_values(tmp_path: Path) -> None:
    text = 'base = "dense"\n[values]\nhidden = 8192\n'
    own, base = read_workload(written(tmp_path, text), AXES), read_workload("dense", AXES)
    assert own.calls[0].size_bytes == 2 * base.calls[0].size_bytes
    (tmp_path / "below.toml").write_text('base = "step.toml"\n[values]\nhidden = 4096\n')
    assert read_workload(str(tmp_path / "below.toml"), AXES).calls == base.calls


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_name_their_sources(path: Path) -> None:
    source = tomllib.loads(path.read_text())["source"]
    assert "arXiv" in source or "config.json on Hugging Face" in source
    axes = tuple(Axis(name, 4) for name in ("pp", "dp", "ep", "tp"))
    assert read_workload(str(path), axes).calls


def test_llama_and_deepseek_have_their_parameters() -> None:
    """Check 405 billion and 671 billion parameters, the latter with a small dense part; no axis is split."""
    axes = (Axis("pp", 1), Axis("dp", 2))
    llama = {call.name: call for call in read_workload(str(EXAMPLES / "llama-3-405b.toml"), axes).calls}
    assert llama["gradient reduce-scatter"].size_bytes / 4 == pytest.approx(405e9, rel=0.01)
    deepseek = {call.name: call for call in read_workload(str(EXAMPLES / "deepseek-v3.toml"), axes).calls}
    assert sum(call.size_bytes for name, call in deepseek.items() if "gradients" in name) / 4 == pytest.approx(
        671e9, rel=0.02
    )


def test_dense_moves_as_much_as_megatron_states() -> None:
    calls = {call.name: call for call in read_workload("dense", AXES).calls}
    gathered = calls["sequence all-gather"]
    assert gathered.size_bytes == 8192 * 4096 * 2
    assert gathered.times == 4 * 16 * 8  # Layers of a stage, times micro-batches.
    parameters = 32 * (4096 * 10240 + 3 * 4096 * 14336) + 2 * 128256 * 4096
    assert calls["gradient reduce-scatter"].size_bytes == parameters * 4 / 16


@pytest.mark.parametrize(
    ("text", "value"), [("1 + 2 * 3", 7), ("-(a - 5) / 2", 1.5), ("ceil(a / 4) * max(1, a)", 2), ("1e3", 1000)]
)
def test_formulas(text: str, value: float) -> None:
    assert evaluate(text, {"a": 2.0}, "here") == value


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "a.real", "2 ** 9", "[1][0]", "a if a else 1", "1 / 0", "b", "", "(" * 3000, "1e400", "max()"],
)
def test_a_text_that_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^here: "):
        evaluate(text, {"a": 2.0}, "here")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CALL.replace('"dp"', '"dq"'), r"step.toml: call 1 over: 'dq' is no axis; did you mean dp"),
        (CALL.replace('"1G"', '"-1G"'), r"call 1 bytes: '-1G' is negative"),
        (CALL.replace('"1G"', "-5"), r"call 1 bytes: '-5' is negative"),
        (CALL.replace('"1G"', '"0 * tp"'), r"call 1 bytes: .* must be more than 0 bytes"),
        (CALL.replace('"1G"', '"hidden * 2"'), r"'hidden' has no value"),
        (CALL + "times = -1\n", "call 1 times: -1 is out of range; it must be more than 0"),
        (CALL + 'overlaps = ["x"]\n', "call 1 overlaps: 'x' is no call"),
        (CALL + "size = 4\n", "call 1: field 'size' is not known"),
        (CALL.replace("all_reduce", "allredduce"), "call 1: collective: 'allredduce' is not known; did you mean"),
        (CALL.replace("all_reduce", "alltoallv"), "needs sizes of blocks"),
        (CALL.replace('over = ["dp"]\n', ""), "call 1: has no over"),
        ("", "has no calls"),
        ("call = 3", "has no calls"),
        ("[[call]", "is no TOML"),
        ('axes = ["cp"]\n' + CALL.replace('"dp"', '"cp"'), "no call is over an axis of more than one rank"),
        ("[values]\ntp = 3\n" + CALL, "values.tp: is the name of an axis"),
        ('base = "step.toml"\n' + CALL, "base 'step.toml'; it must be another"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(InputError, match=line) as refused:
        read_workload(written(tmp_path, text), AXES)
    assert "\n" not in str(refused.value)


def test_an_unknown_workload_is_refused_with_the_known_names() -> None:
    with pytest.raises(InputError, match=r"'dens' is not known; did you mean dense\?; it must be FILE.toml or dense"):
        read_workload("dens", AXES)


# Published numbers of parameters in 10⁹, vocabulary, and parameters of dense networks that the files leave out.
PUBLISHED = {
    "mixtral-8x7b": (46.7, 32000, 0.0),
    "deepseek-v2": (236.0, 102400, 3 * 5120 * 12288),
    "deepseek-v3": (671.0, 129280, 3 * 3 * 7168 * 18432),
    "qwen3-30b-a3b": (30.5, 151936, 0.0),
    "qwen3-235b-a22b": (235.0, 151936, 0.0),
    "llama-4-maverick": (400.0, 202048, 0.0),
    "gpt-oss-120b": (116.8, 201088, 0.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_examples_have_the_parameters_of_their_models(name: str) -> None:
    """Check an example by its gradients, which are in 4 bytes a parameter, and by its calls of experts."""
    axes = [Axis("dp", 2), Axis("ep", 4)]
    calls = {call.name: call for call in read_workload(str(EXAMPLES / f"{name}.toml"), axes).calls}
    shared = calls["gradients of what all replicas have"].size_bytes / 4
    experts = calls["gradients of experts"].size_bytes * 4 / 4
    billions, vocabulary, dense = PUBLISHED[name]
    hidden = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())["values"]["hidden"]
    assert (shared + experts + dense + 2 * vocabulary * hidden) / 1e9 == pytest.approx(billions, rel=0.015)
    dispatch, combine = calls["dispatch to experts"], calls["combine from experts"]
    assert dispatch.collective == combine.collective == "alltoall"
    assert dispatch.size_bytes <= combine.size_bytes
