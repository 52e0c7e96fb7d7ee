"""The engine `messages`: few messages between nodes, each of as many chunks as can leave together."""
