"""Libraries of algorithms: what is in a folder, what serves a call, and writing one."""

from emit.library.index import load_index
from emit.library.overlay import load_library
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose
from emit.library.selection.selector import Selector

__all__ = ["LibraryCall", "Selector", "choose", "load_index", "load_library"]
