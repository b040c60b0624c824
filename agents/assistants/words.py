"""What assistants that are models are told, and how assistants' numbers are told to a judge: the pack ``assistants``.

What never belongs here: the wording (``packs/assistants.yaml``), and prompts of one system.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from ..prompts import PackTemplates, PromptPack
from .assistant import Assistant
from .example import Advice

_TEMPLATES = PackTemplates({
    "judge.system": frozenset(),
    "judge.question": frozenset({"texts", "response"}),
    "advice.numbers": frozenset({"numbers"}),
})  # fmt: skip


@cache
def open_words() -> PromptPack:
    """The shipped pack."""
    return _TEMPLATES.open("assistants")


def described(assistants: Iterable[Assistant]) -> str:
    """The assistants for a prompt, a line each."""
    return "\n".join(f"- {one.line()}" for one in assistants)


def numbers(advice: Iterable[Advice]) -> str:
    """The assistants' numbers for a prompt, a line each; a gap says that there is no number, and why."""
    return "\n".join(f"- {one.name}: {said(one)}" for one in advice)


def said(advice: Advice) -> str:
    """A number in four digits, or why there is none."""
    return f"no number ({advice.problem})" if advice.value is None else f"{advice.value:.4g}"


def advised(prompt: str, assistants: Sequence[Assistant], advice: Sequence[Advice]) -> str:
    """A judge's prompt with what the assistants say of the response behind it, each with its range and meaning; the
    prompt as it is where there are none.
    """
    if not assistants:
        return prompt
    lines = "\n".join(f"- {one.line()}: {said(found)}" for one, found in zip(assistants, advice, strict=True))
    return f"{prompt}\n\n{open_words().render('advice.numbers', numbers=lines)}"
