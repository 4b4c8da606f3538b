"""Error codes: the part in brackets at the end of a message, listed in docs/errors.md."""

from __future__ import annotations

from fastrecord._core import FastRecordError, error_code


def plain(error: FastRecordError) -> str:
    """Return an error's message without its code, for use in another message."""
    return str(error).removesuffix(f" [{error.code}]")


def extended(error: FastRecordError, more: str) -> str:
    """Return an error's message with more text before its code."""
    return with_more(str(error), more)


def with_more(message: str, more: str) -> str:
    """Return a message with more text before its code, if it has one."""
    text = message.removesuffix(f" [{error_code(message)}]")
    return f"{text}{more}{message.removeprefix(text)}"


def system_text(error: OSError) -> str:
    """Return the message of a system error in one line: the file and the reason."""
    if error.filename is None or not error.strerror:
        return str(error)
    # The core adds this itself for the files that it opens.
    remote = isinstance(error, FileNotFoundError) and "://" in str(error.filename) and "remote" not in error.strerror
    reason = "remote paths are not read yet: copy the file to this machine, or mount its storage" if remote else None
    return f"{error.filename}: {reason or error.strerror}"


def codes_of(messages: list[str]) -> list[str | None]:
    """Return the code at the end of each message; None for system errors and others without one."""
    return [error_code(message) for message in messages]
