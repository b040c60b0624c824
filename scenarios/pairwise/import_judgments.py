"""Import of published MT-Bench judgments: grades of single answers or verdicts on pairs, as FastChat writes them.

A line has `question_id`, `turn`, `judge` (the model, or a list of it and its prompt), and either `model`, `score` and
`judgment`, or `model_1`, `model_2`, `g1_winner`, `g2_winner` and their judgments. A score of -1 and a winner `error`
are judgments that could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viva.data.items import FieldError, optional_text, preview, record_id
from viva.data.record_files import located_errors, read_records, sound_records
from viva.engine.errors import DatasetError
from viva.engine.messages import Completion

from ..contract import ImportedCall, ImportedConversation, ImportedRun, ImportFormat, ImportOptions
from .pairwise_judging import CANDIDATE, JUDGE, SCALE
from .pairwise_settings import PAIRS, SINGLE, JudgedPrompt, open_prompts, prompts_digest

_UNREADABLE = -1
_MAX_TURN = 10
_MAX_MODELS = 64
_LOW, _HIGH = SCALE.points(SCALE.labels[0]), SCALE.points(SCALE.labels[-1])


@dataclass(slots=True)
class _Question:
    """The judgments of one question: entries of the result, and the judge's texts."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    turns: int = 1


@dataclass(slots=True)
class _Judgments:
    """A file of judgments; models are numbered in the order in which the file names them."""

    models: dict[str, int] = field(default_factory=dict)
    questions: dict[str, _Question] = field(default_factory=dict)
    lines: dict[tuple[Any, ...], int] = field(default_factory=dict)
    judge: str = ""
    mode: str = ""

    def add(self, raw: Mapping[str, Any], line: int) -> None:
        """Add a line of the file; a wrong field raises `FieldError`."""
        mode = PAIRS if "model_1" in raw else SINGLE
        if mode != (self.mode or mode):
            raise FieldError("model", "the file has grades and comparisons; split it into two files")
        self.mode = mode
        judge = _judge_name(raw)
        if judge != (self.judge or judge):
            raise FieldError("judge", f"found '{judge}' after '{self.judge}'; split the file by judge")
        self.judge = judge
        id_ = record_id(raw, "question_id")
        if id_ is None:
            raise FieldError("question_id", "is missing")
        turn = raw.get("turn", 1)
        if isinstance(turn, bool) or not isinstance(turn, int) or not 1 <= turn <= _MAX_TURN:
            raise FieldError("turn", f"expected a whole number from 1 to {_MAX_TURN}, found {preview(turn)}")
        question = self.questions.setdefault(id_, _Question())
        question.turns = max(question.turns, turn)
        if mode == SINGLE:
            model = self._model(raw, "model")
            self._once((id_, turn, model), line)
            question.entries.append({"model": model, "turn": turn, "verdicts": [_grade(raw)]})
            question.texts.append(optional_text(raw, "judgment"))
            return
        first, second = self._model(raw, "model_1"), self._model(raw, "model_2")
        if first == second:
            raise FieldError("model_2", "is the same as model_1")
        self._once((id_, turn, *sorted((first, second))), line)
        verdicts = [_winner(raw, "g1_winner", "model_1"), _winner(raw, "g2_winner", "model_2")]
        if first > second:  # entries name the models in ascending order: exchange the orders
            first, second, verdicts = second, first, verdicts[::-1]
        question.entries.append({"models": [first, second], "turn": turn, "verdicts": [verdicts]})
        question.texts += [optional_text(raw, "g1_judgment"), optional_text(raw, "g2_judgment")]

    def _model(self, raw: Mapping[str, Any], name: str) -> int:
        label = record_id(raw, name)
        if label is None:
            raise FieldError(name, "is missing")
        if label not in self.models and len(self.models) == _MAX_MODELS:
            raise FieldError(name, f"the file names more than {_MAX_MODELS} models; split it")
        return self.models.setdefault(label, len(self.models))

    def _once(self, key: tuple[Any, ...], line: int) -> None:
        if self.lines.setdefault(key, line) != line:
            raise FieldError("question_id", f"this judgment is already in line {self.lines[key]}; keep one of them")


def _judge_name(raw: Mapping[str, Any]) -> str:
    judge = raw.get("judge", JUDGE)
    name = judge[0] if isinstance(judge, list) and judge else judge
    if not isinstance(name, str) or not name.strip():
        raise FieldError("judge", f"expected a name, or a list of the name and its prompt, found {preview(judge)}")
    return name


def _grade(raw: Mapping[str, Any]) -> float | None:
    score = raw.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise FieldError("score", f"expected a number, found {preview(score)}")
    if score == _UNREADABLE:
        return None
    if not _LOW <= score <= _HIGH:
        raise FieldError("score", f"expected -1, or a number from {_LOW:g} to {_HIGH:g}, found {preview(score)}")
    return float(score)


def _winner(raw: Mapping[str, Any], name: str, shown_first: str) -> int | None:
    """Return 1 if the answer shown first wins, -1 if the other one, 0 for a tie, None if unreadable."""
    winner = raw.get(name)
    if winner not in ("model_1", "model_2", "tie", "error"):
        raise FieldError(name, f"expected model_1, model_2, tie or error, found {preview(winner)}")
    if winner == "error":
        return None
    return 0 if winner == "tie" else 1 if winner == shown_first else -1


def read_judgments(path: Path, options: ImportOptions) -> ImportedRun:
    """Read a file of judgments; `options.dataset` is the file of the questions, whose texts are otherwise unknown.

    Raises:
        DatasetError: The file or a line of it is wrong, or the questions lack one; the message names line and field.
    """
    judgments = _Judgments()
    for line, raw in sound_records(read_records(path)):
        with located_errors(path, line):
            judgments.add(raw, line)
    if not judgments.questions:
        raise DatasetError("has no judgments", path=str(path))
    prompts = _prompts(judgments, path, options.dataset)
    models = [f"imported:{label}" for label in judgments.models]
    if CANDIDATE in options.models and len(models) == 1:
        models = [options.models[CANDIDATE]]
    judge = options.models.get(JUDGE, f"imported:{judgments.judge}")
    settings = {"candidate": models, "judge": [judge], "mode": judgments.mode}
    lines = b"".join(orjson.dumps(_prompt_line(prompt)) + b"\n" for prompt in prompts)
    dataset = {"name": path.stem, "digest": prompts_digest(prompts), "prompts": len(prompts), "chosen": len(prompts)}
    notes = ["the file has no answers, token counts and times: lengths are unknown, usage counts calls only"]
    if options.dataset is None:
        notes.append("the texts of the questions are unknown; name their file with --dataset to have them")
    return ImportedRun(
        settings,
        path.stem,
        [],
        list(_conversations(judgments, prompts, list(judgments.models))),
        records={"dataset": dataset},
        facts={"file": path.name},
        notes=notes,
        lines=lines,
    )


def _prompts(judgments: _Judgments, path: Path, source: str | None) -> list[JudgedPrompt]:
    if source is None:
        return [
            JudgedPrompt(id_, tuple(f"question {id_}, turn {turn + 1}" for turn in range(question.turns)),
                         ("",) * question.turns)
            for id_, question in judgments.questions.items()
        ]  # fmt: skip
    known = {prompt.id: prompt for prompt in open_prompts(source, None, 0)}
    for id_, question in judgments.questions.items():
        if id_ not in known or len(known[id_].turns) < question.turns:
            missing = "no question" if id_ not in known else f"no turn {question.turns} of question"
            raise DatasetError(f"has {missing} '{id_}', which {path} judges", path=source)
    return [known[id_] for id_ in judgments.questions]


def _prompt_line(prompt: JudgedPrompt) -> dict[str, Any]:
    line: dict[str, Any] = {"question_id": prompt.id, "category": prompt.category, "turns": list(prompt.turns)}
    return line | ({"reference": list(prompt.references)} if any(prompt.references) else {})


def _conversations(
    judgments: _Judgments, prompts: Sequence[JudgedPrompt], labels: Sequence[str]
) -> Iterator[ImportedConversation]:
    for prompt in prompts:
        question = judgments.questions[prompt.id]
        result: dict[str, Any] = {"prompt": prompt.id, "category": prompt.category, "models": list(labels)}
        result |= {"judges": [judgments.judge], "lengths": None, "pairs": [], "grades": []}
        result["pairs" if judgments.mode == PAIRS else "grades"] = question.entries
        result["usage"] = {JUDGE: [len(question.texts), 0, 0]}
        calls = [ImportedCall(JUDGE, Completion(text)) for text in question.texts]
        yield ImportedConversation(prompt.id, prompt.to_record(), calls, result)


JUDGMENTS_FORMAT = ImportFormat("mt-bench", "Published judgments of MT-Bench, single grades or pairs.", read_judgments)
