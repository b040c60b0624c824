"""Exit codes of commands, and one line on stderr that says what is wrong and what to do.

0 done; 1 the run failed; 2 bad usage or configuration; 3 finished with failed conversations beyond
--max-failures; 130 interrupted.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

from viva.engine.errors import ConfigurationError, JournalNotice, Unauthorized, VivaError

P = ParamSpec("P")
T = TypeVar("T")

DONE, FAILED, USAGE, FAILURES, INTERRUPTED = 0, 1, 2, 3, 130


def handle_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command: our own errors end it with their message and exit code instead of a traceback, and what is to be
    said of a journal is said as a note.
    """

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            _check_sizes(kwargs)
            with print_journal_notes():
                return command(*args, **kwargs)
        except VivaError as error:
            exit_with_error(error)
        except FileNotFoundError:
            if not _folder_exists():
                exit_with_error(ConfigurationError("the current folder was removed; change to one that exists"))
            raise

    return wrapper


def _folder_exists() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _check_sizes(given: Mapping[str, object]) -> None:
    """:raises ConfigurationError: a number that no journal and no JSON can hold."""
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int) and not -(2**63) <= one < 2**63:
                option = f"-{name}" if len(name) == 1 else "--" + name.replace("_", "-")
                raise ConfigurationError(f"{option}: expected a whole number of at most 64 bits, found {one}")


@contextmanager
def print_journal_notes() -> Iterator[None]:
    """Show notices about journals as notes on stderr, the same one once."""
    told: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", JournalNotice)
        otherwise = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, JournalNotice):
                otherwise(message, category, *where, **more)
            elif str(message) not in told:
                told.add(str(message))
                print_note(message)

        warnings.showwarning = show
        yield


def exit_with_error(error: VivaError) -> NoReturn:
    """Print an error and leave with its exit code."""
    print_error(error)
    sys.exit(exit_code(error))


def exit_code(error: VivaError) -> int:
    """Return 2 for what the user can mend in the command or environment, 1 for the rest."""
    return USAGE if isinstance(error, ConfigurationError | Unauthorized) else FAILED


def print_note(text: object, label: str = "note") -> None:
    """Print a note on stderr; what names in it spell moves no cursor and makes no line of its own."""
    from viva.reports.tables import one_line

    print(f"viva: {label}: {one_line(str(text))}", file=sys.stderr)


def print_error(text: object) -> None:
    """Print an error on stderr."""
    print_note(text, "error")
