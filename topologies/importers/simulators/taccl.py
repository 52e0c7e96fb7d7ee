"""Reader of TACCL's topology files: a node with its links, and the NICs that join nodes, by their costs for 1 MB.

A file states α in µs and β in µs for a message of a given size, which only its name may state ("NDv2_1MB"). TACCL
scales the costs of files for other sizes by factors that these files do not state.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from topologies.arrays import Floats, Ints
from topologies.clusters import Machine, Nics
from topologies.costs import kind_numbers
from topologies.errors import InputError
from topologies.importers.simulators.switched import check_connected
from topologies.machines import machine_file
from topologies.text.counts import format_count
from topologies.text.fields import Fields, shown
from topologies.text.files import parse_json
from topologies.text.reader import read_machine
from topologies.topology import MAX_ALPHA_US, MAX_GBS, MIN_GBS, Topology

_MOST_GPUS = 1024
_LINKS = 1000  # Most links of a pair.
_MB_PER_GB = 1000.0  # β is in µs a MB: 1000 / β is in GB/s.
_KEY = re.compile(r'"gpus_per_node"\s*:')
_SIZE = re.compile(r"(?<![0-9])([0-9]{1,9}[ _]?[kKMG]?i?B)(?![A-Za-z0-9])")
_RIGHT = "a topology of TACCL: name, gpus_per_node, alpha, and node_betas_list or matrices links and betas"
_NDV2_LINKS_GBS = 50.0  # Links of the machine ndv2 that are two NVLinks, to which the smaller β belongs.


def is_taccl(text: str) -> bool:
    """Return whether a text is a JSON object that states GPUs per node and not the parameters of TE-CCL."""
    return text.lstrip().startswith("{") and _KEY.search(text) is not None


def read_taccl(text: str, origin: str) -> Machine:
    """Return the node of a text, with NICs where it states some.

    With matrices, `links[i][j]` links go from j to i, each with the β of the same place. One β in `node_betas_list` is
    that of a GPU's port into a switch; two are those of NDv2's double and single NVLinks. Each NIC serves the same
    number of GPUs, and all meet in one switch.

    Args:
        text: The text.
        origin: Name of the text in errors.

    Raises:
        InputError: The text states no node, costs for another size than 1 MB, or GPUs that neither links nor NICs
            connect; the message is one line.
    """
    document = parse_json(text, origin, _RIGHT)
    if not isinstance(document, Mapping):
        raise InputError(f"{origin}: is no object; it must be {_RIGHT}")
    name = document.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 200:
        raise InputError(f"{origin}: name: {shown(name)}: must be 1 to 200 printable characters")
    size = _SIZE.search(name)
    if size is not None and size[1] != "1MB":
        raise InputError(
            f"{origin}: name: {shown(name)}: costs for {size[1]}, which TACCL scales by a factor that the file does not"
            " state; it must be the file for 1MB"
        )
    fields = Fields(document, "", origin)
    nranks = fields.integer("gpus_per_node", 1, _MOST_GPUS)
    alpha_us = fields.number("alpha", 0, MAX_ALPHA_US, "µs")
    if "links" in document:
        topology = _of_matrices(document, nranks, alpha_us, origin)
    else:
        topology = _of_list(document, nranks, alpha_us, origin)
    nics = _nics(fields, nranks)
    if nics is None:
        check_connected(topology, range(nranks), origin)
    topology = replace(
        topology,
        name=name,
        summary=format_count(nranks, "GPU") + (f"; NICs: {len(nics.sends)} of {nics.gbs:.4g} GB/s" if nics else ""),
        source=f"TACCL's {Path(origin).name}",
    )
    remark = "α and β: read" + ("" if size else ", as µs and µs per MB")
    return Machine(topology, nics, (remark, "which GPUs a NIC serves is assumed") if nics else (remark,))


def _of_matrices(document: Mapping[str, Any], nranks: int, alpha_us: float, origin: str) -> Topology:
    """Return the topology of the matrices `links` and `betas`.

    Raises:
        InputError: A matrix is missing, is not square or holds a wrong number.
    """
    links = _matrix(document, "links", nranks, _LINKS, origin)
    betas = _matrix(document, "betas", nranks, math.inf, origin)
    dst, src = np.nonzero(links)
    if (src == dst).any():
        i = int(src[np.argmax(src == dst)])
        raise InputError(f"{origin}: links: row {i} links {i} to itself; the diagonal must be 0")
    with np.errstate(divide="ignore", over="ignore"):
        gbs = links[dst, src] * _MB_PER_GB / betas[dst, src]
    wrong = np.flatnonzero(~((gbs >= MIN_GBS) & (gbs <= MAX_GBS)))
    if len(wrong):
        i, j = int(dst[wrong[0]]), int(src[wrong[0]])
        raise InputError(f"{origin}: betas: row {i}, column {j}: {betas[i, j]:g} µs a MB is no cost; it must be more")
    return _topology(nranks, (), src, dst, np.full(len(src), alpha_us), gbs)


def _of_list(document: Mapping[str, Any], nranks: int, alpha_us: float, origin: str) -> Topology:
    """Return the topology of `node_betas_list`: one switch for one β, NDv2's NVLinks for two.

    `alpha_us` is the α in µs from rank to rank; `origin` names the document in errors.

    Raises:
        InputError: The list is missing, is longer, holds a wrong number, or has two for other than 8 GPUs.
    """
    betas = document.get("node_betas_list")
    if not isinstance(betas, list) or len(betas) not in (1, 2) or (len(betas) == 2 and nranks != 8):
        raise InputError(f"{origin}: node_betas_list: must be a list of one β, or of two for NDv2's 8 GPUs")
    gbs = [_gbs(Fields({"β": beta}, "", origin), "β") for beta in betas]
    if len(gbs) == 1:
        ranks, switch = np.arange(nranks), np.full(nranks, nranks)
        ends = (np.append(ranks, switch), np.append(switch, ranks))
        return _topology(nranks, ("switch",), *ends, np.full(2 * nranks, alpha_us / 2), np.full(2 * nranks, gbs[0]))
    file = machine_file("ndv2")
    ndv2 = read_machine(file.read_text(encoding="utf-8"), file.name).topology
    is_double = ndv2.bandwidth_gbs == _NDV2_LINKS_GBS
    rates = np.where(is_double, max(gbs), min(gbs))
    return _topology(nranks, (), ndv2.link_src, ndv2.link_dst, np.full(ndv2.nlinks, alpha_us), rates)


def _topology(nranks: int, switches: tuple[str, ...], src: Ints, dst: Ints, alpha_us: Floats, gbs: Floats) -> Topology:
    """Return a topology with these links, all of them NVLinks, that has no name yet."""
    return Topology("node", nranks, switches, src, dst, alpha_us, gbs, link_kind=kind_numbers("nvlink", len(src)))


def _gbs(fields: Fields, key: str) -> float:
    """Return the bandwidth in GB/s of the β of `key`, or raise InputError where there is none in its range."""
    return _MB_PER_GB / fields.number(key, _MB_PER_GB / MAX_GBS, _MB_PER_GB / MIN_GBS, "µs a MB")


def _nics(fields: Fields, nranks: int) -> Nics | None:
    """Return the NICs of the node; None where the file states none (or TACCL's -1).

    Raises:
        InputError: A figure is wrong, or the GPUs do not share the NICs equally.
    """
    if fields.values.get("nics_per_node", -1) == -1:
        return None
    count = fields.integer("nics_per_node", 1, nranks)
    if nranks % count:
        fields.fail("nics_per_node", f"{count} for {nranks} GPUs; it must divide their number")
    gbs, alpha_us = _gbs(fields, "remote_beta"), fields.number("remote_alpha", 0, MAX_ALPHA_US, "µs")
    served = tuple(np.split(np.arange(nranks), count))
    return Nics(served, served, gbs, alpha_us, assumed=False, fabrics=1)


def _matrix(document: Mapping[str, Any], key: str, size: int, most: float, origin: str) -> Floats:
    """Return the square matrix of `key`: float64 (size, size).

    Args:
        document: The document.
        key: The key.
        size: Number of rows and columns.
        most: Largest number; a finite one asks for whole numbers.
        origin: Name of the document in errors.

    Raises:
        InputError: There is no such matrix, or a number is negative, too large or none.
    """
    rows = document.get(key)
    if not isinstance(rows, list) or len(rows) != size:
        raise InputError(f"{origin}: {key}: must be a list of {size} rows, a row for each GPU")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != size:
            raise InputError(f"{origin}: {key}: row {i} must be a list of {size} numbers")
        for value in row:
            is_number = type(value) is int or (type(value) is float and not math.isfinite(most))
            if not is_number or not 0 <= value <= min(most, 1e300):
                raise InputError(f"{origin}: {key}: row {i} holds {shown(value)}; it must be a number, 0 or more")
    return np.array(rows, dtype=np.float64)
