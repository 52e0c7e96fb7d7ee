"""The execution plans of a library in MSCCL++'s Python API."""

from runtime.mscclpp.plans import Plans

__all__ = ["Plans"]
