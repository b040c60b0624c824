"""Log-probabilities of given texts from OpenAI-compatible endpoints, by one of three methods.

`echo` is the original method of the completions endpoint; `prompt_logprobs` is vLLM's parameter of that endpoint;
`generate` is SGLang's own endpoint. The tokens of the continuation are found by their texts, not by `text_offset`: some
endpoints include the opening token's text in the offsets, or count each part of a character as a character.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

from ..errors import Rejected
from ..likelihood import Likelihood
from ..messages import Completion
from .endpoint_answer import FORMAT_ERRORS, answer_error, parse_json, parse_usage, require_text
from .redaction import Redactor

_NO_KEY = Redactor(None)
_LOWEST_LOGPROB = 1e9  # nats; sums of values within this bound stay finite


def parse_echo(data: bytes, before: str, continuation: str, label: str, redact: Redactor = _NO_KEY) -> Completion:
    """Return the likelihood of `continuation` in the echo of `before + continuation`."""
    with _likelihood_errors("echo with logprobs", data, label, redact):
        answer = parse_json(data, label)
        logprobs = answer["choices"][0]["logprobs"]
        tokens, values = logprobs["tokens"], logprobs["token_logprobs"]
        tops = logprobs.get("top_logprobs") or [None] * len(tokens)
        usage = parse_usage(answer.get("usage"), redact)
        counted = isinstance(answer.get("usage"), dict) and "completion_tokens" in answer["usage"] and not usage.note
        generated = usage.completion if counted else 1  # tokens that the endpoint generated are at the end
        count = len(tokens) - generated
        if count < 1 or not len(tokens) == len(values) == len(tops):
            raise ValueError("no log-probabilities of the prompt")
        offsets: Sequence[int] = logprobs["text_offset"]
        likelihood = read_continuation(tokens[:count], values, tops, offsets, before, continuation)
        return usage._replace(prompt=usage.prompt or count, completion=generated).completion_with(
            "", likelihoods=[likelihood]
        )


@contextmanager
def _likelihood_errors(option: str, data: bytes, label: str, redact: Redactor) -> Iterator[None]:
    """Raise `Rejected` if an answer lacks the prompt's log-probabilities."""
    try:
        yield
    except FORMAT_ERRORS as error:
        problem = f"the endpoint does not give the log-probabilities of a prompt ({option})"
        raise answer_error(problem, label, redact, data, error, Rejected) from None


def read_continuation(
    tokens: Sequence[str],
    values: Sequence[Any],
    tops: Sequence[Any],
    offsets: Sequence[int],
    before: str,
    continuation: str,
) -> Likelihood:
    """Return the likelihood of `continuation`, the end of the prompt that `tokens` spell.

    A token that begins in `before` counts if it reaches into the continuation. The first token listed, the text's first
    or one that opens every text, may have no log-probability and is then left out.

    `values` are the tokens' log-probabilities in nats. `tops` are, for each token, the likeliest tokens at its position
    with their log-probabilities, or nothing. `offsets` say where each token begins in the prompt; they are needed if
    the tokens do not spell the prompt.

    Raises:
        ValueError: The tokens do not belong to the prompt.
        TypeError: A value is not a number.
    """
    likelihood = Likelihood([], True)
    for index in range(_first_token_index(tokens, offsets, before, continuation), len(tokens)):
        value = values[index]
        if value is None and index == 0:
            continue
        number = float(value)
        if not -_LOWEST_LOGPROB <= number < math.inf and number != -math.inf:
            raise ValueError(f"a log-probability of {number}")
        likelihood.logprobs.append(number)
        likelihood.greedy = likelihood.greedy and _has_best_logprob(number, tops[index])
    if not likelihood.logprobs:
        raise ValueError("no log-probabilities of the prompt")
    return likelihood


def _first_token_index(tokens: Sequence[str], offsets: Sequence[int], before: str, continuation: str) -> int:
    """Return the index of the continuation's first token; raise ValueError if the tokens are not the prompt's."""
    prompt = before + continuation
    for bare in (str, _without_blanks):  # some endpoints drop a token's leading blank
        whole, length, spelled = bare(prompt), len(bare(continuation)), ""
        for index in reversed(range(len(tokens))):
            spelled = bare(tokens[index]) + spelled
            if not whole.endswith(spelled):
                break
            if len(spelled) >= length:
                while bare is not str and index and not tokens[index - 1].strip() and not before[-1:].isspace():
                    index -= 1  # leading blanks of the continuation that are separate tokens
                while index > 1 and not tokens[index - 1] and not spelled.isascii():
                    index -= 1  # parts of a character that its last token spells
                return index
    # Tokens that share a character do not spell it. Offsets can be trusted if they end where the prompt ends.
    ends = [*offsets[1 : len(tokens) + 1], offsets[-1] + len(tokens[-1])][: len(tokens)]
    if offsets[0] != 0 or ends[-1] != len(prompt):
        raise ValueError("the tokens listed do not spell the prompt")
    return next(index for index, end in enumerate(ends) if end > len(before) or offsets[index] >= len(before))


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _has_best_logprob(value: float, top: Any) -> bool:
    return not top or value >= max(top.values())


_GENERATED_TOKENS = 1  # minimum number of tokens of a completion
ParseLikelihood = Callable[[bytes, str, str, str, Redactor], Completion]


class LikelihoodMethod(NamedTuple):
    """A method to request and parse likelihoods.

    `body` builds a request from a model name and a text; `parse` reads the answer (data, text before the continuation,
    continuation, label, redactor). `path` is relative to the base URL, or to its root (`rooted`).
    """

    path: str
    rooted: bool
    body: Callable[[str, str], dict[str, Any]]
    parse: ParseLikelihood


def _echo_body(model: str, text: str) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": text,
        "max_tokens": _GENERATED_TOKENS,
        "temperature": 0,
        "echo": True,
        "logprobs": 1,
    }


def _prompt_body(model: str, text: str) -> dict[str, Any]:
    body = {"model": model, "prompt": text, "max_tokens": _GENERATED_TOKENS, "temperature": 0}
    return body | {"prompt_logprobs": 1, "return_token_ids": True}


def _generate_body(model: str, text: str) -> dict[str, Any]:
    sampling = {"max_new_tokens": _GENERATED_TOKENS, "temperature": 0}
    body = {"text": text, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    return body | {"top_logprobs_num": 1, "return_text_in_logprobs": True}


def parse_prompt_logprobs(data: bytes, before: str, continuation: str, label: str, redact: Redactor) -> Completion:
    """Return the likelihood of `continuation` from vLLM's `prompt_logprobs`.

    For each token of the prompt, the answer has a map whose keys are the ids of tokens possible at its position, its
    own included. For the first token it has null.
    """
    with _likelihood_errors("prompt_logprobs", data, label, redact):
        answer = parse_json(data, label)
        choice = answer["choices"][0]
        places: Sequence[Mapping[str, Any] | None] = choice["prompt_logprobs"]
        ids = choice.get("prompt_token_ids") or [None] * len(places)
        tokens: list[str] = []
        values: list[Any] = []
        tops: list[dict[str, Any] | None] = []
        for likely, id_ in zip(places, ids, strict=True):
            # Without ids: the prompt's own token precedes the likelier ones.
            own = None if not likely else likely[str(id_) if id_ is not None else next(iter(likely))]
            tokens.append("" if own is None else require_text(own["decoded_token"]))
            values.append(None if own is None else own["logprob"])
            tops.append({name: candidate["logprob"] for name, candidate in likely.items()} if likely else None)
        return _likelihood_completion(answer.get("usage"), tokens, values, tops, before, continuation, redact)


def parse_generated(data: bytes, before: str, continuation: str, label: str, redact: Redactor) -> Completion:
    """Return the likelihood of `continuation` from SGLang's (log-probability, id, text) of each token."""
    with _likelihood_errors("return_logprob", data, label, redact):
        meta = parse_json(data, label)["meta_info"]
        listed = meta["input_token_logprobs"]
        tokens = [require_text(text) for _, _, text in listed]
        values = [value for value, _, _ in listed]
        likeliest = meta.get("input_top_logprobs") or [None] * len(listed)
        tops = [{str(id_): value for value, id_, _ in likely} if likely else None for likely in likeliest]
        if len(tops) != len(tokens):
            raise ValueError("no log-probabilities of the prompt")
        return _likelihood_completion(meta, tokens, values, tops, before, continuation, redact)


def _likelihood_completion(
    counts: Any,
    tokens: list[str],
    values: list[Any],
    tops: list[dict[str, Any] | None],
    before: str,
    continuation: str,
    redact: Redactor,
) -> Completion:
    """Return a completion from the tokens of a prompt. The first may lack text and log-probability."""
    prompt, rest = before + continuation, "".join(tokens[1:])
    if tokens and not tokens[0] and prompt.endswith(rest):
        tokens[0] = prompt.removesuffix(rest)
    offsets = [0, *accumulate(map(len, tokens))][: len(tokens)]
    likelihood = read_continuation(tokens, values, tops, offsets, before, continuation)
    usage = parse_usage(counts, redact)
    usage = usage._replace(prompt=usage.prompt or len(tokens), completion=usage.completion or _GENERATED_TOKENS)
    return usage.completion_with("", likelihoods=[likelihood])


LIKELIHOOD_METHODS: dict[str, LikelihoodMethod] = {
    "echo": LikelihoodMethod("/completions", False, _echo_body, parse_echo),
    "prompt_logprobs": LikelihoodMethod("/completions", False, _prompt_body, parse_prompt_logprobs),
    "generate": LikelihoodMethod("/generate", True, _generate_body, parse_generated),
}


def build_likelihood_url(way: LikelihoodMethod, base_url: str) -> str:
    """Return the URL that texts are sent to."""
    return (base_url.removesuffix("/v1") if way.rooted else base_url) + way.path
