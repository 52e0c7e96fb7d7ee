"""Check that a placement of experts is one; this file shares nothing with the search."""

from __future__ import annotations

import numpy as np

from synth.model.collective import Ints
from topologies.errors import VerificationError


def check_placement(placement: Ints, nranks: int, slots: int, nexperts: int) -> None:
    """Check the placement of a layer.

    Args:
        placement: Expert in each slot: int64, shape (ranks, slots).
        nranks: Number of ranks.
        slots: Slots of each rank.
        nexperts: Number of experts.

    Raises:
        VerificationError: It has another shape, a slot holds no expert, a rank holds one twice, or one is nowhere.
    """
    if placement.shape != (nranks, slots):
        raise VerificationError(f"placement: has shape {placement.shape}; it must be {(nranks, slots)}")
    if placement.dtype.kind != "i" or (placement < 0).any() or (placement >= nexperts).any():
        raise VerificationError(f"placement: a slot holds no expert; it must be from 0 to {nexperts - 1}")
    for rank, experts in enumerate(placement.tolist()):
        if len(set(experts)) < slots:
            raise VerificationError(f"placement: rank {rank} holds an expert twice; its experts must differ")
    missing = np.setdiff1d(np.arange(nexperts), placement)
    if len(missing):
        raise VerificationError(f"placement: no rank holds expert {missing[0]}; each expert must be on a rank")
