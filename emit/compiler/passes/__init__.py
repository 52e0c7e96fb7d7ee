"""Transform Instructions, one idea a file: each pass returns equivalent instructions, or the same object unchanged."""
