"""Python files of the user's, run as modules of their own: scenarios and models may stand in one.

What never belongs here: what is looked for in such a file.
"""

from __future__ import annotations

import hashlib
import sys
from contextvars import ContextVar
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .blame import place_of
from .errors import ConfigurationError

# The file that is run in this context at the moment.
_loading: ContextVar[Path | None] = ContextVar("viva_loading", default=None)


def refuse_while_loading() -> None:
    """:raises ConfigurationError: a file is being run for what it defines: that may not start anything."""
    file = _loading.get()
    if file is not None:
        raise ConfigurationError(
            f'{file}: starts a run whenever it is read; put that part under `if __name__ == "__main__":`'
        )


def module_of(file: Path) -> ModuleType:
    """The module that a Python file makes. It is run once in a process; its folder is on the path while it runs.

    :raises ConfigurationError: it is not there, or raises; the message names the line.
    """
    path = file.expanduser().resolve()
    name = f"viva_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigurationError(f"{file}: there is no such Python file")
    module = sys.modules[name] = module_from_spec(spec)
    folder = str(path.parent)
    sys.path.insert(0, folder)
    before = _loading.set(file)
    try:
        spec.loader.exec_module(module)
    except ConfigurationError:  # it says what to do
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigurationError(f"{file}: {type(error).__name__}: {error} (at {place_of(error)})") from None
    finally:
        _loading.reset(before)
        sys.path.remove(folder)
    return module
