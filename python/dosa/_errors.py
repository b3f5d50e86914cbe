"""Exceptions of dosa. Each derives from dosa.Error and from the built-in exception that Python code would expect."""

from __future__ import annotations

__all__ = [
    "BadInputError",
    "Error",
    "InputTypeError",
    "InternalError",
    "IoError",
    "NotAvailableError",
    "UsageError",
]


class Error(Exception):
    """Base of every exception that dosa raises; the message says what was found and what was wanted."""


class UsageError(Error, ValueError):
    """An option is outside its range, or its word is unknown."""


class BadInputError(Error, ValueError):
    """A tensor, a view or a file does not say what the contract asks for."""


class InputTypeError(BadInputError, TypeError):
    """An argument has a dtype that the contract does not take, is no array, or has the wrong Python type."""


class NotAvailableError(Error, RuntimeError):
    """A backend or an instruction set that this build or machine lacks. Nothing falls back silently."""


class IoError(Error, OSError):
    """The operating system refused a file operation."""


class InternalError(Error, RuntimeError):
    """A broken promise of the library: please report it."""
