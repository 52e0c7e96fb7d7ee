"""Libraries of algorithms: what is in a folder, what serves a call, and writing one."""

from emit.library.index import choose, load_index

__all__ = ["choose", "load_index"]
