"""Links of the holders of a grading folder: made for whoever has none, and told once.

What never belongs here: terminals and pages, which show them.
"""

from __future__ import annotations

from dataclasses import dataclass

from viva.orchestration.grading.records import Grader
from viva.orchestration.grading.store import GradeStore

from ..people.links import expiry_of, new_token

ADDRESS = "address"  # meta: where the folder was served last
ADMIN = "admin"


@dataclass(slots=True, frozen=True)
class NewLink:
    """A link that was made now. It is kept nowhere."""

    grader: Grader
    url: str


def make_link(store: GradeStore, grader: Grader, address: str, expires: str) -> NewLink:
    """A new link; an earlier one opens nothing any more. ``expires``: a duration such as ``7d``, or ``never``.

    :raises ConfigurationError: it is no duration.
    """
    token, kept = new_token()
    store.set_token(grader.number, kept, expiry_of(expires, store.clock()))
    return NewLink(grader, f"{address}/link/{token}")


def missing_links(store: GradeStore, address: str, expires: str) -> list[NewLink]:
    """Links for all people who have none and are not retired; an admin is added where there is none."""
    with store.batch():
        graders = store.graders()
        if not any(one.role == "admin" for one in graders):
            taken = {one.name for one in graders}
            name = next(name for name in (ADMIN, *(f"{ADMIN}-{n}" for n in range(2, 99))) if name not in taken)
            graders.append(store.add_grader(name, role="admin"))
        linked = {row[0] for row in store.connection.execute("select number from graders where token is not null")}
        return [
            make_link(store, one, address, expires)
            for one in graders
            if one.number not in linked and one.kind == "person" and one.state != "retired"
        ]
