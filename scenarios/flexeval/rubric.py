"""Rubrics: questions to a grader about a conversation, turn, message or call, answered with reasons and a choice."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from viva.agents.forms import VERDICT_WORDS, readable_text, unquoted_objects
from viva.agents.prompts import PackTemplates, PromptPack
from viva.engine.conversation import Conversation
from viva.engine.errors import MalformedOutput
from viva.engine.messages import Completion, Sampling, View
from viva.engine.yaml_file import read_yaml

from .dialog import Dialog, Message, ToolCall, Turn, Unit
from .spec import Rubric

_RUBRIC_FILE = Path(__file__).parent / "examples" / "rubrics.yaml"
BUILTIN_RUBRICS = ("yeasayer", "on_task", "asks_back", "helpful", "polite", "stays_in_scope", "grounded")


def builtin_rubric(name: str) -> Rubric:
    """Return one of `BUILTIN_RUBRICS`."""
    return _read_builtin_rubrics()[name]


@cache
def _read_builtin_rubrics() -> dict[str, Rubric]:
    return {name: Rubric.model_validate(body) for name, body in read_yaml(_RUBRIC_FILE).items()}


TEMPLATES = PackTemplates(
    {
        "grader.system": frozenset(),
        "grader.form": frozenset({"choices"}),
        "grader.again": frozenset({"problem", "choices"}),
        "user.system": frozenset({"persona", "recorded"}),
        "user.begin": frozenset(),
    }
)
PLACEHOLDERS = ("conversation", "context", "completion", "content", "turn", "input", "system", "user", "tool_calls")
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
_DECORATION = " \t*_`#>\"'“”‘’[](){}.,!:-"
_LABEL = re.compile(
    rf"(?:(?:the|my|final|overall|choice|rating|score|grade|is|{VERDICT_WORDS})\s+){{0,4}}"
    rf"(?:choice|rating|score|grade|is|{VERDICT_WORDS})\W{{0,4}}[:：]\s*",
    re.IGNORECASE,
)
_OBJECT = re.compile(r'\{\s*"')
_CHOICE_TOKENS = 20  # alternatives requested per token


def fill_prompt(rubric: Rubric, dialog: Dialog, unit: Unit) -> str:
    """Return the rubric's prompt for a unit.

    `{context}` is everything before the unit; `{completion}`, `{content}` and `{turn}` are the unit's own text;
    `{conversation}` is everything up to the unit's end; `{input}` is the other side's last message before the unit;
    `{system}` is the system prompt; `{user}` are the user's messages so far; `{tool_calls}` are the unit's calls.
    """
    context, own = _context_and_unit(dialog, unit)
    texts = {
        "conversation": transcript_text([*context, *own]),
        "context": transcript_text(context),
        "completion": unit.text,
        "content": unit.text,
        "turn": unit.text,
        "input": next(
            (message.content for message in reversed(context) if message.role not in (unit.role, "system", "tool")), ""
        ),
        "system": "\n\n".join(message.content for message in dialog.messages if message.role == "system"),
        "tool_calls": "\n".join(call.text for message in own for call in message.tool_calls),
        "user": "\n\n".join(message.content for message in [*context, *own] if message.role == "user"),
    }
    return _PLACEHOLDER.sub(lambda match: texts[match[1]], rubric.prompt)


def transcript_text(messages: list[Message]) -> str:
    """Return messages as text, each after its role, with tool calls and results in place."""
    lines = []
    for message in messages:
        if message.content:
            lines.append(f"{message.role}: {message.content}")
        lines += [f"{message.role} calls {call.text}" for call in message.tool_calls]
    return "\n\n".join(lines)


def _context_and_unit(dialog: Dialog, unit: Unit) -> tuple[list[Message], list[Message]]:
    """Return the messages before a unit, and its own."""
    if isinstance(unit, Dialog):
        return [], list(unit.messages)
    if isinstance(unit, Turn):
        return list(unit.before), list(unit.messages)
    index = unit.message if isinstance(unit, ToolCall) else unit.index
    return list(dialog.messages[:index]), [dialog.messages[index]]


class Grader:
    """A grader in one conversation; `role` is the role of its model."""

    __slots__ = ("_conversation", "_pack", "_sampling", "role")

    def __init__(self, conversation: Conversation, role: str, pack: PromptPack, sampling: Sampling) -> None:
        self._conversation, self.role, self._pack, self._sampling = conversation, role, pack, sampling

    async def grade(
        self, rubric: Rubric, question: str, votes: int, hint: Any = None, judged: str = ""
    ) -> dict[str, Any]:
        """Ask the grader `votes` times and combine the answers.

        The result has `choice` (the most frequent; ties go to the first in the rubric), `score` (the mean), `reasoning`
        (of the first vote for the choice), `expected` (the mean over the probabilities of choices, if reported),
        `votes` by choice, and the number of `unread` answers. `judged` is the text of the conversation; quotations of
        it are not taken for answers.

        Raises:
            MalformedOutput: No answer could be parsed.
            ConversationStopped, BackendError, LimitReached: As in `Conversation.generate`.
        """
        votes_read: list[tuple[str, str, float | None]] = []
        problem = ""
        for _ in range(votes):
            try:
                votes_read.append(await self._vote(rubric, question, hint, judged))
            except MalformedOutput as error:
                problem = str(error)
        if not votes_read:
            raise MalformedOutput(problem)
        counts = Counter(choice for choice, _, _ in votes_read)
        choice = max(rubric.choice_scores, key=lambda option: counts[option])
        scores = [rubric.choice_scores[vote] for vote, _, _ in votes_read]
        expected = [score for _, _, score in votes_read if score is not None]
        record: dict[str, Any] = {"score": math.fsum(scores) / len(scores), "choice": choice}
        record["reasoning"] = next(reasons for vote, reasons, _ in votes_read if vote == choice)
        if len(expected) == len(votes_read):
            record["expected"] = math.fsum(expected) / len(expected)
        if votes > 1:
            record |= {"votes": dict(sorted(counts.items())), "unread": votes - len(votes_read)}
        return record

    async def _vote(self, rubric: Rubric, question: str, hint: Any, judged: str) -> tuple[str, str, float | None]:
        choices = ", ".join(f'"{choice}"' for choice in rubric.choice_scores)
        sampling, view = self._sampling, View()
        system = self._pack.render("grader.system")
        if system:
            view.append("system", system)
        if rubric.answer == "json":
            question = f"{question}\n\n{self._pack.render('grader.form', choices=choices)}"
            sampling = replace(sampling, schema=_answer_schema(rubric))
        view.append("user", question)
        completion = await self._conversation.generate(self.role, view, sampling, hint=hint)
        try:
            choice, reasons = read_choice(rubric, completion, judged)
        except MalformedOutput as error:
            first = completion
            view.append("assistant", first.text, first.pieces)
            view.append("user", self._pack.render("grader.again", problem=str(error), choices=choices))
            completion = await self._conversation.generate(self.role, view, sampling, hint=hint)
            choice, reasons = read_choice(rubric, completion, judged)
            reasons = reasons or first.text.strip()
        return choice, reasons, expected_score(rubric, completion, choice)


def _answer_schema(rubric: Rubric) -> dict[str, Any]:
    # Reasoning comes first, so that the choice follows from it.
    return {
        "type": "object",
        "properties": {
            "reasoning": {"type": "string", "maxLength": 2000},
            "choice": {"type": "string", "enum": list(rubric.choice_scores)},
        },
        "required": ["reasoning", "choice"],
        "additionalProperties": False,
    }


def read_choice(rubric: Rubric, completion: Completion, judged: str = "") -> tuple[str, str]:
    """Return the choice in a grader's answer, and the reasons before it.

    With `answer: line` the choice is the last line; with `answer: json` it is the field `choice` of a JSON object that
    is no quotation (`unquoted_objects`). If the choice is not in this form, the other form is tried.

    Raises:
        MalformedOutput: There is no choice, or objects name different choices.
    """
    body = readable_text(completion.text).strip()
    exact = {choice.strip().casefold(): choice for choice in rubric.choice_scores}
    for reader in (
        (_choice_in_last_line, _choice_in_objects)
        if rubric.answer == "line"
        else (_choice_in_objects, _choice_in_last_line)
    ):
        result = reader(body, exact, judged)
        if result is not None:
            return result
    cut = "; it was cut off at the token limit" if completion.finish == "length" else ""
    if not body:
        raise MalformedOutput(f"it is empty{cut}")
    raise MalformedOutput(f"neither its last line nor a field `choice` holds one of the choices{cut}")


def _choice_in_objects(body: str, exact: Mapping[str, str], judged: str) -> tuple[str, str] | None:
    choices = []
    for _, value in unquoted_objects(body, judged):
        if "choice" in value:
            choice = exact.get(str(value["choice"]).strip().casefold())
            if choice is None:
                raise MalformedOutput(f"its choice is {str(value['choice'])[:60]!r}, which is none of the choices")
            reasons = value.get("reasoning")
            choices.append((choice, reasons.strip() if isinstance(reasons, str) else ""))
    if len({choice for choice, _ in choices}) > 1:
        raise MalformedOutput("it holds choices that differ")
    return choices[0] if choices else None


def _choice_in_last_line(body: str, exact: Mapping[str, str], judged: str) -> tuple[str, str] | None:
    """Find a line that is a choice, skipping later lines that name none."""
    lines = body.split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if _OBJECT.search(lines[number]) or lines[number].lstrip().startswith(">"):  # a quotation
            return None
        line = _LABEL.sub("", lines[number].strip(_DECORATION)).strip(_DECORATION).casefold()
        choice = exact.get(line)
        if choice is not None:
            return choice, "\n".join(lines[:number]).strip()
        if any(_is_choice(line, known_choice) for known_choice in exact):
            return None
    return None


def _is_choice(line: str, choice: str) -> bool:
    return choice in line and re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", line) is not None


def expected_score(rubric: Rubric, completion: Completion, choice: str) -> float | None:
    """Return the choices' mean score, weighted by the model's probabilities at the token where its choice begins.

    None if the model reports no probabilities, or a token matches several choices.

    Source:
        Liu et al. 2023, G-Eval, section 2.
    """
    logprobs = completion.logprobs
    if not logprobs:
        return None
    position = completion.text.rfind(choice)
    start = 0
    for text, logprob, alternatives in logprobs:
        if start <= position < start + len(text):
            return _weighted_mean(rubric, {text: logprob, **alternatives}, text[: position - start])
        start += len(text)
    return None


def _weighted_mean(rubric: Rubric, logprobs: Mapping[str, float], prefix: str) -> float | None:
    weights: dict[str, float] = {}
    for token, logprob in logprobs.items():
        beginning = token.removeprefix(prefix).strip().strip('"')
        matches = [choice for choice in rubric.choice_scores if beginning and choice.startswith(beginning)]
        if len(matches) > 1:
            return None
        if matches:
            weights[matches[0]] = weights.get(matches[0], 0.0) + math.exp(min(0.0, logprob))
    total = math.fsum(weights.values())
    if not total:
        return None
    return math.fsum(rubric.choice_scores[choice] * weight for choice, weight in weights.items()) / total


def grader_sampling(tokens: int, temperature: float | None, votes: int, expected: bool) -> Sampling:
    """Return the sampling of graders; by default temperature 0 for a single vote, and 1 for several."""
    chosen = temperature if temperature is not None else 1.0 if votes > 1 else 0.0
    return Sampling(temperature=chosen, max_tokens=tokens, logprobs=_CHOICE_TOKENS if expected else None)
