"""Which form of structured output an endpoint takes, found out by asking for less after each refusal.

Providers and versions differ in what they can do about a JSON schema, and say so by refusing the request. What never
belongs here: what a form looks like in a request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ..errors import FormRefused, Rejected
from ..messages import Completion, Request
from ..tools import Toolbox

NOTHING = "prompt"  # the form that asks for nothing: the prompt's own words must do


class AnswerForms:
    """The ladder of one endpoint, and the step that it stands on.

    ``after`` names for each form the one to try when it is refused; ``NOTHING`` ends all of them.
    """

    def __init__(self, first: str, after: Mapping[str, str]) -> None:
        self.chosen = first
        self._after = after
        self._probing: dict[bytes, str] = {}  # requests under way whose form is being found out

    async def ask(self, request: Request, attempt: Callable[[str], Awaitable[Completion]], label: str) -> Completion:
        """Make one attempt, in the form that is known or to be tried next.

        :raises FormRefused: this form was refused; asked again, the request is made with the next one.
        """
        structured = request.sampling.schema is not None
        form = self._probing.get(request.digest, self.chosen) if structured else NOTHING
        try:
            completion = await attempt(form)
        except Rejected as error:
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
        if self._probing.pop(request.digest, None) is not None:
            self.chosen = form  # remembered: the next request does not pay for finding out
        return completion


def _with_tools(error: Rejected, tools: Toolbox) -> Rejected:
    """The same refusal, and what is most likely behind it."""
    said = str(error).removeprefix(f"{error.model}: ")
    names = ", ".join(tools.names[:3]) + (", …" if len(tools.names) > 3 else "")
    return Rejected(
        f"{said} (the request offered tools: {names}; an endpoint or a model that takes none cannot be asked this)",
        model=error.model,
        status=error.status,
    )
