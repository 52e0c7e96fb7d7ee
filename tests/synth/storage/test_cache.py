"""The cache: an entry is read completely or not at all, with any number of writers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.storage import cache as module
from synth.storage.cache import Cache, open_cache
from topologies.errors import InputError

KEY, OTHER = "ab" * 16, "cd" * 16


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "answers")
    assert (cache.get(KEY), cache.has(KEY)) == (None, False)
    cache.put(KEY, b"one\ntwo")
    assert (cache.get(KEY), cache.get(OTHER)) == (b"one\ntwo", None)
    assert cache.clear()[0] == 1
    assert cache.get(KEY) is None
    Cache(None).put(KEY, b"x")
    assert Cache(None).get(KEY) is None


@settings(deadline=None)
@given(st.data())
def test_a_changed_byte_or_a_missing_end_is_noticed_and_the_entry_removed(data: st.DataObject) -> None:

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        cache.put(KEY, b"what is kept")
        (path,) = cache.files()
        whole = path.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        changed = bytes(b ^ (i == at) for i, b in enumerate(whole)) if data.draw(st.booleans()) else whole[:at]
        path.write_bytes(changed)
        assert cache.get(KEY) is None
        assert not path.exists()


def test_an_answer_under_another_key_is_refused(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"kept")
    (path,) = cache.files()
    (tmp_path / OTHER[:2]).mkdir()
    path.rename(tmp_path / OTHER[:2] / OTHER)
    assert cache.get(OTHER) is None


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cache.put(KEY, b"new")
    assert [path.read_bytes()[-3:] for path in cache.files()] == [b"old"]


def test_the_cache_that_an_option_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTH_CACHE", str(tmp_path))
    assert open_cache().folder == tmp_path
    assert open_cache("none").folder is None
    (tmp_path / "file").write_text("")
    for name, message in (("", "--cache: is empty"), (str(tmp_path / "file"), "is a file")):
        with pytest.raises(InputError, match=message):
            open_cache(name)
    with pytest.raises(InputError, match="is no key"):
        Cache(tmp_path).get("../../etc/passwd")


def test_other_sources_are_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    version = module.engines_version()
    monkeypatch.setattr(module, "_PACKAGES", ("topologies",))
    module.engines_version.cache_clear()
    assert module.engines_version() != version
    module.engines_version.cache_clear()


def test_other_figures_of_the_package_are_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "synth" / "figures.toml"
    figures.parent.mkdir()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "synth" / "storage" / "cache.py"))
    versions = set()
    for share in ("share = 0.5", "share = 0.6", "share = 0.5"):
        figures.write_text(share)
        module.engines_version.cache_clear()
        versions.add(module.engines_version())
    module.engines_version.cache_clear()
    assert len(versions) == 2
