"""Reading a streamed chat completion (server-sent events). A stream that ends before its end is an error, whole.

What never belongs here: retries; anything about requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import orjson

from ..clock import Clock
from ..errors import Unavailable
from ..messages import Completion


async def read_stream(
    content: aiohttp.StreamReader, on_text: Callable[[str], None] | None, label: str, clock: Clock
) -> Completion:
    """Read to the end, handing on each piece of text. ``first_token`` is the clock's time of the first piece.

    :raises Unavailable: the stream broke off, or held something that is not a chunk of a completion.
    """
    pieces: list[str] = []
    finish: str | None = None
    usage: dict[str, Any] = {}
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
            if chunk.get("error"):
                raise Unavailable(f"the stream reported an error: {str(chunk['error'])[:200]}", model=label)
            usage = chunk.get("usage") or usage
            choices = chunk.get("choices") or ()
            piece = (choices[0].get("delta") or {}).get("content") if choices else None
            finish = (choices[0].get("finish_reason") if choices else None) or finish
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise Unavailable(f"the stream holds something that is not a chunk: {data[:100]!r}", model=label) from error
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
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        first_token=first,
    )
