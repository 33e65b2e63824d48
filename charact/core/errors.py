"""Errors that a user can cause, shown as one line with a remedy."""


class UserError(Exception):
    """An error that the user can fix: shown as `error: ...` on one line, exit status 2, no traceback."""


class ProgramInterrupted(BaseException):
    """Ctrl-C ended a program in this process and was already shown: Python must exit as the program would have."""
