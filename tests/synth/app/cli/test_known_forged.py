"""Forged answers in a cache: the digest is right, and the content is not."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from synth.storage.bundle import pack, unpack
from synth.storage.cache import Cache
from tests.synth.app.cli.calling import Call, caller

# The route is optimal at once.
ASKED = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--budget", "5s")
OTHERS = {
    "another network": ("allgather", "--topo", "mesh:2x2", "--engine", "route", "--size", "1M", "--budget", "5s"),
    "another size": ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "64K", "--budget", "5s"),
    "another collective": ("broadcast", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--budget", "5s"),
}
About = dict[str, Any]
Files = dict[str, bytes]


@pytest.fixture
def synth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNTH_CACHE", str(tmp_path / "cache"))
    return caller(monkeypatch, capsys)


# The key and the bundle of each question, as a search stored them.
_searched: dict[tuple[str, ...], tuple[str, bytes]] = {}


def cached_answer(synth: Call, *arguments: str) -> tuple[str, About, Files]:
    """Return the key and the content that the cache stores for a question."""
    if arguments not in _searched:
        synth(*arguments, "--out", "searched", "--replace")
        [path] = [path for path in Path("cache").glob("??/*") if path.is_file()]
        data = Cache(Path("cache")).get(path.name)
        assert data is not None
        _searched[arguments] = path.name, data
        synth("cache", "clear")
    key, data = _searched[arguments]
    return key, *unpack(data, "answer")


def edit_proof(files: Files, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(files["bound.proof.json"])
    change(document)
    files["bound.proof.json"] = json.dumps(document).encode()


def claim_more(document: dict[str, Any]) -> None:
    """Raise the bound to the schedule's time, in every number that states it."""
    document["bound_us"], document["gap"] = document["time_us"], 1.0
    for witness in document["witnesses"]:
        witness["base_us"] = document["time_us"]


def break_program(files: Files) -> None:
    name = next(name for name in files if name.endswith(".xml"))
    files[name] = files[name].replace(b'type="s"', b'type="nop"', 1)


def first_range(about: About) -> About:
    return dict(about["forms"][0][0])


FORGERIES: dict[str, Callable[[About, Files], object]] = {
    "a name that climbs": lambda _about, files: files.update({"../outside": b"x"}),
    "an absolute name": lambda _about, files: files.update({"/tmp/outside": b"x"}),
    "an entry whose file climbs": lambda about, _files: about["forms"][0][0]["entry"].update(file="../outside.xml"),
    "a bound that is the time": lambda _about, files: edit_proof(files, claim_more),
    "a witness of another link": lambda _about, files: edit_proof(
        files, lambda document: document["witnesses"][0].update(us_per_byte=1.0, per_byte_us=1.0)
    ),
    "a program that deadlocks": lambda _about, files: break_program(files),
    "no program": lambda _about, files: files.pop(next(name for name in files if name.endswith(".xml"))),
    "no schedule": lambda _about, files: files.pop("0.synth"),
    "no proof": lambda _about, files: files.pop("bound.proof.json"),
    "other sizes": lambda about, _files: about["forms"][0][0].update(low=1 << 16, high=1 << 16, shown=1 << 16),
    "sizes of the entry": lambda about, _files: about["forms"][0][0]["entry"].update(min_bytes=1),
    "a target": lambda about, _files: about["forms"][0][0]["entry"].update(target="mscclpp"),
    "a form of calls": lambda about, _files: about["forms"][0][0]["entry"].update(inplace=False),
    "no ranges": lambda about, _files: about.update(forms=[[]]),
    "an algorithm that is not there": lambda about, _files: about["forms"][0][0].update(algorithm=7),
    "a negative place": lambda about, _files: about["forms"][0][0].update(algorithm=-1),
    "words with an escape": lambda about, _files: about["forms"][0][0].update(refused="\x1b[2J"),
    "seconds that are none": lambda about, _files: about.update(seconds="long"),
    "baselines that are none": lambda about, _files: about.update(baselines=[[["a"]]], refused=[3]),
    "a list in place of a number": lambda about, _files: about.update(decisive=[0]),
    "nothing": lambda about, _files: about.clear(),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_answer_is_refused_and_searched(synth: Call, name: str, tmp_path: Path) -> None:
    key, about, files = cached_answer(synth, *ASKED)
    before = set(tmp_path.parent.iterdir())
    FORGERIES[name](about, files)
    Cache(Path("cache")).put(key, pack(about, files))
    answer = synth(*ASKED, "--out", "forged")
    assert "the cache's answer is not believed" in answer.err
    assert "from the cache" not in answer.out
    assert set(tmp_path.parent.iterdir()) == before
    assert not Path("/tmp/outside").exists()
    assert "from the cache" in synth(*ASKED, "--out", "again").out  # The forged answer was replaced.


@pytest.mark.parametrize("name", OTHERS)
def test_an_answer_to_another_question_under_the_same_key_is_refused(synth: Call, name: str) -> None:
    _, about, files = cached_answer(synth, *OTHERS[name])
    key, _, _ = cached_answer(synth, *ASKED)
    Cache(Path("cache")).put(key, pack(about, files))
    assert "from the cache" not in synth(*ASKED, "--out", "forged").out


def test_figures_of_an_entry_are_worked_out_again(synth: Call) -> None:
    key, about, files = cached_answer(synth, *ASKED)
    entry = about["forms"][0][0]["entry"]
    right = {name: entry[name] for name in ("time_us", "bound_us", "gap", "proof", "curve", "vs_baseline")}
    entry |= {
        "time_us": 1e-3,
        "bound_us": 1e-3,
        "gap": 1.0,
        "proof": "optimal: by decree",
        "curve": [],
        "vs_baseline": 9,
    }
    Cache(Path("cache")).put(key, pack(about, files))
    answer = json.loads(synth(*ASKED, "--out", "forged", "--json").out)
    assert answer["cached"]
    assert {name: answer["algorithms"][0][name] for name in right} == right


@pytest.mark.parametrize("stated", [[], [[]], [["", "ring"]], [[["a"]]]])
def test_times_of_libraries_are_not_read_from_a_cache(synth: Call, stated: list[Any]) -> None:
    key, about, files = cached_answer(synth, *ASKED)
    Cache(Path("cache")).put(key, pack({**about, "baselines": stated}, files))
    honest = about["forms"][0][0]["entry"]["vs_baseline"]
    assert json.loads(synth(*ASKED, "--out", "forged", "--json").out)["algorithms"][0]["vs_baseline"] == honest


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\x1f\x8b\x08\x00", b"null", b"[" * 60_000])
def test_a_cached_file_that_is_no_answer_is_searched_for(synth: Call, content: bytes) -> None:
    key, _, _ = cached_answer(synth, *ASKED)
    for data in (content, gzip.compress(content)):
        Cache(Path("cache")).put(key, data)
        assert "from the cache" not in synth(*ASKED, "--out", "forged").out


def test_a_small_bundle_does_not_fill_the_memory() -> None:
    whole = BytesIO()
    with gzip.GzipFile(fileobj=whole, mode="wb") as stream:
        stream.write(b'{"files": {"zeros": 4294967296}}\n' + bytes(1 << 20))
    with pytest.raises(ValueError, match="must be at most"):
        unpack(whole.getvalue(), "answer")


def test_a_cache_that_others_can_write_is_named(synth: Call) -> None:
    Path("cache").mkdir()
    os.chmod("cache", 0o777)
    assert "other users can write to the cache" in synth(*ASKED, "--out", "two").err
