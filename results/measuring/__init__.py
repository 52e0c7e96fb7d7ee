"""Modules that several scripts share.

Two of them run as processes of their own: `exact_rows` starts `sccl_like`, `shaped_placements` starts `shaped_ranks`.
"""
