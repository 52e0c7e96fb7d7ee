"""Lists of uneven shards: whole parameters of published models, each owned by one rank.

Optimizers that need whole matrices (Shampoo, Muon) give each parameter to one rank, which updates it; the others get it
by an uneven all-gather, and its gradient reaches its owner by an uneven reduce-scatter.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

BYTES = 2  # of an element in bfloat16


@dataclass(frozen=True)
class Model:
    """The shapes of a published decoder's parameters, from its config.json on Hugging Face.

    Attributes:
        name: Name of the model.
        hidden: Width of the residual stream.
        layers: Number of layers.
        inner: Width of the feed-forward network.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        head: Width of a head.
        vocabulary: Number of tokens.
        has_bias: Whether the projections to queries, keys and values have biases.
    """

    name: str
    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    has_bias: bool = False

    def layer(self) -> list[tuple[int, ...]]:
        """Return the shapes of one layer's parameters in their order in the model."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        projections = [(queries, self.hidden), (keys, self.hidden), (keys, self.hidden)]
        biases = [(queries,), (keys,), (keys,)] * self.has_bias
        feed_forward = [(self.inner, self.hidden), (self.inner, self.hidden), (self.hidden, self.inner)]
        norms = [(self.hidden,), (self.hidden,)]
        return [*projections, *biases, (self.hidden, queries), *feed_forward, *norms]


MODELS = (
    Model("Llama-3.2-1B", 2048, 16, 8192, 32, 8, 64, 128256),
    Model("Llama-3.1-8B", 4096, 32, 14336, 32, 8, 128, 128256),
    Model("Llama-3.1-70B", 8192, 80, 28672, 64, 8, 128, 128256),
    Model("Mistral-7B-v0.1", 4096, 32, 14336, 32, 8, 128, 32000),
    Model("Qwen2.5-0.5B", 896, 24, 4864, 14, 2, 64, 151936, has_bias=True),
    Model("Qwen2.5-7B", 3584, 28, 18944, 28, 4, 128, 152064, has_bias=True),
    Model("Phi-3-mini-4k", 3072, 32, 8192, 32, 32, 96, 32064),
    Model("gemma-2-9b", 3584, 42, 14336, 16, 8, 256, 256000),
    Model("SmolLM2-135M", 576, 30, 1536, 9, 3, 64, 49152),
)
PARTS = ("a layer", "four layers", "vectors", "matrices", "embedding and a layer")
OWNERS = ("in order", "in turn", "largest first")


def owner_shards(nranks: int, seed: int, number: int) -> tuple[str, tuple[int, ...]]:
    """Return an owner-sharded list drawn by a seed: its description, and the bytes that each rank owns.

    The parameters of a part of a model are given to ranks in equal runs by bytes, in turn, or the largest first to the
    rank with the least so far. A list in which fewer than two ranks own something is drawn again.
    """
    rng = random.Random(f"{seed} layout {number}")
    while True:
        model, part, owners = rng.choice(MODELS), rng.choice(PARTS), rng.choice(OWNERS)
        sizes = [BYTES * prod(shape) for shape in _shapes(model, part)]
        shards = _shards(sizes, owners, nranks)
        if sum(shard > 0 for shard in shards) > 1:
            return f"{model.name}, {part}, {owners}", tuple(shards)


def _shapes(model: Model, part: str) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters of one of PARTS."""
    layer = model.layer()
    return {
        "a layer": layer,
        "four layers": layer * 4,
        "vectors": [shape for shape in layer if len(shape) == 1] * model.layers,
        "matrices": [shape for shape in layer if len(shape) > 1] * 2,
        "embedding and a layer": [(model.vocabulary, model.hidden), *layer],
    }[part]


def _shards(sizes: list[int], owners: str, nranks: int) -> list[int]:
    """Return the bytes of each rank, if owners are chosen as one of OWNERS says."""
    shards = [0] * nranks
    before, total = 0, sum(sizes)
    for number, size in enumerate(sorted(sizes, reverse=True) if owners == "largest first" else sizes):
        if owners == "in order":
            rank = (before + size // 2) * nranks // total
        elif owners == "in turn":
            rank = number % nranks
        else:
            rank = shards.index(min(shards))
        shards[rank] += size
        before += size
    return shards
