"""What ends a command in one line and exit code 2. Anything else is a bug."""

from __future__ import annotations


class Failed(RuntimeError):
    """Work that cannot go on, for the reason in the message."""


class Unanswered(Failed):
    """A server that cannot be reached, or answers with an error."""


# ValueError: input that is refused. OSError: files, and every exception of requests.
FAILURES = (ValueError, OSError, Failed)


def line_of(error: Exception) -> str:
    """An operating system's error without its number, the file first."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
