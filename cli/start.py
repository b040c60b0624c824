"""Where the ``viva`` command begins and ends: Ctrl-C shows one line and no traceback, whenever it comes.

It imports nothing but what Python has loaded already: a module that loads here loads before Ctrl-C is heard.
"""

import _signal  # type: ignore[import-not-found]  # the part of ``signal`` in C: the rest imports ``enum``
import os
import sys

_INTERRUPTED = 130
_LINE = b"viva: interrupted\n"


def main() -> None:
    """Run the ``viva`` command."""
    # An exception in the midst of an import does not always arrive: libraries in C turn it into errors of their own.
    heard = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if heard:
        _signal.signal(_signal.SIGINT, _leave)
    from .main import main as command

    if heard:
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
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # what is left is the interpreter's own end


def _leave(number: int, frame: object) -> None:
    os.write(2, _LINE)
    os._exit(_INTERRUPTED)


def _was_interrupted(end: BaseException) -> bool:
    """Return True if Ctrl-C ended the command as an exception; typer makes an exit without words of that."""
    if isinstance(end, SystemExit) and end.code != _INTERRUPTED:
        return False
    reason: BaseException | None = end
    while reason is not None and not isinstance(reason, KeyboardInterrupt):
        reason = reason.__cause__ or reason.__context__
    return reason is not None
