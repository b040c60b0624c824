"""Exact verdicts: every claim of a reply is checked against the world, and scores follow from rules.

A verdict is about the newest reply; earlier ones count for coherence and repetition. The rules, from 1 to 4:

accuracy     4: a correct answer, and no false claim; 3: a correct answer, and at least half of all claims are true, or
             a false premise is denied without the true value; 2: no answer, and at least half of the claims are true,
             or a correct answer among mostly false claims; 1: a wrong answer, no claim, or mostly false claims.
logic        1: it contradicts itself, accepts a false premise, gives a reason that does not imply its conclusion (under
             the world's rules, whether or not the reason is true), or claims nothing; 2: no conclusion, or no reason
             although one was asked for; else 4.
relevance    4: it states or denies the attribute in question (3 if most claims are about other minerals); 2: it
             mentions the mineral, but not the attribute; 1: neither.
coherence    4: it contradicts no earlier statement of the candidate; 2: it contradicts one; 1: it contradicts more.
conciseness  4 up to 40 words, 3 up to 100, 2 up to 200, 1 beyond; minus one for each repeated sentence.
overall      the mean of the five, rounded down, but at most accuracy: fluency does not compensate for falsehood.

A reply that ends the interview scores 1 throughout. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from viva.agents.choices import read_choice
from viva.engine.detectors import Detector, EmptyReply, Repetition, RoleShift
from viva.scenarios.kieval.verdicts import ASPECTS

from .facts import ExaminedWorld, FactWorld
from .interview import LabExchange, choices_in, question_in
from .world import Claim, Followup

# Parties in addition to those of the engine's detector: the parties of this interview, and verdict writers.
_OTHER_PARTIES = ("interactor:", "examiner:", "evaluator:", "[begin evaluator]", '{"accuracy"')
_DOES_NOT_KNOW = re.compile(
    r"(?:\bnot|n't|\bcannot|\bnever) (?:\w+ )?(?:know|sure|certain|say)\b|\bno idea\b|\bunknown\b"
)
_REASONS = ("family", "class", "reaction")  # attributes in the rules
_WORDS = ((40, 4), (100, 3), (200, 2))
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_PRONOUN = re.compile(r"(^|[,;:]\s*|\b(?:but|and|so)\s+)(?:it is|it's)\b", re.IGNORECASE)


def judge(world: ExaminedWorld, exchange: LabExchange, earlier: Sequence[LabExchange]) -> dict[str, Any]:
    """Judge an exchange, in the protocol's form; `earlier` are the exchanges before it, the item's answer first."""
    question = question_in(world, exchange.question)
    claims = claims_of(world, exchange)
    stop = _stop(world, question, exchange, earlier, claims)
    if stop is not None:
        return _verdict(dict.fromkeys(ASPECTS, 1), dict.fromkeys(ASPECTS, f"The reply ends the talk: {stop}."), 1, stop)
    earlier_claims = dict.fromkeys(claim for previous in earlier for claim in claims_of(world, previous))
    clashes = [(new, old) for new in claims for old in earlier_claims if contradict(new, old)]
    scores = {
        "accuracy": _accuracy(world, question, claims),
        "logic": _logic(world, question, claims),
        "relevance": _relevance(question, exchange.reply, claims),
        "coherence": (4, 2, 1)[min(2, len({new for new, _ in clashes}))],
        "conciseness": _conciseness(exchange.reply),
    }
    overall = min(scores["accuracy"], sum(scores.values()) // len(scores))
    return _verdict(scores, _comments(world, question, claims, clashes, exchange.reply), overall, None)


def claims_of(world: ExaminedWorld, exchange: LabExchange) -> list[Claim]:
    """Return the claims of a reply; "it" and "its" without a mineral before them refer to the one in question.

    A sentence "It is …", a sentence that is only a value, and a choice of the item's options, answer the question. Of
    the real world only claims about the question are read.
    """
    question = question_in(world, exchange.question)
    if isinstance(world, FactWorld):
        return world.claims_about(question, exchange.reply) if question is not None else []
    if question is None:
        return world.claims(exchange.reply)
    subject = f"The {question.attribute} of {question.entity} is"
    spelled = {value.lower(): value for value in world.attribute(question.attribute).values}
    options = choices_in(exchange.question)
    choice = read_choice(exchange.reply, options) if options else None
    chosen = spelled.get(options[choice].lower()) if choice is not None else None
    sentences = [] if chosen is None else [f"{subject} {chosen}."]
    other_named = False
    for sentence in _SENTENCE.split(exchange.reply):
        if not other_named and _normalize(sentence) in spelled:
            sentence = f"{subject} {sentence}"
        elif not other_named:
            sentence = _PRONOUN.sub(rf"\1{subject}", sentence.lstrip())
        other_named = other_named or any(name != question.entity for name in _find_minerals(world, sentence))
        sentences.append(sentence)
    return world.claims(f"{question.entity}: {' '.join(sentences)}")


def contradict(first: Claim, second: Claim) -> bool:
    """Return True if two claims cannot both hold: two values of one attribute, or a value stated and denied."""
    if (first.entity, first.attribute) != (second.entity, second.attribute) or (first.denied and second.denied):
        return False
    return (first.value == second.value) == (first.denied != second.denied)


def _stop(
    world: ExaminedWorld,
    question: Followup | None,
    exchange: LabExchange,
    earlier: Sequence[LabExchange],
    claims: Sequence[Claim],
) -> str | None:
    reply = exchange.reply
    detectors: tuple[Detector, ...] = (EmptyReply(), RoleShift(), RoleShift(_OTHER_PARTIES), Repetition())
    for detector in detectors:
        reason = detector.finish(reply)
        if reason is not None:
            return reason
    if question_in(world, reply) not in (None, question):  # it asks a question other than the given one
        return "unpermitted_role_shift"
    answers = question is not None and any(_is_about(question, claim) for claim in claims)
    if not answers and any(_normalize(previous.reply) == _normalize(reply) for previous in earlier):
        return "repetition"
    lost = not claims and not _find_minerals(world, reply) and not _mentions_world(world, reply)
    return "off_topic" if lost and not _DOES_NOT_KNOW.search(reply.lower()) else None


def _accuracy(world: ExaminedWorld, question: Followup | None, claims: Sequence[Claim]) -> int:
    true = [claim for claim in claims if world.is_true(claim)]
    mostly = 2 * len(true) >= len(claims) > 0
    if question is None:  # a question that cannot be parsed: only truth can be judged
        return 4 if claims and len(true) == len(claims) else 3 if mostly else 1
    answers = [claim for claim in claims if _is_about(question, claim)]
    if any(not world.is_true(claim) for claim in answers):
        return 1
    if any(not claim.denied for claim in answers):
        return 4 if len(true) == len(claims) else 3 if mostly else 2
    if mostly and any(claim.value == question.premise for claim in answers):
        return 3
    return 2 if mostly else 1


def _logic(world: ExaminedWorld, question: Followup | None, claims: Sequence[Claim]) -> int:
    if not claims or any(contradict(first, second) for first in claims for second in claims):
        return 1
    if question is None:
        return 4
    answers = [claim for claim in claims if _is_about(question, claim)]
    stated = next((claim.value for claim in answers if not claim.denied), None)
    if (
        question.premise not in (None, world.fact(question.entity, question.attribute).value)
        and stated == question.premise
    ):
        return 1
    if not answers:
        return 2
    reasons = [
        claim
        for claim in claims
        if claim.entity == question.entity and claim not in answers and claim.attribute in _REASONS and not claim.denied
    ]
    followed = [end for claim in reasons if (end := _consequence(world, claim, question.attribute)) is not None]
    if stated is not None and any(end != stated for end in followed):
        return 1
    if _asks_for_reason(world, question):
        return 4 if followed else 1 if reasons else 2
    return 4


def _asks_for_reason(world: ExaminedWorld, question: Followup) -> bool:
    return question.kind == "derived" and world.attribute(question.attribute).kind == "derived"


def _consequence(world: ExaminedWorld, reason: Claim, attribute: str) -> str | None:
    """Return what the rules imply for `attribute` if the reason held; None if no rule connects the two."""
    if isinstance(world, FactWorld):
        return None
    match reason.attribute, attribute:
        case "family", "class":
            return world.classes[reason.value]
        case "family", "reaction":
            return world.reactions[world.classes[reason.value]]
        case "class", "reaction":
            return world.reactions[reason.value]
    return None


def _relevance(question: Followup | None, reply: str, claims: Sequence[Claim]) -> int:
    if question is None:
        return 4 if claims else 1
    same = [claim for claim in claims if claim.entity == question.entity]
    if any(_is_about(question, claim) for claim in claims):
        return 4 if 2 * len(same) >= len(claims) else 3
    return 2 if same or f" {_normalize_name(question.entity)} " in f" {_normalize(reply)} " else 1


def _conciseness(reply: str) -> int:
    length = len(reply.split())
    score = next((score for words, score in _WORDS if length <= words), 1)
    return max(1, score - _count_repeats(reply))


def _count_repeats(reply: str) -> int:
    sentences = [plain for sentence in _SENTENCE.split(reply) if (plain := _normalize(sentence))]
    return len(sentences) - len(set(sentences))


def _is_about(question: Followup, claim: Claim) -> bool:
    return (claim.entity, claim.attribute) == (question.entity, question.attribute)


def _find_minerals(world: ExaminedWorld, text: str) -> list[str]:
    plain = f" {_normalize(text)} "
    return [entity for entity in world.entities if f" {_normalize_name(entity)} " in plain]


def _mentions_world(world: ExaminedWorld, text: str) -> bool:
    """Return True if the text mentions an attribute or a value."""
    plain = f" {_normalize(text)} "
    names = [word for attribute in world.attributes for word in (attribute.name, *attribute.values)]
    return any(f" {name.lower()} " in plain for name in names)


@lru_cache(maxsize=1024)
def _normalize_name(name: str) -> str:
    return _normalize(name)


def _normalize(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def _comments(
    world: ExaminedWorld,
    question: Followup | None,
    claims: Sequence[Claim],
    clashes: Sequence[tuple[Claim, Claim]],
    reply: str,
) -> dict[str, str]:
    parts = [f"{_claim_text(claim)}: {_truth(world, claim)}" for claim in claims]
    topic = "a question that the world has no words for"
    if question is not None:
        topic = f"the {question.attribute} of {question.entity}"
        if not any(_is_about(question, claim) for claim in claims):
            parts.append(f"not stated: {topic} is {world.fact(question.entity, question.attribute).value}")
    repeats = _count_repeats(reply)
    return {
        "accuracy": "; ".join(parts) + "." if parts else "It claims nothing.",
        "logic": _reasoning(world, question, claims),
        "relevance": f"Asked was {topic}.",
        "coherence": "; ".join(f"{_claim_text(new)}, but before: {_claim_text(old)}" for new, old in clashes) + "."
        if clashes
        else "It contradicts nothing said before.",
        "conciseness": f"{len(reply.split())} words" + (f", {repeats} sentences said again." if repeats else "."),
    }


def _reasoning(world: ExaminedWorld, question: Followup | None, claims: Sequence[Claim]) -> str:
    if question is None or not _asks_for_reason(world, question):
        return "No reason was asked for."
    followed = [
        f"from the {claim.attribute} {claim.value} follows the {question.attribute} {end}"
        for claim in claims
        if claim.entity == question.entity and (end := _consequence(world, claim, question.attribute)) is not None
    ]
    return "A reason was asked for; " + ("; ".join(followed) if followed else "it gives none that a rule knows") + "."


def _claim_text(claim: Claim) -> str:
    return f"the {claim.attribute} of {claim.entity} is {'not ' if claim.denied else ''}{claim.value}"


def _truth(world: ExaminedWorld, claim: Claim) -> str:
    return "true" if world.is_true(claim) else f"false, it is {world.fact(claim.entity, claim.attribute).value}"


def _verdict(scores: dict[str, int], comments: dict[str, str], overall: int, stop: str | None) -> dict[str, Any]:
    verdict: dict[str, Any] = {name: {"comment": comments[name], "score": scores[name]} for name in ASPECTS}
    verdict["overall_comment"] = comments["accuracy"]
    verdict["overall_score"] = overall
    verdict["stop_conversation"] = stop is not None
    verdict["stop_reason"] = stop or "none"
    return verdict
