"""The search for one group: its plan, the run of the plan, the pool of answers, the frontier and the result."""
