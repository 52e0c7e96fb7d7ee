"""Libraries of algorithms: what is in a folder, what serves a call, and writing one."""

from emit.library.index import load_index
from emit.library.lookup import choose

__all__ = ["choose", "load_index"]
