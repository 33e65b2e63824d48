"""What a user can cause, as one line with its remedy."""


class UserError(Exception):
    """A mistake the user can mend: shown as `error: ...` on one line, exit status 2, no traceback."""


class ProgramInterrupted(BaseException):
    """Ctrl-C ended a program that ran in this process, and has been shown: Python is to end as it would have."""
