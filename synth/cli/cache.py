"""`synth cache`: the answers that are kept on disk."""

from __future__ import annotations

import click

from synth.cli.options import cache_option, json_option, print_json
from synth.cli.values import StrictGroup
from synth.present.text import format_count
from synth.storage.cache import Cache, open_cache
from topologies.errors import InputError


@click.group("cache", cls=StrictGroup)
def cache() -> None:
    """Answers that are kept: where, how many, and away with them.

    \b
    synth cache info
    """


@cache.command("info")
@cache_option
@json_option
def _info(cache: str | None, as_json: bool) -> None:
    """Where they are, how many, and how large.

    \b
    synth cache info
    """
    one = _opened(cache)
    sizes = [path.stat().st_size for path in one.files()]
    if as_json:
        print_json({"folder": str(one.folder), "answers": len(sizes), "bytes": sum(sizes)})
        return
    click.echo(f"{one.folder}: {format_count(len(sizes), 'answer')}, {sum(sizes) / 2**20:.1f} MiB")


@cache.command("clear")
@cache_option
@json_option
def _clear(cache: str | None, as_json: bool) -> None:
    """Remove all of them; what is asked again is searched again.

    \b
    synth cache clear
    """
    one = _opened(cache)
    count, size = one.clear()
    if as_json:
        print_json({"folder": str(one.folder), "removed": count, "bytes": size})
        return
    click.echo(f"{one.folder}: {format_count(count, 'answer')} removed, {size / 2**20:.1f} MiB")


def _opened(given: str | None) -> Cache:
    one = open_cache(given)
    if one.folder is None:
        raise InputError("--cache none: is no cache; it must be a folder, as $SYNTH_CACHE must be")
    return one
