"""Schedules of a network's levels composed into one."""
