"""The Gemini API as far as the chaos server plays it: what it refuses, in its documented words, and its answers."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

Body = dict[str, Any]

ERRORS = {
    "400": (400, "INVALID_ARGUMENT", "Request contains an invalid argument."),
    "bad_key": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    "401": (401, "UNAUTHENTICATED", "the key {key} is not known"),
    "403": (403, "PERMISSION_DENIED", "the key {key} does not have the required permissions"),
    "404": (404, "NOT_FOUND", "models/gemini-none is not found for API version v1beta"),
    "429": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
    "500": (500, "INTERNAL", "An internal error has occurred."),
    "503": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "504": (504, "DEADLINE_EXCEEDED", "The request took too long."),
    "context_too_long": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
}
_CONFIG = {
    "temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "frequencyPenalty", "presencePenalty",
    "responseMimeType", "responseJsonSchema", "responseLogprobs", "logprobs", "thinkingConfig",
}  # fmt: skip
SKIP = "skip_thought_signature_validator"


def error_of(do: str, message: str | None = None, delay: float | None = None) -> tuple[int, Body]:
    """Status and body of an error; ``delay`` in seconds, as its details name it."""
    code, status, usual = ERRORS[do]
    details: list[Body] = []
    if do == "bad_key":
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"})
    if delay is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{delay}s"})
    error: Body = {"code": code, "message": message or usual, "status": status}
    return code, {"error": error | ({"details": details} if details else {})}


def refused(body: Body, model: str) -> str | None:
    """What the API finds wrong with a request, in its words; None where it takes it."""
    if not body.get("contents"):
        return "* GenerateContentRequest.contents: contents is not specified"
    for name in body["generationConfig"].keys() - _CONFIG:
        return f"Invalid JSON payload received. Unknown name \"{name}\" at 'generation_config': Cannot find field."
    if not 0 <= body["generationConfig"].get("seed", 0) < 2**31:
        return "Invalid value at 'generation_config.seed' (TYPE_INT32)"
    generation = re.search(r"gemini-(\d+)", model)
    signs = generation is not None and int(generation[1]) >= 3
    asked = 0
    for turn in body["contents"]:
        calls = [part for part in turn["parts"] if "functionCall" in part]
        results = sum("functionResponse" in part for part in turn["parts"])
        if results != asked:
            return (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        asked = len(calls)
        if calls and signs:
            signature = calls[0].get("thoughtSignature")
            if signature is None:
                return "Function call is missing a thought_signature in functionCall parts."
            if signature not in (SKIP, signature_of(calls[0]["functionCall"])):
                return "Thought signature is not valid."
    return None


def signature_of(call: Body) -> str:
    """The signature of what was thought before a call."""
    return hashlib.blake2b(json.dumps(call, sort_keys=True).encode(), digest_size=12).hexdigest()


def answer(body: Body, model: str, text: str, behaviour: Body) -> Body:
    """A whole answer: thoughts (where the request wants any), text, calls."""
    if behaviour.get("blocked"):
        return {"promptFeedback": {"blockReason": behaviour["blocked"]}, "usageMetadata": {"promptTokenCount": 9}}
    parts: list[Body] = []
    config = body["generationConfig"]
    thoughts = behaviour.get("thoughts", "")
    if thoughts and (config.get("thinkingConfig") or {}).get("includeThoughts"):
        parts.append({"text": thoughts, "thought": True})
    if text:
        parts.append({"text": text})
    for place, call in enumerate(behaviour.get("calls", []) if "tools" in body else []):
        signed = {"thoughtSignature": signature_of(call)} if place == 0 and "gemini-3" in model else {}
        parts.append({"functionCall": call} | signed)
    candidate: Body = {
        "content": {"role": "model", "parts": parts}, "finishReason": behaviour.get("stop", "STOP"), "index": 0
    }  # fmt: skip
    if config.get("responseLogprobs"):
        candidate["logprobsResult"] = _logprobs(text)
    prompt = len(json.dumps(body["contents"])) // 4
    usage = {"promptTokenCount": prompt, "cachedContentTokenCount": 3, "candidatesTokenCount": len(text) // 4}
    if thoughts:
        usage["thoughtsTokenCount"] = len(thoughts) // 4
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}


def _logprobs(text: str) -> Body:
    chosen = [{"token": word, "tokenId": 7, "logProbability": -0.25} for word in re.findall(r"\s*\S+", text)]
    tops = [{"candidates": [one, {"token": "other", "logProbability": -1.5}]} for one in chosen]
    return {"chosenCandidates": chosen, "topCandidates": tops}


def chunks(whole: Body) -> list[Body]:
    """A whole answer as the events of a stream, each text in pieces; the last one has the end and the counts."""
    if "candidates" not in whole:
        return [whole]
    candidate = whole["candidates"][0]
    parts: list[Body] = []
    for part in candidate["content"]["parts"]:
        text = part.get("text")
        if text is None:
            parts.append(part)
        else:
            parts += [part | {"text": text[start : start + 9]} for start in range(0, len(text), 9)]
    found = [{"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts]
    last: Body = {"content": {"role": "model", "parts": [{"text": ""}]}}
    last |= {name: value for name, value in candidate.items() if name not in ("content", "parts")}
    return [*found, {"candidates": [last], "usageMetadata": whole["usageMetadata"]}]
