"""``--plot FILE`` of commands that draw accuracy against score: what can be drawn to, and what to say if it cannot.

What never belongs here: drawing (``scoring.plots``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from viva.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from viva.scoring.correlation import Figures, Fit


def check_drawable(file: Path) -> None:
    """Say before the work whether there can be a drawing.

    :raises ConfigurationError: the ending is not known, the folder does not exist, or matplotlib is missing.
    """
    from viva.scoring.plots import style

    if file.suffix not in style.ENDINGS:
        raise ConfigurationError(f"--plot {file}: expected a name that ends in {' or '.join(style.ENDINGS)}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigurationError(f"--plot {file}: cannot be written there; name a file in a folder that exists")
    style.library()


def draw(
    file: Path, figures: Iterable[Figures], lines: Mapping[str, Fit | None], without: Collection[str] = ()
) -> None:
    """A panel for each dataset, with its line.

    :raises ConfigurationError: the file cannot be written.
    """
    from viva.scoring.plots.regression import draw_regressions

    try:
        draw_regressions(file, figures, lines, without)
    except OSError as error:
        raise ConfigurationError(f"--plot {file}: cannot be written: {error.strerror}") from None
