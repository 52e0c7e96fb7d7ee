"""Libraries of algorithms: index, write, choose."""
