"""The public name of our torch.distributed back end: `from synth import process_group`."""

from runtime.torch.c10d.group import Group
from runtime.torch.process_group import custom, summary, using

__all__ = ["Group", "custom", "summary", "using"]
