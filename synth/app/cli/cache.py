"""The command `synth cache`, which shows and clears the answers that are kept on disk."""

from __future__ import annotations

import click

from synth.app.cli.options import cache_option, json_option, print_json
from synth.app.cli.values import StrictGroup
from synth.model.text import format_count
from synth.storage.cache import Cache, open_cache
from topologies.errors import InputError


@click.group("cache", cls=StrictGroup)
def cache() -> None:
    """Show or clear the cache of answers.

    \b
    synth cache info
    """


@cache.command("info")
@cache_option
@json_option
def _info(cache: str | None, as_json: bool) -> None:
    """Show the cache's folder, the number of its answers and their size.

    \b
    synth cache info
    """
    opened = _opened(cache)
    sizes = [path.stat().st_size for path in opened.files()]
    if as_json:
        print_json("cache", {"folder": str(opened.folder), "answers": len(sizes), "bytes": sum(sizes)})
        return
    click.echo(f"{opened.folder}: {format_count(len(sizes), 'answer')}, {sum(sizes) / 2**20:.1f} MiB")


@cache.command("clear")
@cache_option
@json_option
def _clear(cache: str | None, as_json: bool) -> None:
    """Remove all answers from the cache; the same questions are then searched again.

    \b
    synth cache clear
    """
    opened = _opened(cache)
    count, size = opened.clear()
    if as_json:
        print_json("cache", {"folder": str(opened.folder), "removed": count, "bytes": size})
        return
    click.echo(f"{opened.folder}: {format_count(count, 'answer')} removed, {size / 2**20:.1f} MiB")


def _opened(folder: str | None) -> Cache:
    """Return the cache that the option names; None stands for the usual one.

    Raises:
        InputError: The cache is turned off, a named folder does not exist, or a folder has other files only.
    """
    opened = open_cache(folder)
    if opened.folder is None:
        raise InputError("--cache none: turns the cache off; it must be a folder, and so must $SYNTH_CACHE")
    if folder is not None and not opened.folder.is_dir():
        raise InputError(f"--cache {folder}: is not a folder; it must be one with answers of synth")
    if opened.folder.is_dir() and not any(opened.files()) and any(opened.others()):
        raise InputError(f"{opened.folder}: has other files and no answers of synth; it must be a cache")
    return opened
