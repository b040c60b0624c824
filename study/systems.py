"""Which systems a study is of, and which of them are studied together.

A system that lends static figures is studied with the registered system that takes them, and by itself where there is
none. What never belongs here: the name of any system.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from viva.engine.errors import ConfigurationError
from viva.reports.page import Record
from viva.scenarios.registry import scenario, scenarios
from viva.scenarios.study.cells import StudyCell
from viva.scenarios.study.sections import Section, SystemStudy


@dataclass(slots=True)
class SystemsTogether:
    """The systems whose cells one study takes together. ``study`` makes the sections; ``readers`` has by scenario who
    reads its runs, the study's own system first.
    """

    study: SystemStudy
    readers: dict[str, SystemStudy]

    def own(self, cells: Iterable[StudyCell]) -> list[StudyCell]:
        """The cells that are studied here."""
        return [cell for cell in cells if cell.scenario in self.readers]

    def part_of(self, report: Mapping[str, Any]) -> Record:
        """The report with the cells alone that are studied here."""
        return {**report, "cells": [cell for cell in report["cells"] if cell["scenario"] in self.readers]}


def systems_of(names: Iterable[str]) -> list[SystemsTogether]:
    """The systems of these scenarios, in the order in which they are met.

    :raises ConfigurationError: a scenario is not registered, or two systems have sections of one name.
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(_studied_with(name), []).append(name)
    found = []
    for name, members in groups.items():
        readers = {member: scenario(member).study() for member in members if member != name}
        lent = next((reader.static for reader in readers.values() if reader.static is not None), None)
        study = scenario(name).study(lent)
        found.append(SystemsTogether(study, {name: study, **readers}))
    _check_keys(found)
    return found


def systems_in(report: Mapping[str, Any]) -> list[SystemsTogether]:
    """The systems of a report's cells.

    :raises ConfigurationError: a scenario is not registered here.
    """
    return systems_of(cell["scenario"] for cell in report["cells"])


def sections_of(together: Iterable[SystemsTogether]) -> Iterator[tuple[SystemsTogether, Section[Any]]]:
    """All sections with the systems that they are of."""
    return ((systems, section) for systems in together for section in systems.study.sections)


def _studied_with(name: str) -> str:
    if scenario(name).study().static is None:
        return name
    return next((which.name for which in scenarios() if which.study().takes_static), name)


def _check_keys(together: Iterable[SystemsTogether]) -> None:
    seen: dict[str, str] = {}
    for systems, section in sections_of(together):
        name = systems.study.which.name
        for key in {section.key, section.anchor} - {""}:
            if seen.setdefault(key, name) != name:
                raise ConfigurationError(
                    f"the studies of {seen[key]} and {name} both have a section '{key}': report them apart"
                )
