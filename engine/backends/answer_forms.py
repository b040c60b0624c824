"""What an endpoint takes, found out by asking for less after each refusal: forms of structured output, system messages.

Providers and versions differ in what they can do about a JSON schema, and say so by refusing the request. Chat
templates without a system message refuse it likewise. What a form looks like in a request is the provider's.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from ..errors import BackendError, FormRefused, Rejected, Unavailable
from ..messages import Completion, Request, without_system
from ..tools import Toolbox

NOTHING = "prompt"  # the form that asks for nothing: the prompt's own words must do


# How endpoints say that they take no system message; servers of chat templates report what a template raises as their
# own fault. "must alternate" may be about other messages: then the refusal comes again.
_SYSTEM = re.compile(
    r"\bsystem[ _-]?(role|message|prompt|instruction)|\b(role|message)s?\b[^.\n]{0,40}\bsystem\b"
    r"|developer instruction|roles? must alternate|\brole\b[^\n]{0,60}\buser\b[^\n]{0,20}\bassistant\b"
    r"|\bonly user\b[^\n]{0,40}\broles\b|\bfirst message\b[^\n]{0,40}\buser\b"
    r"|\b(start|begin)s? with [^\n]{0,20}\buser\b",
    re.IGNORECASE,
)
_REFUSING = re.compile(r"\bnot\b|n't\b|\bno\b|unsupported|invalid|unexpected|unknown|must|should|only|cannot", re.I)
_REFUSED_WITH = (400, 422, 500)


class AnswerForms:
    """The ladder of one endpoint, and the step that it stands on.

    ``after`` names for each form the one to try when it is refused; ``NOTHING`` ends all of them. ``takes_system`` is
    false once an endpoint that refused a system message took the same text as the user's.
    """

    def __init__(self, first: str, after: Mapping[str, str]) -> None:
        self.chosen = first
        self.takes_system = True
        self._after = after
        # Requests under way for which is being found out what is taken.
        self._probing: dict[bytes, str] = {}
        self._without_system: set[bytes] = set()

    async def ask(
        self, request: Request, attempt: Callable[[Request, str], Awaitable[Completion]], label: str
    ) -> Completion:
        """Make one attempt, in the form that is known or to be tried next.

        :raises FormRefused: this form, or a system message, was refused; asked again, the request is made with less.
        """
        structured = request.sampling.schema is not None
        form = self._probing.get(request.digest, self.chosen) if structured else NOTHING
        sent = request
        if (not self.takes_system or request.digest in self._without_system) and _has_system(request):
            sent = replace(request, messages=without_system(request.messages))
        try:
            completion = await attempt(sent, form)
        except BackendError as error:
            if sent is request and _refuses_system(error) and _has_system(request):
                self._without_system.add(request.digest)
                raise FormRefused("refused a system message", model=label, status=error.status) from error
            if not isinstance(error, Rejected):
                raise
            self._without_system.discard(request.digest)
            self._probing.pop(request.digest, None)
            # 400/422 may mean that the endpoint does not know this form of answer: ask again with less.
            if type(error) is not Rejected or error.status not in (400, 404, 422):
                raise
            if form == NOTHING or error.status == 404:
                if request.tools is None:
                    raise
                raise _with_tools(error, request.tools) from error
            self._probing[request.digest] = self._after[form]
            raise FormRefused(f"refused structured output as '{form}'", model=label, status=error.status) from error
        # Remembered: the next request does not pay for finding out.
        if self._probing.pop(request.digest, None) is not None:
            self.chosen = form
        if request.digest in self._without_system:
            self._without_system.discard(request.digest)
            if self.takes_system:
                self.takes_system = False
                logging.getLogger("viva").warning(
                    "%s: takes no system messages; what they say stands before the user's next message", label
                )
        return completion


def _has_system(request: Request) -> bool:
    return any(message.role == "system" for message in request.messages)


def _refuses_system(error: BackendError) -> bool:
    """Whether an endpoint may have refused a request for its system message."""
    said = str(error)
    return (
        type(error) in (Rejected, Unavailable)
        and error.status in _REFUSED_WITH
        and _SYSTEM.search(said) is not None
        and _REFUSING.search(said) is not None
    )


def _with_tools(error: Rejected, tools: Toolbox) -> Rejected:
    """The same refusal, and what is most likely behind it."""
    said = str(error).removeprefix(f"{error.model}: ")
    names = ", ".join(tools.names[:3]) + (", …" if len(tools.names) > 3 else "")
    return Rejected(
        f"{said} (the request offered tools: {names}; an endpoint or a model that takes none cannot be asked this)",
        model=error.model,
        status=error.status,
    )
