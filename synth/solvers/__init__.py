"""CP-SAT, Z3 and HiGHS behind one answer, in child processes that can be killed."""
