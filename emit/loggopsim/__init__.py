"""GOAL, the text of operations that LogGOPSim's txt2bin reads."""
