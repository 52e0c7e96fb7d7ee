"""The time after which tests take a process for hung."""

HANG_S = 600.0  # A guard, not a measurement: no machine is so loaded that a process which works reaches it.
