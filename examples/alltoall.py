"""All-to-all in one, two or three steps: direct sends, sends through the own node, or one message per node pair."""

from synth import Script


def algorithm(nodes: int = 1, gpus: int = 8, steps: int = 1, protocol: str = "Simple", instances: int = 1) -> Script:
    ranks = nodes * gpus
    script = Script(f"alltoall{steps}", "alltoall", ranks, protocol=protocol, instances=instances)

    def slot(node: int, other: int) -> int:
        """Return the place in scratch of the blocks for another node."""
        return (other - node - 1) % nodes

    for source in range(ranks):
        node = source // gpus
        for goal in range(ranks):
            block = script.chunk(source, "i", goal)
            other, g = divmod(goal, gpus)
            if other == node or steps == 1:
                block.copy(goal, "o", source)
            elif steps == 2:  # to the rank of this node that has the goal's place in its node
                block.copy(node * gpus + g, "s", slot(node, other) * gpus + source % gpus)
            else:  # to the rank of this node that sends to the goal's node
                sender = slot(node, other) % gpus
                at = (slot(node, other) // gpus * gpus + source % gpus) * gpus + g
                block.copy(node * gpus + sender, "s", at)
    if steps == 1:
        return script
    for node in range(nodes):
        for other in range(nodes):
            if other == node:
                continue
            place = slot(node, other)
            if steps == 2:
                for g in range(gpus):
                    script.chunk(node * gpus + g, "s", place * gpus, gpus).copy(other * gpus + g, "o", node * gpus)
                continue
            first = place // gpus * gpus * gpus
            arrived = (nodes * gpus + nodes) * gpus + slot(other, node) * gpus * gpus
            message = script.chunk(node * gpus + place % gpus, "s", first, gpus * gpus)
            received = message.copy(other * gpus + place % gpus, "s", arrived)
            for source in range(gpus):
                for g in range(gpus):
                    block = received.part(source * gpus + g)
                    block.copy(other * gpus + g, "o", node * gpus + source)
    return script
