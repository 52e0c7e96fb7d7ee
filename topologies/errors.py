"""The one error that a user's input can cause."""


class InputError(ValueError):
    """Input that cannot be used: one line says what is wrong, where, and what would be right.

    The command line prints the message and exits with code 2; in Python it is an ordinary ValueError.
    """
