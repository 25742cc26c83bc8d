"""The error for what a user can cause and can put right."""


class UserError(ValueError):
    """A mistake that the user can correct. The message says what was found, what is needed and what to do.

    The command line prints it as one line. Every other exception is a bug of this package, and keeps its traceback.
    """
