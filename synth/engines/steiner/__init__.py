"""The engine `steiner`: trees through relays and over shared links, packed by a linear program, and pipelined."""
