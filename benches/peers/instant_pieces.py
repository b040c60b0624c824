"""A model that answers at once, word by word: what is left of a request's time is the server's own."""

from __future__ import annotations

import asyncio

import viva


class Pieces(viva.Backend):
    """Says as many words as it may, each in a piece of its own."""

    label = "pieces"

    async def generate(self, request: viva.Request) -> viva.Completion:
        """Let others run between any two pieces, as a model that computes would."""
        count = request.sampling.max_tokens
        if request.on_text is not None:
            for _ in range(count):
                await asyncio.sleep(0)
                request.on_text(" word")
        return viva.Completion(" word" * count, "length", 100, count)
