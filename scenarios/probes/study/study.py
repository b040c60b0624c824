"""How runs of probes are studied: they are read here, and lent to studies of conversations with the same models.

What never belongs here: what the figures are set beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from viva.reports.page import Record
from viva.reports.rows import Row, record_rows
from viva.reports.text import DASH, interval
from viva.reports.usage import usage_record

from ...models import recorded_price
from ...study.cells import RunReading
from ...study.items import ItemNumbers
from ...study.sections import SystemStudy
from .columns import read_probes
from .figures import ProbeFigures


class ProbeStudy(SystemStudy):
    """Probes beside interviews; alone where no system is registered that takes static figures."""

    by_item: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("shots",)

    @property
    def static(self) -> ProbeFigures:
        return ProbeFigures()

    def read(self, readings: Sequence[RunReading], scoring: Any, items: ItemNumbers) -> None:
        run = readings[0].cell.run
        assert run is not None
        read = read_probes(run, items)
        results = read.aggregate.report()["candidates"]
        for one in readings:
            columns = read.columns[one.cell.candidate]
            price = recorded_price(one.cell.manifest, one.cell.model)
            one.damaged, one.columns, one.result = read.damaged, columns, results[one.cell.candidate]
            one.ended, one.failed = columns.ended, results[one.cell.candidate]["failed"]
            one.own_tables = read.aggregate.tables
            one.usage = {role: usage_record(used, price) for role, used in sorted(columns.usage.items())}

    def shown_result(self, cell: Record) -> str:
        accuracy = (cell["result"] or {}).get("accuracy")
        return f"accuracy {interval(next(iter(accuracy.values())))}" if accuracy else DASH

    def cell_rows(self, cell: Record, place: Row) -> Iterator[Row]:
        yield from record_rows(place, "", cell["result"] or {})
        yield from record_rows(place, "usage", cell["usage"])
