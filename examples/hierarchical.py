"""All-reduce over nodes: reduce inside each node, all-reduce between nodes, then spread the sums inside each node."""

from synth import Script


def algorithm(nodes: int = 2, gpus: int = 8, protocol: str = "Simple", instances: int = 1) -> Script:
    levels = Script(
        "hierarchical", "allreduce", nodes * gpus, chunks=nodes * gpus, protocol=protocol, instances=instances
    )

    def rank(node: int, gpu: int) -> int:
        return node * gpus + gpu % gpus

    for node in range(nodes):  # A ring in every node: at its end GPU g holds the node's sum of share g.
        for g in range(gpus):
            part = levels.chunk(rank(node, g + 1), "i", g * nodes, nodes)
            for hop in range(2, gpus + 1):
                part = levels.chunk(rank(node, g + hop), "i", g * nodes, nodes).reduce(part)
    for g in range(gpus):  # Each node sums a part of the share over all nodes.
        for node in range(nodes):
            part = levels.chunk(rank(node, g), "i", g * nodes + node)
            for shift in range(1, nodes):
                part = part.reduce(levels.chunk(rank((node + shift) % nodes, g), "i", g * nodes + node))
            for shift in range(1, nodes):
                part.copy(rank((node + shift) % nodes, g), "i", g * nodes + node)
    for node in range(nodes):
        for g in range(gpus):
            part = levels.chunk(rank(node, g), "i", g * nodes, nodes)
            for hop in range(1, gpus):
                part = part.copy(rank(node, g + hop), "i", g * nodes)
    return levels
