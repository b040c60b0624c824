"""Reading a streamed chat completion (server-sent events). A stream that ends before its end is an error, whole.

What never belongs here: retries; anything about requests.
"""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import orjson

from ..clock import Clock
from ..errors import Unavailable
from ..messages import Completion

_USAGE = ("prompt_tokens", "completion_tokens")


async def read_stream(
    content: aiohttp.StreamReader,
    on_text: Callable[[str], None] | None,
    label: str,
    clock: Clock,
    clean: Callable[[str], str],
) -> Completion:
    """Read to the end, handing on each piece of text. ``first_token`` is the clock's time of the first piece.

    ``clean`` takes the key out of whatever is quoted in an error.

    :raises Unavailable: the stream broke off, or held something that is not a chunk of a completion.
    """
    pieces: list[str] = []
    finish: str | None = None
    usage: dict[str, int] = {}
    first: float | None = None
    ended = False
    async for raw in content:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            break
        try:
            chunk = orjson.loads(data)
            problem = chunk.get("error")
            usage = {name: int(chunk["usage"].get(name) or 0) for name in _USAGE} if chunk.get("usage") else usage
            choices = chunk.get("choices") or ()
            piece = (choices[0].get("delta") or {}).get("content") if choices else None
            finish = (choices[0].get("finish_reason") if choices else None) or finish
            if not isinstance(piece, str | None):
                raise TypeError(f"content is {type(piece).__name__}, not text")
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            shown = clean(data.decode("utf-8", "replace"))[:200]
            raise Unavailable(f"the stream holds something that is not a chunk: {shown}", model=label) from error
        if problem:
            raise Unavailable(f"the stream reported an error: {clean(str(problem))[:200]}", model=label)
        if piece:
            if first is None:
                first = clock.now()
            pieces.append(piece)
            if on_text is not None:
                on_text(piece)
    if not ended and finish is None:
        raise Unavailable("the stream broke off before its end", model=label)
    return Completion(
        "".join(pieces),
        "length" if finish == "length" else "stop",
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        first_token=first,
    )
