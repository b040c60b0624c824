"""How a command that is run in a forked process ends."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable


def exit_code_of(command: Callable[[], object]) -> int:
    """Run a command to its end: its exit code, 1 with the traceback on stderr where it fails; all is written out."""
    code = 1
    try:
        command()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code
