"""Faults planted in the text of right files, and the readers that refuse or crash on each."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from emit.msccl.format import write_msccl
from emit.targets import TARGETS
from tests.emit.right_programs import Right
from topologies.errors import InputError

READERS = frozenset(target.name for target in TARGETS.values() if target.format == "msccl")
_NCCL = frozenset({"executor-nccl", "rccl"})
_MSCCL = frozenset({"msccl"})

# By fault: a pattern, the text that replaces it once, and the readers that do not accept the result.
WAYS: dict[str, tuple[str, str, frozenset[str]]] = {
    "no outofplace": (r' outofplace="\d"', "", _NCCL),
    "no minBytes": (r' minBytes="\d+"', "", _NCCL),
    "no maxBytes": (r' maxBytes="\d+"', "", _NCCL),
    "no name": (r' name="[^"]*"', "", _MSCCL),
    "no depid": (r' depid="-?\d+"', "", READERS),
    "attributes behind 16 others": ("<step ", "<step " + " ".join(f'{x}=""' for x in "abcdefg") + " ", READERS),
    "blanks that take the place of attributes": ("<step ", "<step " + " " * 7, READERS),
    "a value of 256 characters": (r' name="[^"]*"', f' name="{"x" * 256}"', READERS),
    "a tab in a tag": (" proto=", "\tproto=", READERS),
    "a newline in a tag": (" proto=", "\nproto=", READERS),
    "a blank beside =": (" proto=", " proto =", READERS),
    "a declaration": ("<algo ", '<?xml version="1.0"?>\n<algo ', READERS),
    "text outside a tag": ("<gpu ", "here <gpu ", READERS),
    "an element in a step": (r'(hasdep="\d")/>', r"\1><x/></step>", READERS),
    "a tag that is not closed": ("</tb>", "", READERS),
    "another element first": ("<algo ", "<x/><algo ", _NCCL),
    "more channels than there are": (r' nchannels="\d+"', ' nchannels="200"', READERS),
    "a channel that is never connected": (r' nchannels="\d+"', ' nchannels="0"', READERS),
    "a threadblock without number 0": (r'<tb id="0"', '<tb id="777"', READERS),
    "a step number over all limits": (r'<step s="0"', '<step s="256"', READERS),
    "a spelling of reducescatter": (r' coll="reducescatter"', ' coll="reduce_scatter"', _NCCL),
    "scratch that no device has": (r' maxBytes="\d+"', f' maxBytes="{1 << 61}"', _MSCCL),
    "threads that are no warps": (r"(<algo [^>]*)>", r'\1 nthreads="33">', _MSCCL),
    "a custom collective of shorter buffers": (r' coll="\w+"', ' coll="custom"', READERS),
}


def changed_texts(
    fault: str, rights: Sequence[Right], number: int, seed: int = 0
) -> list[tuple[Right, str, str, frozenset[str]]]:
    """Return (program, right text, faulty text, readers that do not accept it) of files with a fault."""
    pattern, new, refusing = WAYS[fault]
    rng = random.Random(f"{fault} {seed}")
    results: list[tuple[Right, str, str, frozenset[str]]] = []
    for right in rng.sample(rights, len(rights)):
        if len(results) == number:
            break
        program = right.program
        if fault.startswith("scratch") and not any(gpu.s_chunks * 8 > program.nchunks_per_loop for gpu in program.gpus):
            continue
        full_sizes = {0, program.nchunks_per_loop}
        if fault.startswith("a custom") and all({g.i_chunks, g.o_chunks} <= full_sizes for g in program.gpus):
            continue
        if fault.startswith("a channel") and not any(tb.send >= 0 for gpu in program.gpus for tb in gpu.threadblocks):
            continue
        try:
            text = write_msccl(program, right.goal)
        except InputError:
            continue  # The format has no name for the program's collective.
        faulty = re.sub(pattern, new, text, count=1)
        if faulty != text:
            results.append((right, text, faulty, refusing))
    return results
