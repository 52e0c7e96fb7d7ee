"""GOAL: schedules of operations in the text that LogGOPSim's txt2bin takes."""
