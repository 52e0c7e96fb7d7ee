"""The engine `steiner`: trees through relays and shared links, packed by a linear program, and pipelined."""
