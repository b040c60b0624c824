"""The one workload that every peer program runs: its texts, their sizes, and how its figures are taken.

It has the shape of a KIEval interview: a seed answer by the candidate, then five rounds of interactor,
candidate, evaluator, each role with a history of its own that only grows; 16 model calls in all. Peers
import it as a sibling (``python benches/peers/floor.py``), so the standard library is all it needs; orjson
is used where there is one.

What it is not: a prompt that measures anything about a model (the texts are filler of the right length), or
part of the engine. Replies are the same in every conversation, which spares peers that deduplicate or
compress logs.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

ROUNDS = 5
CALLS = 1 + 3 * ROUNDS
MAX_TOKENS = 512

INTERACTOR = "interactor"
CANDIDATE = "candidate"
EVALUATOR = "evaluator"

Message = dict[str, str]
_loads: Callable[[str], Any] = json.loads
try:
    import orjson
except ImportError:
    pass
else:
    _loads = orjson.loads


_LINKS = [
    "Moreover",
    "Besides",
    "Likewise",
    "Still",
    "Hence",
    "Meanwhile",
    "Indeed",
    "Otherwise",
    "Afterwards",
    "Thus",
    "Overall",
    "Rarely",
]


def filler(size: int, start: str, sentence: str) -> str:
    """Exactly ``size`` characters: ``start``, then ``sentence`` after varying words, so that it is no loop, cut at the
    end.
    """
    count = size // len(sentence) + 1
    text = " ".join([start, *(f"{_LINKS[number % len(_LINKS)]}, {sentence}" for number in range(count))])
    return text[: size - 1] + "."


INTERACTOR_SYSTEM = filler(
    1_600,
    "You lead an oral examination.",
    "Ask one question at a time, build on what the other party just said, and never give the solution away.",
)
CANDIDATE_SYSTEM = filler(
    240,
    "You are being examined.",
    "Answer briefly, say what you are sure of, and own up to what you do not know.",
)
EVALUATOR_SYSTEM = filler(
    2_400,
    "You grade one party of an oral examination.",
    "Judge each aspect from 1 to 4 on its own, give reasons before scores, and reply with one JSON object.",
)
QUESTION = filler(
    240,
    "You said that pressure matters here.",
    "What would change if the vessel were open, and how would you tell?",
)
ANSWER = filler(
    420,
    "It would settle at a lower value,",
    "because the gas can leave, so less of it stays in contact with the liquid;",
)


def _verdict() -> str:
    aspects = ("accuracy", "logic", "relevance", "coherence", "conciseness")
    sentence = "the main claim holds, though one step is asserted rather than shown;"
    fields: dict[str, Any] = {name: {"comment": filler(88, f"On {name}:", sentence), "score": 3} for name in aspects}
    fields["overall_comment"] = filler(168, "Taken together:", sentence)
    fields["overall_score"] = 3
    fields["stop_conversation"] = False
    fields["stop_reason"] = "none"
    return json.dumps(fields)


VERDICT = _verdict()
REPLIES = {INTERACTOR: QUESTION, CANDIDATE: ANSWER, EVALUATOR: VERDICT}


def item(number: int) -> str:
    """The examined question of conversation ``number``, 400 characters; no two conversations share one."""
    return filler(
        400,
        f"Item {number}.",
        "A closed flask holds water and air at rest; describe what happens on heating.",
    )


def exchange(question: str, answer: str) -> str:
    """What the evaluator is shown of a round."""
    return f"[INTERACTOR]\n{question}\n[/INTERACTOR]\n[CANDIDATE]\n{answer}\n[/CANDIDATE]"


def overall_score(verdict: str) -> int:
    """The evaluator's overall score, by parsing the whole verdict."""
    return int(_loads(verdict)["overall_score"])


def conversation(number: int) -> Generator[tuple[str, int, list[Message]], str, int]:
    """One conversation without its model: yields role, ordinal in the role and messages; is sent the reply.

    The lists are the live histories: use them before sending the reply. Its return value is the summed score.
    """
    question = item(number)
    interactor: list[Message] = [
        {"role": "system", "content": INTERACTOR_SYSTEM + "\n\n" + question},
    ]
    candidate: list[Message] = [
        {"role": "system", "content": CANDIDATE_SYSTEM},
        {"role": "user", "content": question},
    ]
    evaluator: list[Message] = [{"role": "system", "content": EVALUATOR_SYSTEM}]

    total = 0
    answer = yield CANDIDATE, 0, candidate
    candidate.append({"role": "assistant", "content": answer})
    for turn in range(ROUNDS):
        interactor.append({"role": "user", "content": answer})
        question = yield INTERACTOR, turn, interactor
        interactor.append({"role": "assistant", "content": question})

        candidate.append({"role": "user", "content": question})
        answer = yield CANDIDATE, turn + 1, candidate
        candidate.append({"role": "assistant", "content": answer})

        evaluator.append({"role": "user", "content": exchange(question, answer)})
        verdict = yield EVALUATOR, turn, evaluator
        evaluator.append({"role": "assistant", "content": verdict})
        total += overall_score(verdict)
    return total


def _memory_mb(field: str) -> float:
    # Not getrusage: its peak survives exec, so a peer started by a large process would report its parent's.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return int(status.split(field + ":", 1)[1].split(None, 1)[0]) * 1024 / 1e6


class Meter:
    """Takes a peer's figures: made once everything is imported, entered around the work alone."""

    def __init__(self) -> None:
        self.import_rss_mb = _memory_mb("VmRSS")
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Meter:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu

    def line(self, name: str, conversations: int, calls: int, **fields: object) -> str:
        """The figures as one line of JSON. CPU is that of the whole process, all threads."""
        figures = {
            "name": name,
            "conversations": conversations,
            "calls": calls,
            "wall_s": round(self.wall, 4),
            "cpu_s": round(self.cpu, 4),
            "us_per_call": round(self.cpu / max(calls, 1) * 1e6, 2),
            "conversations_per_s": round(conversations / self.wall, 2),
            "peak_rss_mb": round(_memory_mb("VmHWM"), 1),
            "import_rss_mb": round(self.import_rss_mb, 1),
            **fields,
        }
        return json.dumps(figures)
