"""Tables of quick cases as one test: ``@case_table("text, number", [("1", 1), …])`` stands where ``parametrize`` would.

pytest takes a millisecond for each item, in each worker; thousands of cases take microseconds. All cases run, and each
that fails is shown. Cases may share fixtures; ``tmp_path`` is a new folder in each.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest


def case_table(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Iterable[str] | Callable[[Any], object] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test once for each row of values; the arguments are those of ``pytest.mark.parametrize``.

    :raises ExceptionGroup: from the test, with what each failing case raised; a note says which case it was.
    """
    keys = [one.strip() for one in names.split(",") if one.strip()] if isinstance(names, str) else list(names)
    table = list(_table(keys, list(rows), ids))

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        async def loop_async(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            for name, values in table:
                with _kept(failures, name):
                    await test(**_own_folder(fixtures), **values)
            _show(failures, len(table))

        def loop(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            for name, values in table:
                with _kept(failures, name):
                    test(**_own_folder(fixtures), **values)
            _show(failures, len(table))

        whole = functools.wraps(test)(loop_async if inspect.iscoroutinefunction(test) else loop)
        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in keys]
        whole.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return whole

    return decorate


def _table(keys: list[str], rows: list[Any], ids: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    given = None if ids is None or callable(ids) else list(ids)
    for number, row in enumerate(rows):
        values = (row,) if len(keys) == 1 else tuple(row)
        if callable(ids):
            name = "-".join(str(ids(one)) for one in values)
        else:
            name = given[number] if given else "-".join(repr(one)[:80] for one in values)
        yield f"{number}: {name}", dict(zip(keys, values, strict=True))


_FOLDERS = count()


def _own_folder(fixtures: dict[str, Any]) -> dict[str, Any]:
    """Return the fixtures with a new folder in place of ``tmp_path``."""
    if "tmp_path" not in fixtures:
        return fixtures
    folder = fixtures["tmp_path"] / f"case{next(_FOLDERS)}"
    folder.mkdir()
    return fixtures | {"tmp_path": folder}


@contextmanager
def _kept(failures: list[BaseException], name: str) -> Iterator[None]:
    """Keep what a case raises, with its name; a skip ends the whole test."""
    try:
        yield
    except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:
        error.add_note(f"case {name}")
        failures.append(error)


def _show(failures: list[BaseException], total: int) -> None:
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {total} cases", failures)
