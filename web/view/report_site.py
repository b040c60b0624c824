"""The report among the viewer's pages: the bar that leads to them, and addresses of the conversations that it names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from viva.engine.errors import JournalError
from viva.engine.journal_reader import History
from viva.reports.page import Evidence
from viva.scenarios.study_cells import StudyCell

from ..report.html_page import Site
from .filters import Filter
from .matrix import MatrixCell
from .pages import Links
from .runs import find_runs

_PAGES = ("overview", "conversations", "matrix", "report")


def report_site(root: Path, links: Links, cells: Sequence[StudyCell] = ()) -> Site:
    """Return the viewer's pages around the report on the runs below `root`; `cells` are those of the report."""
    pages = [(page.capitalize(), links.to(page)) for page in _PAGES]
    return Site(root.resolve().name, pages, EvidenceLinks(root, links, cells).address)


class EvidenceLinks:
    """Addresses of the conversations behind a report's names."""

    def __init__(self, root: Path, links: Links, cells: Sequence[StudyCell]) -> None:
        self._links = links
        names = {path.resolve(): name for name, path in find_runs(root)} if cells else {}
        begun = [(cell, cell.run) for cell in cells if cell.run is not None and cell.run.begun]
        self._journals = {cell.name: run.journal for cell, run in begun}
        paths = {cell.name: run.path.resolve() for cell, run in begun}
        self._runs = {name: names[path] for name, path in paths.items() if path in names}
        self._candidates = {cell.candidate for cell, _ in begun}
        # The report names some datasets more precisely than their runs.
        self._datasets = {cell.dataset: str(cell.manifest["dataset"]["name"]) for cell, _ in begun}
        self._numbers = cache(_conversation_numbers)

    def address(self, evidence: Evidence) -> str:
        """Return the address of a conversation or a list of conversations; "" if there is none of them."""
        if evidence.key:
            return self._conversation(evidence)
        if evidence.candidate and evidence.candidate not in self._candidates:
            return ""
        chosen = {"candidate": evidence.candidate, "task": evidence.item, "state": evidence.state}
        if evidence.cell:
            if evidence.cell not in self._runs:
                return ""
            chosen["run"] = self._runs[evidence.cell]
        else:
            chosen |= {"scenario": evidence.scenario, "dataset": self._dataset(evidence.dataset)}
        return self._links.to("conversations", Filter().query(**chosen))

    def _conversation(self, evidence: Evidence) -> str:
        run = self._runs.get(evidence.cell)
        number = None if run is None else self._numbers(self._journals[evidence.cell]).get(evidence.key)
        if run is None or number is None:
            return ""
        return self._links.conversation(MatrixCell(evidence.candidate, run=run, number=number))

    def _dataset(self, name: str) -> str:
        """Return a dataset's name in its runs; a name in the report may add circumstances in parentheses."""
        known = [own for own in self._datasets if name == own or name.startswith(f"{own} (")]
        return self._datasets[max(known, key=len)] if known else ""


def _conversation_numbers(journal: Path) -> dict[str, int]:
    """Return the numbers of a run's conversations by key; none if the journal cannot be read."""
    try:
        with History(journal) as history:
            return history.keys()
    except JournalError:
        return {}
