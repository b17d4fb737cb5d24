"""What goes wrong because of a request, told so that the reader can mend it."""


class TaGrpoError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(TaGrpoError, ValueError):
    """The request was wrong: a file, a setting, an environment.

    The message says what is wrong, where (file, line, field) and what to do. The command line prints it without a
    traceback and exits 2; a library caller may catch it as a ``ValueError``.
    """
