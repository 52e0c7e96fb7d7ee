"""Choose files of a library for calls, and hand them to executors."""
