"""Small training jobs with the communication of large ones: experts with all-to-alls, a DLRM, a dense transformer.

Each is a loop that a rank of torch.distributed runs, and really trains: losses fall, and they are the same whatever
back end serves the calls. The three are those of MCR-DL's evaluation (DeepSpeed-MoE, DLRM and a dense Megatron), made
small enough for two cores and slow links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, softmax
from torch.nn.parallel import DistributedDataParallel

HIDDEN, TOKENS, LAYERS = 64, 1024, 2  # Of the experts: values of a token, tokens of a rank, layers.
DIMENSION, TABLES, ROWS, SAMPLES = 64, 2, 500, 128  # Of the DLRM: values of a row, tables of a rank, rows, samples.
WIDTH, LENGTH, BATCH, VOCABULARY = 128, 16, 4, 64  # Of the transformer.


class _Exchange(torch.autograd.Function):
    """An all-to-all of rows whose gradients take the opposite path."""

    @staticmethod
    def forward(context: Any, rows: Any, received: Sequence[int], sent: Sequence[int]) -> Any:
        """Return the rows that come from all ranks, `received` from each, where `sent` go to each."""
        context.sizes = sent, received
        output = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(output, rows.contiguous(), list(received), list(sent))
        return output

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradients of the rows that were sent."""
        return _Exchange.apply(gradients[0], *context.sizes), None, None


class Experts(nn.Module):
    """A layer of experts, one a rank: each token goes to the expert that its router scores highest, and back."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, ranks)
        self.expert = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))

    def forward(self, tokens: Any) -> Any:
        """Return the tokens with what their experts add to them, scaled by the router's score."""
        scores = softmax(self.router(tokens), dim=1)
        best, expert_of_token = scores.max(dim=1)
        order = expert_of_token.argsort(stable=True)
        sent = torch.bincount(expert_of_token, minlength=scores.shape[1])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sizes = received.tolist(), sent.tolist()
        results = _Exchange.apply(self.expert(_Exchange.apply(tokens[order], *sizes)), *sizes[::-1])
        return tokens + best[:, None] * torch.zeros_like(tokens).index_copy(0, order, results)


class Recommender(nn.Module):
    """A DLRM: each rank holds some tables of embeddings, and all-to-alls bring each rank the rows of its samples."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, DIMENSION) for _ in range(TABLES))
        self.bottom = nn.Sequential(nn.Linear(13, DIMENSION), nn.ReLU())
        self.top = nn.Sequential(nn.Linear((TABLES * ranks + 1) * DIMENSION, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Any, indices: Any) -> Any:
        """Return a score for each of this rank's samples.

        Args:
            dense: Values of this rank's samples, shape (samples, 13).
            indices: Rows that the samples of all ranks look up in this rank's tables, shape (tables, ranks · samples).
        """
        ranks = dist.get_world_size()
        rows = torch.stack([table(of_table) for table, of_table in zip(self.tables, indices, strict=True)], dim=1)
        equal = [len(dense)] * ranks
        exchanged = _Exchange.apply(rows, equal, equal).view(ranks, len(dense), -1)
        return self.top(torch.cat([self.bottom(dense), exchanged.transpose(0, 1).flatten(1)], dim=1))


class Transformer(nn.Module):
    """A dense language model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        """Return the scores of the next token at each place."""
        return self.head(self.layers(self.embedding(tokens)))


def _average(parameters: Sequence[Any]) -> None:
    """Average the gradients of parameters that all ranks have, with one all-reduce."""
    flat = torch.cat([parameter.grad.view(-1) for parameter in parameters])
    dist.all_reduce(flat, dist.ReduceOp.AVG)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def _stepper(
    model: Any, shared: Sequence[Any], loss_of_step: Callable[[torch.Generator], Any], rank: int
) -> Callable[[], float]:
    """Return a function that trains one step, on examples of its own, and returns this rank's loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1 + rank)

    def step() -> float:
        """Train one step, and return this rank's loss."""
        optimizer.zero_grad()
        loss = loss_of_step(generator)
        loss.backward()
        if shared:
            _average(shared)
        optimizer.step()
        return float(loss.detach())

    return step


def experts() -> Callable[[], float]:
    """Return the step of a mixture of experts that learns a function of its tokens; routers are the same on all ranks.

    Most tokens are alike, so that some experts have more of them than others.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.Sequential(*(Experts(ranks) for _ in range(LAYERS)))
    kinds = torch.randn(2 * ranks, HIDDEN)
    shares = 1.0 / torch.arange(1, 2 * ranks + 1)

    def loss(generator: torch.Generator) -> Any:
        """Return the mean squared error of a step's tokens."""
        kind = torch.multinomial(shares, TOKENS, replacement=True, generator=generator)
        tokens = kinds[kind] + 0.3 * torch.randn(TOKENS, HIDDEN, generator=generator)
        return (layers(tokens) - tokens.sin()).square().mean()

    return _stepper(layers, [p for layer in layers for p in layer.router.parameters()], loss, rank)


def recommender() -> Callable[[], float]:
    """Return the step of a DLRM that learns the sign of a sum of a sample's values."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Recommender(ranks)

    def loss(generator: torch.Generator) -> Any:
        """Return the mean squared error of a step's samples."""
        dense = torch.randn(SAMPLES, 13, generator=generator)
        indices = torch.randint(ROWS, (TABLES, ranks * SAMPLES), generator=generator)
        return (model(dense, indices).squeeze(1) - dense.sum(1).sign()).square().mean()

    shared = [*model.bottom.parameters(), *model.top.parameters()]
    return _stepper(model, shared, loss, rank)


def transformer() -> Callable[[], float]:
    """Return the step of a dense transformer, whose gradients DistributedDataParallel averages."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer(), bucket_cap_mb=0.5)

    def loss(generator: torch.Generator) -> Any:
        """Return the cross entropy of the next token of sequences that count up."""
        first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
        tokens = (first + 3 * torch.arange(LENGTH + 1)) % VOCABULARY
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return _stepper(model, (), loss, dist.get_rank())


WORKLOADS: dict[str, Callable[[], Callable[[], float]]] = {
    "mixture of experts": experts,
    "DLRM": recommender,
    "dense transformer": transformer,
}
