"""Reading the log-probabilities of a prompt's end from an echoing completions endpoint.

What never belongs here: sending requests.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..errors import Rejected
from ..likelihood import Likelihood
from ..messages import Completion
from .openai_errors import scrub


def parse_echo(data: bytes, start: int, length: int, label: str, key: str | None = None) -> Completion:
    """The likelihood of the ``length`` characters from ``start`` on; a token that began before ``start`` counts if it
    reaches beyond it. The first token of a text has no log-probability and is left out.

    :raises Rejected: the endpoint did not echo the prompt with its log-probabilities.
    """
    try:
        answer = orjson.loads(data)
        told = answer["choices"][0]["logprobs"]
        tokens, offsets = told["tokens"], told["text_offset"]
        values, tops = told["token_logprobs"], told.get("top_logprobs") or [None] * len(tokens)
        likelihood = Likelihood([], True)
        for index, (token, value, top) in enumerate(zip(tokens, values, tops, strict=True)):
            end = offsets[index + 1] if index + 1 < len(offsets) else offsets[index] + len(token)
            # What begins behind the text is the one token that the endpoint had to generate.
            if value is None or end <= start or offsets[index] >= start + length:
                continue
            likelihood.logprobs.append(float(value))
            likelihood.greedy = likelihood.greedy and _is_best(float(value), top)
        if not likelihood.logprobs or offsets[0] != 0:
            raise ValueError("no log-probabilities of the prompt")
        usage = answer.get("usage") or {}
        prompt = int(usage.get("prompt_tokens") or len(tokens))
        return Completion("", "stop", prompt, int(usage.get("completion_tokens") or 0), likelihoods=[likelihood])
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError) as error:
        shown = scrub(data.decode("utf-8", "replace"), key)[:200]
        raise Rejected(
            f"the endpoint does not give the log-probabilities of a prompt (echo with logprobs): {error}: {shown}",
            model=label,
        ) from error


def _is_best(value: float, top: Any) -> bool:
    return not top or value >= max(top.values())
