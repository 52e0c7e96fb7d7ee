"""The engine `trees`: spanning trees packed to the throughput optimum, and pipelined."""
