"""What vLLM and SGLang add to an OpenAI-compatible endpoint, as their documentation has it: log-probabilities of a
prompt, token ids, answers under a schema. The words and figures are those of ``chaos_answers.echo``.
"""

from __future__ import annotations

import zlib
from typing import Any

from chaos_answers import echo

Body = dict[str, Any]


def refused(body: Body) -> str | None:
    """What vLLM finds wrong with a request, None where it takes it."""
    if body.get("stream") and body.get("prompt_logprobs") is not None:
        return "`prompt_logprobs` are not available when `stream=True`."
    if "structured_outputs" in body:
        kinds = set(body["structured_outputs"]) & {
            "json",
            "regex",
            "choice",
            "grammar",
            "json_object",
            "structural_tag",
        }
        if len(kinds) != 1:
            return "You can only use one kind of structured outputs constraint but multiple are specified"
    return None


def prompt_logprobs(body: Body, told: bool, ids: bool) -> Body:
    """A completion with the log-probabilities of its prompt: null for the first token, then for each its own entry and
    that of the likeliest one, by ids. Without ``told`` the endpoint does not know the parameter.
    """
    answer = echo(body["prompt"], True)
    [choice] = answer["choices"]
    listed = choice.pop("logprobs")
    tokens, values = listed["tokens"][:-1], listed["token_logprobs"][:-1]
    choice |= {"text": " so", "logprobs": None}
    if told:
        choice["prompt_logprobs"] = [None] + [
            _place(token, value) for token, value in zip(tokens[1:], values[1:], strict=True)
        ]
    if told and ids and body.get("return_token_ids"):
        choice |= {"prompt_token_ids": [_id(token) for token in tokens], "token_ids": [_id(" so")]}
    return answer


def _place(token: str, value: float) -> Body:
    best = value > -6.0
    place = {str(_id(token)): {"logprob": value, "rank": 1 if best else 5, "decoded_token": token}}
    if not best:
        place[str(_id(" other"))] = {"logprob": value / 2, "rank": 1, "decoded_token": " other"}
    return place


def token_ids(text: str) -> list[int]:
    """The ids of a text's tokens: a token is a word with the blanks around it."""
    return [_id(word) for word in text.split()]


def generated(body: Body, told: bool) -> Body:
    """SGLang's answer to ``/generate``: log-probability, id and text of each token of the input."""
    answer = echo(body["text"], True)
    listed, usage = answer["choices"][0]["logprobs"], answer["usage"]
    tokens, values = listed["tokens"][:-1], listed["token_logprobs"][:-1]
    meta: Body = {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": 1, "finish_reason": {"type": "length"}}
    if told and body.get("return_logprob") and body["logprob_start_len"] == 0:
        texts = tokens if body.get("return_text_in_logprobs") else [None] * len(tokens)
        listed = zip(values, map(_id, tokens), texts, strict=True)
        meta["input_token_logprobs"] = list(listed)
        places = [_place(token, value) for token, value in zip(tokens[1:], values[1:], strict=True)]
        meta["input_top_logprobs"] = [None, *([_likeliest(place)] for place in places)]
    return {"text": " so", "meta_info": meta}


def _likeliest(place: Body) -> list[Any]:
    id_, one = next((id_, one) for id_, one in place.items() if one["rank"] == 1)
    return [one["logprob"], int(id_), one["decoded_token"]]


def _id(token: str) -> int:
    return zlib.crc32(token.encode()) % 100_000
