"""The error for mistakes that a user can make and correct."""


class UserError(ValueError):
    """A mistake that the user can correct. The message says what was found, what is needed and what to do.

    The command line prints it as one line. Any other exception is a bug of this package and keeps its traceback.
    """
