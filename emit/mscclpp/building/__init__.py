"""Build the threadblocks of an execution plan from a Program: places of data, operations, numbers, the common start."""
