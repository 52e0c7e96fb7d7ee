"""Our back end of torch.distributed: after this import, `init_process_group("cpu:synth,cuda:synth")` knows it."""

from synth import check_packages

try:
    from runtime.torch.c10d.group import Group
    from runtime.torch.process_group import custom, summary, using
except ImportError as error:
    if error.name == "torch":
        raise ImportError("synth.torch needs PyTorch: pip install 'synth-collectives[torch]'", name="torch") from None
    check_packages("emit", "runtime")
    raise

__all__ = ["Group", "custom", "summary", "using"]
