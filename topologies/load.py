"""A topology by what the user calls it: a machine, several of it, a formula, or a file."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from topologies.clusters import join
from topologies.errors import InputError
from topologies.families import FAMILIES, family
from topologies.text.reader import Machine, read_text
from topologies.topology import Topology

__all__ = ["MAX_FILE_BYTES", "load", "machines"]

MAX_FILE_BYTES = 16 * 2**20
_MACHINES = Path(__file__).parent / "machines"


def machines() -> list[str]:
    """Names of the machines that come with the package, sorted."""
    return sorted(path.stem for path in _MACHINES.glob("*.toml"))


def load(spec: str | Path) -> Topology:
    """The topology that `spec` names.

    "dgx1" is a machine, "dgx-a100:4" four of it joined by their NICs, "torus:4x4,bw=50,alpha=0.7" a formula
    (GB/s and µs), "my.toml" a file in the text form, "my.toml:4" four of that. Raises InputError (one line).
    """
    if isinstance(spec, Path):
        return _file(spec).topology
    if not isinstance(spec, str) or not spec:
        raise InputError(f"topology {spec!r}: must be a text such as dgx1, dgx-a100:4, ring:8 or my.toml")
    named, _, count = spec.rpartition(":")
    if named and (named in machines() or named.endswith(".toml")):
        machine = _file(_MACHINES / f"{named}.toml" if named in machines() else Path(named))
        if not re.fullmatch(r"[1-9][0-9]{0,6}", count):
            raise InputError(
                f"topology {spec[:80]!r}: {count[:40]!r} is no number of nodes; write it as in {named[:40]}:2"
            )
        return join(machine, int(count), Path(named).name + ":" + count if "/" in named else spec)
    if spec in machines():
        return _file(_MACHINES / f"{spec}.toml").topology
    if re.split("[:,]", spec)[0] in FAMILIES:
        return family(spec)
    if spec.endswith(".toml") or "/" in spec or "\\" in spec:
        return _file(Path(spec)).topology
    raise InputError(_unknown(spec))


def _unknown(spec: str) -> str:
    known = [*machines(), *FAMILIES]
    asked = re.split("[:,]", spec)[0]
    near = get_close_matches(asked[:60].lower(), known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"topology {spec[:80]!r}: not known; {hint}machines are {', '.join(machines())}; "
        f"families are {', '.join(FAMILIES)}; or give a file that ends in .toml"
    )


def _file(path: Path) -> Machine:
    origin = str(path) if len(str(path)) <= 200 else "…" + str(path)[-200:]
    origin = origin if origin.isprintable() else repr(origin)
    try:
        # Nothing but a plain file is opened: a pipe or a device could hold the reader for ever.
        if not path.is_file():
            what = "no such file" if not path.exists() else "not a plain file"
            raise InputError(f"{origin}: {what}; give the path of a topology's .toml file")
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{origin}: cannot be read ({reason}); give a topology's .toml file") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{origin}: larger than {MAX_FILE_BYTES // 2**20} MiB; a topology's file is smaller")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"{origin}:{line}: byte {data[error.start]:#04x} is not UTF-8; save it as UTF-8"
        ) from None
    return read_text(text.replace("\r\n", "\n"), origin)
