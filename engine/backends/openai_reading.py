"""How an OpenAI-compatible endpoint is asked for the log-probabilities of a given text: three ways, one of which most
servers have.

``echo`` is what the completions endpoint was first made with; ``prompt_logprobs`` is vLLM's parameter of it;
``generate`` is SGLang's own endpoint. What never belongs here: sending requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ..messages import Completion
from .endpoint_json import decoded, text_at
from .openai_echo import likelihood_of, parse_echo, refused_reading
from .openai_usage import usage_of
from .secrets import Redactor

_GENERATED = 1  # tokens, at least, that a completion has
Parse = Callable[[bytes, str, str, str, Redactor], Completion]


class Way(NamedTuple):
    """``body`` makes a request of a model's name and a text; ``parse`` reads the answer (data, what stands before the
    continuation, the continuation, label, redactor). ``path`` begins at the base URL, or at what it stands on
    (``rooted``).
    """

    path: str
    rooted: bool
    body: Callable[[str, str], dict[str, Any]]
    parse: Parse


def _echo_body(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "prompt": text, "max_tokens": _GENERATED, "temperature": 0, "echo": True, "logprobs": 1}


def _prompt_body(model: str, text: str) -> dict[str, Any]:
    body = {"model": model, "prompt": text, "max_tokens": _GENERATED, "temperature": 0}
    return body | {"prompt_logprobs": 1, "return_token_ids": True}


def _generate_body(model: str, text: str) -> dict[str, Any]:
    sampling = {"max_new_tokens": _GENERATED, "temperature": 0}
    body = {"text": text, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    return body | {"top_logprobs_num": 1, "return_text_in_logprobs": True}


def parse_prompt_logprobs(data: bytes, before: str, continuation: str, label: str, redact: Redactor) -> Completion:
    """The likelihood of ``continuation`` in vLLM's ``prompt_logprobs``: for each token of the prompt the tokens that
    could stand in its place, by their ids, itself among them; null for the first one.

    :raises Rejected: the endpoint gave none, or not those of the prompt's tokens.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    with refused_reading("prompt_logprobs", data, label, redact):
        answer = decoded(data, label)
        choice = answer["choices"][0]
        places: Sequence[Mapping[str, Any] | None] = choice["prompt_logprobs"]
        ids = choice.get("prompt_token_ids") or [None] * len(places)
        tokens: list[str] = []
        values: list[Any] = []
        tops: list[dict[str, Any] | None] = []
        for place, id_ in zip(places, ids, strict=True):
            # Without ids: the prompt's own token stands before the likelier ones.
            own = None if not place else place[str(id_) if id_ is not None else next(iter(place))]
            tokens.append("" if own is None else text_at(own["decoded_token"]))
            values.append(None if own is None else own["logprob"])
            tops.append({name: one["logprob"] for name, one in place.items()} if place else None)
        return _completion(answer.get("usage"), tokens, values, tops, before, continuation, redact)


def parse_generated(data: bytes, before: str, continuation: str, label: str, redact: Redactor) -> Completion:
    """The likelihood of ``continuation`` in what SGLang's ``/generate`` tells of its input: log-probability, id and
    text of each token, and of the likeliest ones in its place.

    :raises Rejected: the endpoint told none, or not those of the prompt's tokens.
    :raises AnswerTooLarge: it holds more values than an answer may.
    """
    with refused_reading("return_logprob", data, label, redact):
        told = decoded(data, label)["meta_info"]
        listed = told["input_token_logprobs"]
        tokens = [text_at(text) for _, _, text in listed]
        values = [value for value, _, _ in listed]
        likeliest = told.get("input_top_logprobs") or [None] * len(listed)
        tops = [{str(id_): value for value, id_, _ in place} if place else None for place in likeliest]
        if len(tops) != len(tokens):
            raise ValueError("no log-probabilities of the prompt")
        return _completion(told, tokens, values, tops, before, continuation, redact)


def _completion(
    counts: Any,
    tokens: list[str],
    values: list[Any],
    tops: list[dict[str, Any] | None],
    before: str,
    continuation: str,
    redact: Redactor,
) -> Completion:
    """An answer from the tokens of a prompt. The first one's text may be missing, as its log-probability is."""
    prompt, rest = before + continuation, "".join(tokens[1:])
    if tokens and not tokens[0] and prompt.endswith(rest):
        tokens[0] = prompt.removesuffix(rest)
    offsets = [0, *accumulate(map(len, tokens))][: len(tokens)]
    likelihood = likelihood_of(tokens, values, tops, offsets, before, continuation)
    usage = usage_of(counts, redact)
    return Completion(
        "",
        "stop",
        usage.prompt or len(tokens),
        usage.completion or _GENERATED,
        likelihoods=[likelihood],
        usage_note=usage.note,
        cached_tokens=usage.cached,
    )


WAYS: dict[str, Way] = {
    "echo": Way("/completions", False, _echo_body, parse_echo),
    "prompt_logprobs": Way("/completions", False, _prompt_body, parse_prompt_logprobs),
    "generate": Way("/generate", True, _generate_body, parse_generated),
}


def url_of(way: Way, base_url: str) -> str:
    """Where a text is sent to."""
    return (base_url.removesuffix("/v1") if way.rooted else base_url) + way.path
