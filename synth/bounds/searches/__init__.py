"""The searches for witnesses of the kinds that need no room of their own."""
