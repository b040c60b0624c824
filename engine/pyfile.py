"""Python files of the user's, run as modules of their own: scenarios and models may stand in one.

What never belongs here: what is looked for in such a file.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from .blame import place_of
from .errors import ConfigurationError


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
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigurationError(f"{file}: {type(error).__name__}: {error} (at {place_of(error)})") from None
    finally:
        sys.path.remove(folder)
    return module
