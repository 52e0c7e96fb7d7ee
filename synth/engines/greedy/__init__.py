"""The engine `route`: greedy routing and list scheduling for problems of a few ranks."""
