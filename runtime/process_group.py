"""The public name of our torch.distributed back end: `from synth import process_group`."""

from runtime.torch.process_group import Group, custom, summary, using

__all__ = ["Group", "custom", "summary", "using"]
