"""Check a library again from its bytes."""
