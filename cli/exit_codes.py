"""Exit codes of commands, and errors as one line on stderr that says what is wrong and what to do.

0: done. 1: the run failed. 2: wrong usage or configuration. 3: finished, with more failed conversations than
--max-failures. 130: interrupted.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import fill
from typing import Any, NoReturn, ParamSpec, TypeVar

from viva.engine.errors import ConfigurationError, JournalNotice, Unauthorized, VivaError

P = ParamSpec("P")
T = TypeVar("T")

_USUAL_WIDTH = 80
DONE, FAILED, USAGE, FAILURES, INTERRUPTED = 0, 1, 2, 3, 130


def handle_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command: our errors print their message without a traceback; journal notices are printed as notes."""

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


def _check_sizes(options: Mapping[str, object]) -> None:
    """Raise ConfigurationError if a number is too large for a journal."""
    for name, value in options.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                option = f"-{name}" if len(name) == 1 else "--" + name.replace("_", "-")
                raise ConfigurationError(f"{option}: expected a whole number of at most 64 bits, found {number}")


@contextmanager
def print_journal_notes() -> Iterator[None]:
    """Print each notice about journals once, as a note on stderr."""
    printed: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", JournalNotice)
        show_by_default = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *position: Any, **keywords: Any) -> None:
            if not issubclass(category, JournalNotice):
                show_by_default(message, category, *position, **keywords)
            elif str(message) not in printed:
                printed.add(str(message))
                print_note(message)

        warnings.showwarning = show
        yield


def exit_with_error(error: VivaError) -> NoReturn:
    """Print an error and exit with its code."""
    print_error(error)
    sys.exit(exit_code(error))


def exit_code(error: VivaError) -> int:
    """Return 2 for what the user can fix in the command or the environment, else 1."""
    return USAGE if isinstance(error, ConfigurationError | Unauthorized) else FAILED


def print_note(text: object, label: str = "note") -> None:
    """Print a note on stderr, as one message."""
    print_message(f"viva: {label}: {text}")


def print_error(text: object) -> None:
    """Print an error on stderr."""
    print_note(text, "error")


def print_message(text: str) -> None:
    """Print a message on stderr without control characters: wrapped in a terminal, else on one line (for grep)."""
    from viva.reports.tables import one_line

    line = one_line(text)
    if sys.stderr.isatty():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        width = terminal_width(sys.stderr.fileno())
        line = fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


def terminal_width(file: int) -> int:
    """Return the columns of the terminal at this file descriptor; 80 if the terminal does not know its size."""
    return os.get_terminal_size(file).columns or _USUAL_WIDTH
