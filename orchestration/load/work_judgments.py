"""Requests from files of judgments as MT-Bench writes them: the prompt that a judge was given, and what it said.

What it said is the reference. Of a pairwise judgment both orders are requests. A file holds no system prompts: they are
given in a file of their own (``judge_prompts.jsonl`` of FastChat: ``name`` and ``system_prompt``); else a prompt that
lacks the instruction gets one of our own. What never belongs here: files of scores without prompts (``study.meta``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from viva.agents.prompts import load_pack
from viva.data.fields import FieldError, own_id, shown, text_field
from viva.data.reading import read_records
from viva.engine.errors import DatasetError
from viva.engine.messages import Message, Sampling

from .records import LoadRequest
from .work_runs import Found

PACK = Path(__file__).parent / "packs" / "load.yaml"
TEMPLATES = {
    "judgments.rating": frozenset[str](),
    "judgments.pair": frozenset[str](),
    "lengths.shared": frozenset[str](),
    "lengths.task": frozenset({"number"}),
}
_SAMPLING = Sampling(temperature=0.0, max_tokens=2048)
_FORM = re.compile(r"\[\[(?:rating|A)\]\]")  # a prompt that names the form of the verdict holds the instruction
UNPARSED = -1


def load_prompts() -> dict[str, str]:
    """The texts of the pack by name, those without placeholders."""
    pack = load_pack(str(PACK), TEMPLATES)
    return {name: pack.render(name) for name in TEMPLATES if not TEMPLATES[name]}


def judgment_requests(path: Path, prompts: Path | None = None) -> Found:
    """The requests of a file of judgments, and what a person should know of them.

    :raises DatasetError: a record is wrong; the message names file, line and field.
    """
    systems = {} if prompts is None else _systems(prompts)
    own = load_prompts()
    requests: list[LoadRequest] = []
    lines: dict[str, int] = {}
    lacking = 0
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            for request, template in _requests(raw):
                if request.id in lines:
                    raise FieldError("question_id", f"the judgment {request.id} is in line {lines[request.id]} already")
                lines[request.id] = line
                system = systems.get(template)
                if system is None and _FORM.search(request.messages[-1].content) is None:
                    system = own[f"judgments.{request.reader}"]
                    lacking += 1
                if system:
                    request = _with_system(request, system)
                requests.append(request)
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
    notes = []
    if lacking:
        notes.append(
            f"{path}: {lacking} of {len(requests)} prompts hold no instruction, for it stood in a system prompt; they "
            "get one of our own (--prompts FILE gives the original ones)"
        )
    return requests, notes


def _requests(raw: Mapping[str, Any]) -> Iterator[tuple[LoadRequest, str]]:
    question = own_id(raw, "question_id")
    if question is None:
        raise FieldError("question_id", "is missing")
    judge = raw.get("judge")
    template = str(judge[1]) if isinstance(judge, list) and len(judge) > 1 else ""
    turn = own_id(raw, "turn") or "1"
    if "g1_user_prompt" not in raw:
        id_ = f"{question}/{own_id(raw, 'model') or 'answer'}/{turn}"
        score = raw.get("score")
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):
            raise FieldError("score", f"expected a number, found {shown(score)}")
        reference = None if score is None or score == UNPARSED else float(score)
        yield _request(id_, text_field(raw, "user_prompt"), "rating", question, reference), template
        return
    models = [own_id(raw, name) or name for name in ("model_1", "model_2")]
    ids = [f"{question}/{models[place]}-{models[1 - place]}/{turn}" for place in (0, 1)]
    for place, game in enumerate(("g1", "g2")):
        winner = raw.get(f"{game}_winner")
        first = ("model_1", "model_2")[place]  # who stands first in this game
        label = {"tie": "tie", first: "A", ("model_2", "model_1")[place]: "B"}.get(str(winner))
        prompt = text_field(raw, f"{game}_user_prompt")
        yield _request(ids[place], prompt, "pair", question, label, ids[1 - place]), template


def _request(
    id_: str, prompt: str, reader: str, question: str, reference: float | str | None, pair: str = ""
) -> LoadRequest:
    return LoadRequest(
        id_, (Message("user", prompt),), _SAMPLING, reader=reader, reference=reference, pair=pair, item=question
    )


def _with_system(request: LoadRequest, system: str) -> LoadRequest:
    return replace(request, messages=(Message("system", system), *request.messages))


def _systems(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        try:
            found[text_field(raw, "name")] = str(raw.get("system_prompt") or "")
        except FieldError as error:
            raise DatasetError(str(error), path=str(path), line=line, field=error.field) from None
    return found
