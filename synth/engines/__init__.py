"""One file an engine: a problem in, a schedule out; solvers run in child processes."""
