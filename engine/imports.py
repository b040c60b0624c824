"""Imports by name: plugins, modules and Python files that a user names, late imports in threads.

Every import of a name that a user wrote happens here, and only if `permissions` allow it.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .cancellation import is_failure
from .errors import ConfigurationError, user_frame
from .permissions import PYTHON_TOOLS_OPTION, NotPermitted, absolute_path, is_python_file, permissions

_import_lock = threading.RLock()


def import_under_lock(module: str) -> Any:
    """Import a module, one thread at a time."""
    with _import_lock:
        return import_module(module)


@cache
def load_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted. Cached: scanning installed packages takes milliseconds."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


# Built-in functions that do more than compute.
_REACHING = (eval, exec, compile, open, __import__, input, breakpoint)
# The file being run in this context.
_loading: ContextVar[Path | None] = ContextVar("viva_loading", default=None)


def refuse_while_loading() -> None:
    """Refuse to start anything while a file is run for its definitions.

    Raises:
        ConfigurationError: A file is being run.
    """
    file = _loading.get()
    if file is not None:
        raise ConfigurationError(
            f'{file}: starts a run when it is imported; put that part under `if __name__ == "__main__":`'
        )


class _EditedFileLoader(SourceFileLoader):
    """Loader without bytecode files: their time stamps are whole seconds, so a quick edit could go unnoticed."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def import_file(file: Path) -> ModuleType:
    """Return the module that a Python file defines. It is run once per process, with its folder on the path.

    Raises:
        NotPermitted: Nobody has granted it.
        ConfigurationError: The file does not exist, or raises; the message names the line.
    """
    with _import_lock:  # another thread must not get a module whose code is still running
        return _import_file(file)


def _import_file(file: Path) -> ModuleType:
    path = absolute_path(file)
    permissions().check_code(path)
    name = f"viva_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigurationError(f"{file}: no such Python file{permissions().similar_name(path)}")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _EditedFileLoader(name, str(path))
    module = sys.modules[name] = module_from_spec(spec)
    folder = str(path.parent)
    sys.path.insert(0, folder)
    token = _loading.set(file)
    try:
        spec.loader.exec_module(module)
    except ConfigurationError:  # this error already says what to do
        del sys.modules[name]
        raise
    except BaseException as error:
        del sys.modules[name]
        if not is_failure(error):
            raise
        frame = user_frame(error)  # ours, if the file could not be read as Python: then its message has the line
        location = "" if frame.startswith(f"{__file__}:") else f" (at {frame})"
        raise ConfigurationError(f"{file}: {type(error).__name__}: {error}{location}") from None
    finally:
        _loading.reset(token)
        sys.path.remove(folder)
    return module


def import_by_name(name: str) -> ModuleType:
    """Import a granted module.

    Raises:
        NotPermitted: Nobody has granted it.
        ConfigurationError: It cannot be imported; the message says why.
    """
    if is_python_file(name):
        raise ConfigurationError(f"{name} is a file; its functions are named {name}#NAME")
    permissions().check_code(name)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a module may raise anything
        message = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ConfigurationError(message) from None


def find_function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    """Return a module's own callable of this name, or None; raise `NotPermitted` for another module's callable."""
    function: Callable[..., Any] | None = None if name.startswith("__") else getattr(module, name, None)
    if not callable(function):
        return None
    check_defined_here(module, function, name)
    return function


def check_defined_here(module: ModuleType, value: Any, name: str) -> None:
    """Raise `NotPermitted` for a function of another module: a grant of `shop` does not cover what `shop` imports."""
    module_name = getattr(value, "__module__", None) if inspect.isroutine(value) or inspect.isclass(value) else None
    if module_name == "builtins" and value not in _REACHING:
        return
    if module_name is not None and module_name != module.__name__ and not module_name.startswith(f"{module.__name__}."):
        raise NotPermitted(
            f"{name}: {module.__name__} imports it from {module_name}; use {module_name}:{name}, and grant it with "
            f"{PYTHON_TOOLS_OPTION} {module_name}"
        )
