"""Entry point of the `viva` command: at any time, Ctrl-C prints one line and no traceback.

This module imports only modules that Python has already loaded, because Ctrl-C is not handled during its imports.
"""

import _signal  # type: ignore[import-not-found]  # the C part of `signal`: the Python part imports `enum`
import os
import sys

_INTERRUPTED = 130
_LINE = b"viva: interrupted\n"


def main() -> None:
    """Run the `viva` command."""
    # KeyboardInterrupt during an import may get lost: C libraries turn it into their own errors.
    is_handled = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if is_handled:
        _signal.signal(_signal.SIGINT, _exit)
    from .main import main as command

    if is_handled:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    try:
        command()
    except BaseException as end:
        if not _was_interrupted(end):
            raise
        os.write(2, _LINE)
        sys.exit(_INTERRUPTED)
    finally:
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # only the interpreter's shutdown remains


def _exit(number: int, frame: object) -> None:
    os.write(2, _LINE)
    os._exit(_INTERRUPTED)


def _was_interrupted(end: BaseException) -> bool:
    """Return True if Ctrl-C ended the command; typer turns it into a silent exit."""
    if isinstance(end, SystemExit) and end.code != _INTERRUPTED:
        return False
    reason: BaseException | None = end
    while reason is not None and not isinstance(reason, KeyboardInterrupt):
        reason = reason.__cause__ or reason.__context__
    return reason is not None
