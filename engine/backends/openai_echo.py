"""Reading the log-probabilities of a prompt's end from an echoing completions endpoint.

Which tokens belong to the end is told from what they spell, not from ``text_offset``: some endpoints count the text of
the opening token into it, or each part of a character as one. What never belongs here: sending requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from ..errors import Rejected
from ..likelihood import Likelihood
from ..messages import Completion
from .endpoint_json import decoded
from .openai_usage import usage_of
from .secrets import Redactor

_NO_KEY = Redactor(None)
_LOWEST = 1e9  # nats; sums of what lies within stay finite


def parse_echo(data: bytes, before: str, continuation: str, label: str, redact: Redactor = _NO_KEY) -> Completion:
    """The likelihood of ``continuation`` in the echo of ``before + continuation``.

    :raises Rejected: the endpoint did not echo the prompt with its log-probabilities, or not those of its tokens.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    with refused_reading("echo with logprobs", data, label, redact):
        answer = decoded(data, label)
        told = answer["choices"][0]["logprobs"]
        tokens, values = told["tokens"], told["token_logprobs"]
        tops = told.get("top_logprobs") or [None] * len(tokens)
        usage = usage_of(answer.get("usage"), redact)
        counted = isinstance(answer.get("usage"), dict) and "completion_tokens" in answer["usage"] and not usage.note
        generated = usage.completion if counted else 1  # what the endpoint had to say itself stands at the end
        count = len(tokens) - generated
        if count < 1 or not len(tokens) == len(values) == len(tops):
            raise ValueError("no log-probabilities of the prompt")
        offsets: Sequence[int] = told["text_offset"]
        likelihood = likelihood_of(tokens[:count], values, tops, offsets, before, continuation)
        prompt = usage.prompt or count
        return Completion(
            "", "stop", prompt, generated, likelihoods=[likelihood], usage_note=usage.note, cached_tokens=usage.cached
        )


@contextmanager
def refused_reading(asked: str, data: bytes, label: str, redact: Redactor) -> Iterator[None]:
    """Around the reading of an answer to what was ``asked``.

    :raises Rejected: in the place of whatever shows that it holds no log-probabilities of the prompt.
    """
    try:
        yield
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        shown = f"{redact.cut(str(error), 200)}: {redact.quote(data, 200)}"
        raise Rejected(
            f"the endpoint does not give the log-probabilities of a prompt ({asked}): {shown}", model=label
        ) from None


def likelihood_of(
    tokens: Sequence[str],
    values: Sequence[Any],
    tops: Sequence[Any],
    offsets: Sequence[int],
    before: str,
    continuation: str,
) -> Likelihood:
    """The likelihood of ``continuation``, the end of the prompt that ``tokens`` spell.

    A token that begins in ``before`` counts if it reaches into the continuation. The first token listed, the first of
    the text or one that opens every text, may have no log-probability and is then left out.

    :param values: the log-probability of each token, in nats. :param tops: for each, the likeliest ones in its place
        with theirs, or nothing. :param offsets: where each begins in the prompt; needed if they do not spell it.
    :raises ValueError, TypeError: they are not those of the prompt, or no numbers.
    """
    likelihood = Likelihood([], True)
    for index in range(_first(tokens, offsets, before, continuation), len(tokens)):
        value = values[index]
        if value is None and index == 0:
            continue
        number = float(value)
        if not -_LOWEST <= number < math.inf and number != -math.inf:
            raise ValueError(f"a log-probability of {number}")
        likelihood.logprobs.append(number)
        likelihood.greedy = likelihood.greedy and _is_best(number, tops[index])
    if not likelihood.logprobs:
        raise ValueError("no log-probabilities of the prompt")
    return likelihood


def _first(tokens: Sequence[str], offsets: Sequence[int], before: str, continuation: str) -> int:
    """The index of the continuation's first token, of the prompt's tokens.

    :raises ValueError: the tokens are not those of the prompt.
    """
    prompt = before + continuation
    for bare in (str, _without_blanks):  # some endpoints drop the blank that a token begins with
        whole, wanted, spelled = bare(prompt), len(bare(continuation)), ""
        for index in reversed(range(len(tokens))):
            spelled = bare(tokens[index]) + spelled
            if not whole.endswith(spelled):
                break
            if len(spelled) >= wanted:
                while bare is not str and index and not tokens[index - 1].strip() and not before[-1:].isspace():
                    index -= 1  # blanks of the continuation's own that are tokens of their own
                while index > 1 and not tokens[index - 1] and not spelled.isascii():
                    index -= 1  # parts of a character that is spelled by its last one
                return index
    # Tokens that share a character do not spell it. Offsets can be trusted if they end where the prompt ends.
    ends = [*offsets[1 : len(tokens) + 1], offsets[-1] + len(tokens[-1])][: len(tokens)]
    if offsets[0] != 0 or ends[-1] != len(prompt):
        raise ValueError("the tokens listed do not spell the prompt")
    return next(index for index, end in enumerate(ends) if end > len(before) or offsets[index] >= len(before))


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _is_best(value: float, top: Any) -> bool:
    return not top or value >= max(top.values())
