"""In which order sections stand in the forms of a report.

What never belongs here: the sections themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from viva.scenarios.study.sections import Subject

T = TypeVar("T")
# In the report's record, in exports and on a page.
RECORDED = tuple(Subject)
# Printed tables and notes: what one figure is worth beside another comes before pairs of candidates.
_FIRST = (Subject.RESULTS, Subject.CONTAMINATION, Subject.CORRELATIONS, Subject.VARIANTS)
PRINTED = (*_FIRST, *(subject for subject in Subject if subject not in _FIRST))
# Drawings: the one that shows most comes first.
DRAWN = (Subject.CORRELATIONS, *(subject for subject in Subject if subject is not Subject.CORRELATIONS))


def ordered(order: tuple[Subject, ...], about: Iterable[tuple[Subject, T]]) -> list[T]:
    """Things in the order of their subjects, as they come within one."""
    return [thing for _, thing in sorted(about, key=lambda pair: order.index(pair[0]))]
