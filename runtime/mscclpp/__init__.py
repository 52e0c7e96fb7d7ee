"""A library's execution plans in MSCCL++'s Python API."""

from runtime.mscclpp.plans import Plans

__all__ = ["Plans"]
