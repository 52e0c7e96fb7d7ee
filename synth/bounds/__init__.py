"""Lower limits on the time of any algorithm, one file a kind, each with a witness that is checked on its own."""
