"""Lower limits on the time of any algorithm, one file a kind of bound, each with a witness that is checked."""
