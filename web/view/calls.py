"""Calls of a conversation: when they were made, and one call in full.

The timeline has a bar for each call and step, on one axis. A call's own page has what turns leave out: the whole
request with the part that was new, its options, the answer's tokens with their log-probabilities, and the request as a
`curl` command and as a test case.
"""

from __future__ import annotations

import math
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from viva.engine.backends.base import ModelSpec
from viva.engine.conversation_replay import Entry, Exchange, Step
from viva.engine.errors import VivaError
from viva.engine.json_data import to_utf8_data
from viva.engine.messages import Sampling
from viva.scenarios.models import label_of_key, lineups
from viva.scenarios.registry import scenario_of_manifest

_MOST_BARS = 2_000
_THINNEST = 0.3  # per cent of the axis: a bar that can be seen
_LONGEST_PAUSE = 0.5  # of the time in which calls were under way: longer pauses are cut to it
_TOKEN_LEVELS = (0.99, 0.9, 0.5, 0.1)  # probabilities at which a token's shade changes
_LONGEST_ARGUMENT = 100_000  # bytes; systems limit an argument to 131,072
_CONTROLS = re.compile("[\x7f-\x9f]")
_OPENAI_URL = "https://api.openai.com/v1"
_SERVED_URL = "http://127.0.0.1:8000/v1"


@dataclass(slots=True)
class Bar:
    """A call or step on the axis: `start` and `width` in per cent, `seconds` its time, `waited` the pause before it.

    `anchor` names its turn, "" without one.
    """

    start: float
    width: float
    seconds: float
    waited: float
    tries: int = 1
    anchor: str = ""


@dataclass(slots=True)
class Lane:
    """The bars of one role or step in one branch; `side` is that of its turns."""

    name: str
    side: str
    bars: list[Bar] = field(default_factory=list)


@dataclass(slots=True)
class Timeline:
    """Calls on one axis: `seconds` from the first call's start to the last one's end; `cut` are shortened pauses.

    Of many calls only the first are shown; `hidden` counts the others.
    """

    lanes: list[Lane]
    seconds: float
    busy: float
    cut: list[float] = field(default_factory=list)
    hidden: int = 0


def timeline(entries: Iterable[Entry], anchors: Mapping[int, tuple[str, str]]) -> Timeline | None:
    """Return the timeline of a conversation; None if fewer than two calls have times.

    Args:
        entries: The conversation's entries.
        anchors: Anchor and side of the turn behind an entry, by `id(entry)`.
    """
    timed = [
        (entry.at - _seconds(entry), entry.at, entry)
        for entry in entries
        if isinstance(entry, Step | Exchange) and entry.at is not None and math.isfinite(entry.at - _seconds(entry))
    ]
    if len(timed) < 2:
        return None
    timed.sort(key=lambda each: each[:2])
    hidden = len(timed) - _MOST_BARS
    timed = timed[:_MOST_BARS]
    axis, cut = _shorten([(start, end) for start, end, _ in timed])
    times = [time for time, _ in axis]
    length = axis[-1][1] or 1.0
    lanes: dict[tuple[str, str], Lane] = {}
    reached = timed[0][0]
    for start, end, entry in timed:
        name = entry.role if isinstance(entry, Exchange) else entry.name
        anchor, side = anchors.get(id(entry), ("", "step" if isinstance(entry, Step) else "asking"))
        lane = lanes.setdefault((entry.branch, name), Lane(f"{entry.branch} {name}".strip(), side))
        left, right = (100 * _position(axis, times, moment) / length for moment in (start, end))
        tries = 1 if isinstance(entry, Step) or entry.completion is None else entry.completion.attempts
        width = max(_THINNEST, right - left)
        lane.bars.append(Bar(min(left, 100 - width), width, end - start, max(0.0, start - reached), tries, anchor))
        reached = max(reached, end)
    busy = sum(end - start for start, end in _union([(start, end) for start, end, _ in timed]))
    return Timeline(list(lanes.values()), reached - timed[0][0], busy, cut, max(0, hidden))


def _seconds(entry: Entry) -> float:
    if isinstance(entry, Step):
        return max(0.0, entry.seconds)
    return max(0.0, entry.completion.latency) if isinstance(entry, Exchange) and entry.completion is not None else 0.0


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join overlapping spans, which are sorted by their starts."""
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _shorten(spans: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], list[float]]:
    """Return points (time, position) of an axis on which long pauses are short, and the pauses that were shortened."""
    joined = _union(spans)
    longest = _LONGEST_PAUSE * sum(end - start for start, end in joined) or math.inf
    points, cut = [(joined[0][0], 0.0)], []
    for start, end in joined:
        time, position = points[-1]
        if start - time > longest:
            cut.append(start - time)
        position += min(start - time, longest)
        points += [(start, position), (end, position + end - start)]
    return points, cut


def _position(points: Sequence[tuple[float, float]], times: Sequence[float], moment: float) -> float:
    """Return a moment's position on the axis; `times` are those of its points."""
    at = bisect_left(times, moment, 1)
    if at >= len(points):
        return points[-1][1]
    (time, position), (later, after) = points[at - 1 : at + 1]
    share = (moment - time) / (later - time) if later > time else 0.0
    return position + share * (after - position)


@dataclass(slots=True)
class Token:
    """A token of an answer: its text, its probability's `level` from 0 (certain) to 4, and the figures in words."""

    text: str
    level: int
    figures: str


def tokens(logprobs: Sequence[Sequence[Any]] | None) -> list[Token]:
    """Return the tokens of a `Completion.logprobs`; tokens whose record is damaged are left out."""
    result = []
    for entry in logprobs or ():
        try:
            text, logprob, others = str(entry[0]), float(entry[1]), dict(entry[2] or {})
            chance = math.exp(min(0.0, logprob))
            words = [f"{logprob:.3f} ({100 * chance:.1f}%)"]
            words += [f"{name!r} {float(value):.3f}" for name, value in others.items() if str(name) != text]
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
        result.append(Token(text, sum(chance < bound for bound in _TOKEN_LEVELS), ", ".join(words)))
    return result


def models_of(manifest: Mapping[str, Any], key: str) -> dict[str, str]:
    """Return the names of the models that played in a conversation, by role, as far as the manifest says it."""
    models = manifest.get("models", {})
    played: Mapping[str, str] = {}
    try:
        pairings = lineups(scenario_of_manifest(manifest).roles, models)
        played = pairings[label_of_key(key, list(pairings))]
    except (VivaError, KeyError, TypeError, AttributeError):
        pass  # the scenario is not installed, or another version recorded the run
    names = {
        role: model.get(played.get(role)) if isinstance(model, Mapping) else model for role, model in models.items()
    }
    return {role: name for role, name in names.items() if isinstance(name, str)}


def request_body(call: Exchange, model: str) -> dict[str, Any]:
    """Return a call's request in the form of OpenAI's chat API, without options that are off."""
    sampling = call.sampling or Sampling()
    body: dict[str, Any] = {"model": model, "messages": [message.to_openai() for message in call.messages or ()]}
    body |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens}
    if call.seed is not None:
        body["seed"] = call.seed
    body |= {"stop": list(sampling.stop)} if sampling.stop else {}
    body |= {"logprobs": True, "top_logprobs": sampling.logprobs} if sampling.logprobs is not None else {}
    for name in ("frequency_penalty", "presence_penalty"):
        body |= {name: getattr(sampling, name)} if getattr(sampling, name) else {}
    if sampling.schema is not None:
        schema = {"name": "answer", "schema": sampling.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body | ({} if call.tools is None else {"tools": call.tools.specs})


def curl_command(call: Exchange, name: str | None) -> str:
    """Return the call as a `curl` command for OpenAI's chat API; `name` is the model's name, None if unknown.

    Only commands for OpenAI's own address send a key, because the address comes from the run, which may be somebody
    else's. For models that are no endpoint, the address is that of `viva serve`.
    """
    url, model, key = _SERVED_URL, "MODEL", False
    try:
        spec = None if name is None else ModelSpec.parse(name)
    except VivaError:
        spec = None
    if spec is not None and spec.kind == "openai":
        is_address = spec.where.startswith(("http://", "https://"))
        url, model = (spec.where, spec.fragment or "MODEL") if is_address else (_OPENAI_URL, spec.where)
        key = not is_address
    elif spec is not None:
        model = spec.label
    address = shlex.quote(f"{url.rstrip('/')}/chat/completions")
    lines = [f"curl -g {address}", "-H 'Content-Type: application/json'"]  # -g: brackets in the address are no pattern
    lines += ['-H "Authorization: Bearer $OPENAI_API_KEY"'] if key else []
    body = _to_json(request_body(call, model))
    if len(body.encode("utf-8", "replace")) > _LONGEST_ARGUMENT:
        return " \\\n  ".join([*lines, "-d @- <<'END'"]) + f"\n{body}\nEND"
    return " \\\n  ".join([*lines, f"-d {shlex.quote(body)}"])


def suite_case(call: Exchange, name: str) -> str:
    """Return the call's messages as one line of a suite's data file."""
    return _to_json({"id": name, "messages": [message.to_openai() for message in call.messages or ()]})


def _to_json(value: Any) -> str:
    text = orjson.dumps(to_utf8_data(value), default=str).decode()
    # A page shows control characters in another form, so they must not be in a text that is to be copied.
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
