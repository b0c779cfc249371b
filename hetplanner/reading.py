"""One law for everything that reads a stranger's file: it gives what the file says, or InvalidInput with its name.

Readers check what they read and say what is wrong. What none of their checks foresaw ends here, in one line for a
person; the failure itself is chained, so that `--debug` shows it, and logged.
"""

import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

from hetplanner.errors import HetplannerError, InvalidInput, one_line

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What taking a damaged line apart raises, for those who pass over such lines."""

DAMAGED_WORDS = "is damaged, or no"
"""In the message about a failure that no check foresaw."""

_PASS = (HetplannerError, ImportError, NameError)
"""Told already, or no file's doing."""

READERS: dict[str, str] = {}
"""What each function under `reader` reads, by 'module.function'; the tests damage files for every one of them."""


_notes: ContextVar[Callable[[str], None]] = ContextVar("_notes", default=log.warning)


def note(text: str) -> None:
    """Tells the listener of something in a file that is legal but hardly meant; without a listener it is logged."""
    _notes.get()(one_line(text))


@contextmanager
def noting(take: Callable[[str], None]) -> Iterator[None]:
    """Whatever is noted inside, in this thread or task, goes to `take`, once."""
    known: set[str] = set()

    def take_once(text: str) -> None:
        if text not in known:
            known.add(text)
            take(text)

    token = _notes.set(take_once)
    try:
        yield
    finally:
        _notes.reset(token)


@contextmanager
def reading(place: str, kind: str) -> Iterator[None]:
    """Every failure inside becomes InvalidInput that names `place`; our own errors pass, and what no file can cause.

    Args:
        place: the file's name.
        kind: what the file should be, such as 'cluster file'.

    Raises:
        InvalidInput: with the failure as its cause.
    """
    try:
        yield
    except _PASS:
        raise
    except Exception as error:
        raise _refusal(error, place, kind) from error


def reader(kind: str, at: str = "", *, name: str = "") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Puts a function that reads a file under `reading`.

    Args:
        kind: what the file should be.
        at: the parameter that tells the file's name, or what of it does ('run.path'): a text, a path, (name, content),
            or contents by name.
        name: of the file where no parameter tells it.
    """

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        READERS[f"{function.__module__}.{function.__qualname__}"] = kind

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except _PASS:
                raise
            except Exception as error:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                place = name or _name_of(attrgetter(at)(SimpleNamespace(**bound.arguments)))
                raise _refusal(error, place, kind) from error

        return guarded

    return wrap


def _refusal(error: Exception, place: str, kind: str) -> InvalidInput:
    log.debug("%s: not read as %s", place, kind, exc_info=error)
    return InvalidInput(f"{place[:200]}: {_words(error, kind)}")


def _name_of(value: Any) -> str:
    if isinstance(value, tuple):
        return str(value[0])
    if isinstance(value, os.PathLike):
        return Path(value).name
    if isinstance(value, Mapping):
        return ", ".join(map(str, value)) if all(isinstance(v, bytes) for v in value.values()) else "the data given"
    return str(value)


def _words(error: Exception, kind: str) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}; make it readable"
    if isinstance(error, MemoryError):
        return f"is too large to be read as a {kind}; give a smaller one"
    if isinstance(error, RecursionError):
        return f"is nested too deeply for a {kind}; write it again, or take a copy"
    text = str(error.errors()[0]["msg"] if isinstance(error, ValidationError) else error).strip().partition("\n")[0]
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{DAMAGED_WORDS} {kind} ({said:.300}); write it again, or take a copy"
