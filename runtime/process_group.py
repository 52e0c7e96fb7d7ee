"""The public name of our back end of torch.distributed: `import runtime.process_group as synth`."""

from runtime.torch.process_group import Group, custom, summary, using

__all__ = ["Group", "custom", "summary", "using"]
