"""Networks that change: a list of states (topologies), the time of each change, and schedules that say when to change.

While the network changes, nothing moves: a phase of a schedule uses the links of one state only, all its sends have
arrived before a change begins, and no send begins before the change ends.
"""
