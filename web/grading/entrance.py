"""The way in: a secret link shows whose it is and what is to do; its button begins the session.

A link that is only looked at, as programs for messages do, begins nothing. What never belongs here: what comes after.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from viva.orchestration.grading.records import Grader, Standing
from viva.orchestration.grading.seats import standing
from viva.orchestration.grading.store import GradeStore

from ..people.guarding import Refusal
from ..people.layout import rendered
from ..people.links import hashed
from .site import Site, check_link


@dataclass(slots=True, frozen=True)
class _Found:
    grader: Grader
    expires: float | None
    standing: Standing
    link: str


class Entrance:
    """The pages that need no session."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/", self._root)
        app.router.add_get("/link/{token}", self._look)
        app.router.add_post("/link/{token}", self._enter)

    async def _root(self, request: web.Request) -> web.Response:
        raise Refusal(200, self._site.title, "Everybody who grades here has a link of their own. Please open yours.")

    async def _look(self, request: web.Request) -> web.Response:
        found = await self._found(request)
        text = rendered(self._site.templates, "welcome.html", site=self._site, found=found)
        return web.Response(text=text, content_type="text/html")

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        found = await self._found(request)
        path = f"/g/{found.grader.number}/"
        answer = web.Response(status=303, headers={"Location": path})
        self._site.sessions.start(
            answer, str(found.grader.number), found.link, path=path, expires=found.expires, secure=self._site.secure
        )
        return answer

    async def _found(self, request: web.Request) -> _Found:
        link = hashed(request.match_info["token"])

        def look(store: GradeStore) -> _Found:
            found = store.by_token(link)
            if found is None:
                raise Refusal(
                    404, "This link opens nothing", "It may have been replaced by a newer one, or be incomplete: copy "
                    "the whole of it, or ask for a new one.",
                )  # fmt: skip
            grader, expires = found
            check_link(store, grader, expires)
            return _Found(grader, expires, standing(store, grader), link)

        return await self._site.worker.read(look)
