"""All-reduce over nodes: sums within each node, then between the nodes, then the sums within each node again."""

from emit.language import Script


def algorithm(nodes: int = 2, gpus: int = 8, protocol: str = "Simple", instances: int = 1) -> Script:
    levels = Script(
        "hierarchical", "allreduce", nodes * gpus, chunks=nodes * gpus, protocol=protocol, instances=instances
    )

    def rank(node: int, gpu: int) -> int:
        return node * gpus + gpu % gpus

    for node in range(nodes):  # a ring in every node: gpu g has the node's sum of share g in the end
        for g in range(gpus):
            part = levels.chunk(rank(node, g + 1), "i", g * nodes, nodes)
            for hop in range(2, gpus + 1):
                part = levels.chunk(rank(node, g + hop), "i", g * nodes, nodes).reduce(part)
    for g in range(gpus):  # each node sums a part of the share
        for node in range(nodes):
            part = levels.chunk(rank(node, g), "i", g * nodes + node)
            for turn in range(1, nodes):
                part = part.reduce(levels.chunk(rank((node + turn) % nodes, g), "i", g * nodes + node))
            for turn in range(1, nodes):
                part.copy(rank((node + turn) % nodes, g), "i", g * nodes + node)
    for node in range(nodes):
        for g in range(gpus):
            part = levels.chunk(rank(node, g), "i", g * nodes, nodes)
            for hop in range(1, gpus):
                part = part.copy(rank(node, g + hop), "i", g * nodes)
    return levels
