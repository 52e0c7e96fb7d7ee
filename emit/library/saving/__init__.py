"""Write answers into a library, with what it already has."""
