"""What the answer to a load request says: scores and a label, or why there is no verdict.

How an answer is read is named by its request: by the schema that it had to follow, a rating or a letter in double
brackets, a ruling, any JSON object, or as a text of which nothing is read. A cut answer, a refusal, silence and text
that is no verdict are told apart. What never belongs here: what verdicts show together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TypeAlias

from viva.agents.judge import read_ruling
from viva.agents.reading import answer_in, object_texts, own_objects
from viva.agents.refusals import refuses
from viva.engine.errors import ConfigurationError, MalformedOutput
from viva.engine.messages import Sampling

from .leaves import Said, known_ends, object_leaves, schema_leaves
from .records import Failure, Judgement, LoadRequest, Sent

Reader: TypeAlias = Callable[[str, Sampling], Said]
_RATING = re.compile(r"\[\[\s*(\d+(?:\.\d+)?)\s*\]\]")
_LETTER = re.compile(r"\[\[\s*([ABC]|tie)\s*\]\]", re.IGNORECASE)
_RATINGS = 1.0, 10.0
_EXCERPT = 200  # characters of an answer that is no verdict
_REFUSALS = ("content_filter", "refusal", "safety")  # words of endpoints


def _schema(text: str, sampling: Sampling) -> Said:
    if sampling.schema is None:
        return _object(text, sampling)
    problem = MalformedOutput("it holds no JSON object")
    for _, value in reversed(own_objects(text)):
        try:
            return schema_leaves(sampling.schema, value)
        except MalformedOutput as error:
            problem = error
            break
    raise problem


def _object(text: str, sampling: Sampling) -> Said:
    object_texts(text)  # of a cut object no part is read for the whole
    for _, value in reversed(own_objects(text)):
        found = object_leaves(value)
        if found.scores or found.label:
            return found
    raise MalformedOutput("it holds no JSON object with a number")


def _rating(text: str, sampling: Sampling) -> Said:
    found = {float(number) for number in _RATING.findall(text)}
    if len(found) != 1:
        raise MalformedOutput("it holds no rating in double brackets" if not found else "it holds ratings that differ")
    [rating] = found
    if not _RATINGS[0] <= rating <= _RATINGS[1]:
        raise MalformedOutput(f"its rating {rating:g} is not from 1 to 10")
    return Said({"rating": rating})


def _pair(text: str, sampling: Sampling) -> Said:
    found = {"tie" if letter.upper() in ("C", "TIE") else letter.upper() for letter in _LETTER.findall(text)}
    if len(found) != 1:
        raise MalformedOutput("it holds no letter in double brackets" if not found else "it holds letters that differ")
    return Said({}, found.pop())


def _ruling(text: str, sampling: Sampling) -> Said:
    passed, _ = read_ruling(text)
    return Said({"verdict": float(passed)}, "pass" if passed else "fail")


def _text(text: str, sampling: Sampling) -> Said:
    if not text.strip():
        raise MalformedOutput("it is empty")
    return Said()


READERS: Mapping[str, Reader] = {
    "schema": _schema,
    "rating": _rating,
    "pair": _pair,
    "ruling": _ruling,
    "object": _object,
    "text": _text,
}


def known_reader(name: str) -> str:
    """The name, if there is such a reader.

    :raises ConfigurationError: there is none; the message lists those there are.
    """
    if name not in READERS:
        raise ConfigurationError(f"reader '{name}': known are {', '.join(READERS)}")
    return name


def reader_for(sampling: Sampling, recorded: str = "") -> str:
    """How answers to such a request are read: by its schema, else as its ``recorded`` answer can be."""
    if sampling.schema is not None:
        return "schema"
    for name in ("rating", "pair", "ruling", "object"):
        try:
            READERS[name](answer_in(recorded), sampling)
        except MalformedOutput:
            continue
        return name
    return "text"


def scales_of(request: LoadRequest) -> dict[str, tuple[float, float]]:
    """The ends of the scales of a request's scores, as far as they are known beforehand."""
    if request.reader == "rating":
        return {"rating": _RATINGS}
    if request.reader == "ruling":
        return {"verdict": (0.0, 1.0)}
    schema = request.sampling.schema
    return {} if schema is None or request.reader != "schema" else known_ends(schema)


def judgement(request: LoadRequest, sent: Sent) -> Judgement:
    """What the answer says, or why it says nothing."""
    found = Judgement(sent.request, sent.step, sent.judge, sent.number, sent.occurrence)
    if sent.error:
        found.failure = "error"
        return found
    found.digest = blake2b(sent.text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    text = answer_in(sent.text)
    try:
        said = READERS[request.reader or "text"](text, request.sampling)
    except MalformedOutput:
        found.failure = _failure(text, sent.finish)
        found.excerpt = sent.text[:_EXCERPT]
    else:
        found.scores, found.label = dict(said.scores), said.label
    return found


def _failure(text: str, finish: str) -> Failure:
    if finish in _REFUSALS:
        return "refused"
    if finish == "length":
        return "truncated"
    if not text.strip():
        return "empty"
    if _is_cut(text):
        return "truncated"
    return "refused" if refuses(text) else "parse"


def _is_cut(text: str) -> bool:
    """Whether a JSON object begins in the text and never ends: some servers say ``stop`` of a cut answer, too."""
    try:
        object_texts(text)
    except MalformedOutput as error:
        return "not complete" in str(error)
    return False
