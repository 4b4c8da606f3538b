"""Codes of errors: what stands in brackets at the end of a message, as docs/errors.md lists them."""

from __future__ import annotations

from fastrecord._core import FastRecordError, error_code


def plain(error: FastRecordError) -> str:
    """Return an error's message without its code, to be part of another one."""
    return str(error).removesuffix(f" [{error.code}]")


def extended(error: FastRecordError, more: str) -> str:
    """Return an error's message with more text before its code."""
    return with_more(str(error), more)


def with_more(message: str, more: str) -> str:
    """Return a message with more text before its code, if it has one."""
    text = message.removesuffix(f" [{error_code(message)}]")
    return f"{text}{more}{message.removeprefix(text)}"


def codes_of(messages: list[str]) -> list[str | None]:
    """Return the code that each message ends with; None for one without, as those of the system are."""
    return [error_code(message) for message in messages]
