"""Our back end of torch.distributed: after this import, `init_process_group("cpu:synth,cuda:synth")` knows it.

Where torchcomms is installed, `torchcomms.new_comm("synth", device, name=…)` knows it too.
"""

from synth import check_packages

try:
    from runtime.torch import process_group  # It says how to install PyTorch, so it comes first.
    from runtime.torch.added import import_registering, register
    from runtime.torch.c10d.compression import CompressionState, all_reduce_compressed, compress_hook
    from runtime.torch.c10d.fusion import FusionState, fuse_hook
    from runtime.torch.c10d.group import Group
    from runtime.torch.c10d.persistent import Persistent, persistent
except ImportError:
    check_packages("emit", "runtime")
    raise

try:
    # The package of this name on PyPI is a place holder without them.
    from torchcomms import register_backend
    from torchcomms._comms import TorchCommBackend  # noqa: F401
except ImportError:
    pass
else:
    from runtime.torch.c10d.comms import NAME, SynthComm

    register_backend(NAME, SynthComm)

agree_on_failures = process_group.agree_on_failures
custom, known_sizes, using = process_group.custom, process_group.known_sizes, process_group.using
summary, statistics = process_group.summary, process_group.statistics
trace, write_trace = process_group.trace, process_group.write_trace

__all__ = [
    "CompressionState",
    "FusionState",
    "Group",
    "Persistent",
    "agree_on_failures",
    "all_reduce_compressed",
    "compress_hook",
    "custom",
    "fuse_hook",
    "known_sizes",
    "persistent",
    "register",
    "statistics",
    "summary",
    "trace",
    "using",
    "write_trace",
]

import_registering()
