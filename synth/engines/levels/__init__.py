"""The engine `levels`: schedules of a network's levels composed into one."""
