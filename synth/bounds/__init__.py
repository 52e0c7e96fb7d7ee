"""Lower limits on the time of any algorithm: searches for witnesses, and independent checks of the witnesses."""
