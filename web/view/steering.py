"""Buttons that steer runs (`viva view --control`): who may press them, their forms, and what they ask the run.

The operator opens a secret link, printed at the start, which begins a session: a loopback port is open to every user of
the machine, but a run is steered only by its own user. Sessions end with the process. A form counts only with its
session's token. What would end work is asked once more on a page of its own.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from aiohttp import web

from viva.engine.errors import ConfigurationError
from viva.orchestration.control import LIMITS, ControlRequest, RunStatus

from ..auth import hash_token
from ..page_server import read_form, see_other
from ..problems import Refusal
from ..sessions import Session, Sessions, new_token

_OPERATOR = "operator"
_MOST_ANSWERS = 64  # answers of runs that are kept for the page after a form
_CONFIRMED = {
    "stop": (
        "Stop this run?",
        "Calls in flight are finished, and no other begins. Conversations go on when the run is resumed on the command "
        "line.",
    ),
    "drain": (
        "Drain this run?",
        "Conversations that have begun are finished, and no other begins. This cannot be taken back; the rest runs "
        "when the run is resumed on the command line.",
    ),
    "cancel": ("Cancel these conversations?", "They end at once and count as failed."),
}
_ALLOWED = ("pause", "resume", "drain", "stop", "set", "cancel", "requeue")
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A request that has to be confirmed: question, consequence, and the fields of its form."""

    do: str
    question: str
    text: str
    fields: Sequence[tuple[str, str]]


class Steering:
    """The operator's sessions and forms. `secure`: browsers use https."""

    def __init__(self, *, secure: bool = False) -> None:
        self._token, self._link = new_token()
        self._sessions = Sessions(secrets.token_bytes(32), purpose="view")
        self._secure = secure
        self._answers: OrderedDict[str, tuple[str, str, bool]] = OrderedDict()  # by name: (run, sentence, is done)
        self._ended: OrderedDict[str, tuple[str, float]] = OrderedDict()  # by run: ("stop" or "drain", time of that)

    @property
    def path(self) -> str:
        """The path of the secret link."""
        return f"/link/{self._token}"

    async def open_link(self, request: web.Request) -> web.Response:
        """Begin a session, for the holder of the secret link."""
        if not hmac.compare_digest(hash_token(request.match_info["token"]), self._link):
            raise Refusal(
                404,
                "This link does not work",
                "It may be incomplete, or the viewer was started again. Copy the whole link from its terminal.",
            )
        answer = see_other("/")
        self._sessions.start(answer, _OPERATOR, self._link, path="/", expires=None, secure=self._secure)
        return answer

    def form_token(self, request: web.Request) -> str | None:
        """Return the token for the forms of a page; None if its reader may only look."""
        session = self._session(request)
        return None if session is None else self._sessions.form_token(session)

    async def fields(self, request: web.Request) -> Mapping[str, Sequence[str]]:
        """Return the fields of a form that was sent from a page of this session.

        Raises:
            Refusal: There is no session, or the form is not one of its pages'.
        """
        session = self._session(request)
        if session is None:  # before the body is read
            raise Refusal(
                403, "Only to look at", "Open the link for steering runs, which the viewer printed in its terminal."
            )
        form = await read_form(request)
        if not self._sessions.is_of_form(session, form.get("form")):
            raise Refusal(403, "Page out of date", "This page belongs to another session; reload it and try again.")
        return {name: [str(value) for value in form.getall(name)] for name in form}

    def keep_answer(self, run: str, sentence: str, *, done: bool) -> str:
        """Keep what a run answered for the page that follows; return the page's address."""
        name = secrets.token_urlsafe(9)
        self._answers[name] = (run, sentence, done)
        if len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)
        return f"/run/{quote(run)}?answer={name}"

    def answer(self, run: str, name: str) -> tuple[str, bool] | None:
        """Return a kept sentence about this run, and if the request was done. Others' words are never shown."""
        kept = self._answers.get(name)
        return None if kept is None or kept[0] != run else kept[1:]

    def note_end(self, run: str, do: str) -> None:
        """Note that a run was asked to end: `do` is "stop" or "drain"."""
        self._ended[run] = do, time.time()
        if len(self._ended) > _MOST_ANSWERS:
            self._ended.popitem(last=False)

    def note_status(self, run: str, status: RunStatus) -> None:
        """Forget the end of a run that was resumed since then."""
        if run in self._ended and status.state in ("running", "paused") and (status.at or 0.0) > self._ended[run][1]:
            del self._ended[run]

    def ended_by(self, run: str) -> str:
        """Return what ended a run, "" if that was nothing from here."""
        return self._ended.get(run, ("", 0.0))[0]

    def _session(self, request: web.Request) -> Session | None:
        session = self._sessions.read(request)
        return session if session is not None and session.link == self._link else None


def read_request(fields: Mapping[str, Sequence[str]]) -> ControlRequest:
    """Read the request of a form; its fields are those of `viva control`.

    Raises:
        ConfigurationError: A field is missing or wrong; the message names it.
    """
    do = _single(fields, "do")
    if do not in _ALLOWED:
        raise ConfigurationError(f"do: expected one of {', '.join(_ALLOWED)}, found '{do[:40]}'")
    record: dict[str, Any] = {"do": do}
    if do in ("pause", "resume", "set") and (model := _single(fields, "model")):
        record["model"] = model
    if do == "set":
        for name in LIMITS:
            if text := _single(fields, name).strip():
                if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
                    raise ConfigurationError(f"{name}: expected a whole number (0 is no limit), found '{text[:40]}'")
                record[name] = int(text)
    if do == "cancel":
        record["keys"] = list(fields.get("key", ()))
        if not record["keys"]:
            raise ConfigurationError("no conversation is selected; select those to cancel")
    if do in ("cancel", "requeue") and (reason := _single(fields, "reason").strip()):
        record["reason"] = reason
    if do == "requeue" and "reason" not in record:
        record["failed"] = True
    return ControlRequest.read(record)


def confirmation(request: ControlRequest, fields: Mapping[str, Sequence[str]]) -> Confirmation | None:
    """Return what to ask before a request that ends work; None if it was asked, or need not be."""
    if request.do not in _CONFIRMED or _single(fields, "sure") == "yes":
        return None
    question, text = _CONFIRMED[request.do]
    repeated = [("key", key) for key in request.keys]
    repeated += [("reason", request.reason)] if request.reason else []
    return Confirmation(request.do, question, text, repeated)


def _single(fields: Mapping[str, Sequence[str]], name: str) -> str:
    values = fields.get(name, ())
    if len(values) > 1:
        raise ConfigurationError(f"{name}: expected one value, found {len(values)}")
    return values[0] if values else ""
