"""``viva grade graders``: who grades in a folder, their states, and their secret links.

What never belongs here: pages, and the deployment gate of training rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from viva.orchestration.grading.records import GraderRole, GraderState
    from viva.orchestration.grading.store import GradeStore

Deed = Literal["list", "add", "pause", "resume", "retire", "link"]
EXAMPLE = """\b
Examples:
  viva grade graders queue
  viva grade graders queue add Ada
  viva grade graders queue add Grace --role adjudicator --expires 2w
  viva grade graders queue retire Ada"""


def graders(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder.")],
    deed: Annotated[Deed, typer.Argument(metavar="[list|add|pause|resume|retire|link]", help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The grader.")] = None,
    role: Annotated[
        Literal["grader", "adjudicator", "admin"], typer.Option("--role", help="What a new one may do.")
    ] = "grader",
    expires: Annotated[
        str, typer.Option("--expires", metavar="7d", help="For how long a link is good: 12h, 7d, 2w, never.")
    ] = "never",
) -> None:
    """List the graders of a folder, add one, pause, resume or retire one, or make a new secret link."""
    from viva.engine.errors import ConfigurationError
    from viva.orchestration.grading.store import GradeStore

    if (deed == "list") != (name is None):
        raise ConfigurationError(f"{deed}: name the grader" if name is None else "list: takes no name")
    with GradeStore.open(folder) as store:
        if name is None:
            _list(store)
        else:
            _do(store, deed, name, role, expires)


def _do(store: GradeStore, deed: Deed, name: str, role: GraderRole, expires: str) -> None:
    from viva.web.grading.links import ADDRESS, make_link

    states: dict[str, GraderState] = {"pause": "paused", "resume": "active", "retire": "retired"}
    if deed in states:
        store.set_state(store.grader(name).number, states[deed], "viva grade graders")
        print(f"{name}: {states[deed]}")
        return
    address = store.meta(ADDRESS)
    with store.batch():
        grader = store.add_grader(name, role=role) if deed == "add" else store.grader(name)
        store.log("viva grade graders", f"added {name} as {role}" if deed == "add" else f"{name}: new link")
        link = make_link(store, grader, address or "", expires)
    print(f"{name} ({grader.role}): {link.url}")
    if address is None:
        print(f"The link is complete with the address that `viva grade serve {store.folder}` will print before it.")


def _list(store: GradeStore) -> None:
    from viva.cli.output import print_tables
    from viva.orchestration.grading.seats import standing
    from viva.reports.text import DASH

    rows = []
    for one in store.graders():
        found = standing(store, one)
        left = str(found.left) if one.role == "grader" or found.finished + found.begun else DASH
        counts = [str(found.finished), str(found.begun), left]
        rows.append([str(one.number), one.name, one.role, one.model or one.kind, one.state, *counts])
    print_tables([("Graders", ["", "name", "role", "kind", "state", "finished", "begun", "left"], rows)])
