"""Where the ``viva`` command begins and ends: Ctrl-C shows no traceback, neither while modules load nor at the exit.

What never belongs here: imports at the top, which take most of the time of a start.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Entry point of the ``viva`` command."""
    try:
        from .main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is the interpreter's own end
