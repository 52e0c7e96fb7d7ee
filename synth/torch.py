"""Our back end of torch.distributed: after this import, `init_process_group("cpu:synth,cuda:synth")` knows it."""

from synth import check_packages

try:
    from runtime.torch import process_group  # It says how to install PyTorch, so it comes first.
    from runtime.torch.c10d.group import Group
except ImportError:
    check_packages("emit", "runtime")
    raise

custom, summary, using = process_group.custom, process_group.summary, process_group.using

__all__ = ["Group", "custom", "summary", "using"]
