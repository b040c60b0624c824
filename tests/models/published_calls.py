"""Facts of the model calls of a KIEval run, without their words: the same of calls by the authors' code and by viva.

`published_calls.json` has ten items of our own (and three that are not interviewed), scripted answers, and the facts of
the calls that the authors' code (github.com/zhuohaoyu/KIEval, commit 8806acb) made about them when it ran once against
these answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
ITEMS: list[dict[str, Any]] = DATA["items"]
EXAMPLES: list[dict[str, Any]] = DATA["examples"]
ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
REASONS = ("off_topic", "empty_response", "rule_violation", "repetition", "unpermitted_role_shift")
_MARKERS = re.compile(r"\[(?:BEGIN|END) (?:INTERACTOR|CANDIDATE)\]")


def item_of(messages: Sequence[Mapping[str, str]]) -> int:
    """Return the index of the item that a conversation is about: the last one that its messages name."""
    text = "\n".join(message["content"] for message in messages)
    return max(range(len(ITEMS)), key=lambda index: text.rfind(ITEMS[index]["question"]))


def role_of(messages: Sequence[Mapping[str, str]]) -> str:
    """Return who is asked: the evaluator sees party markers, the interactor the right answer, the candidate neither."""
    if messages[0]["role"] != "system":
        return "first answer"
    if "[BEGIN CANDIDATE]" in messages[1]["content"]:
        return "evaluator"
    item = ITEMS[item_of(messages)]
    rest = messages[1]["content"].replace(_choices(item), "")
    return "interactor" if _labelled(item, item["answer"]) in rest else "candidate"


def scripted_answer(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the answer of the model that plays all roles."""
    index, role = item_of(messages), role_of(messages)
    item = ITEMS[index]
    if role == "first answer":
        return str(item["says"])
    # Before the first call the evaluator has one verdict and the candidate one answer; the interactor has nothing.
    number = sum(message["role"] == "assistant" for message in messages) - (role != "interactor")
    if role == "evaluator":
        return _verdict(index, number)
    return f"Question {index}.{number} about it?" if role == "interactor" else f"Reply {index}.{number} to that."


def _verdict(index: int, number: int) -> str:
    if ITEMS[index].get("unreadable") == number:
        return f"I find reply {index}.{number} rather good."
    stop = ITEMS[index].get("stops") == number
    score = 1 + (index + number) % 4
    verdict: dict[str, Any] = {name: {"comment": f"{name} {index}.{number}", "score": score} for name in ASPECTS}
    verdict |= {"overall_comment": f"Verdict {index}.{number}", "overall_score": score, "stop_conversation": stop}
    return json.dumps(verdict | {"stop_reason": "off_topic" if stop else "none"})


def facts_of_calls(calls: Sequence[tuple[Sequence[Mapping[str, str]], Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what calls hold, from the messages and the sampling of each call, in the order of the calls.

    `sampling` maps roles to the distinct samplings; `interviews` has, by item, the roles in order and the messages of
    each role's last call. Every call of a role must begin with the messages of the role's call before it.
    """
    sampling: dict[str, list[dict[str, Any]]] = {}
    interviews: dict[str, dict[str, Any]] = {}
    latest: dict[tuple[int, str], list[Mapping[str, str]]] = {}
    for messages, options in calls:
        index, role = item_of(messages), role_of(messages)
        if options not in sampling.setdefault(role, []):
            sampling[role].append(dict(options))
        before = latest.get((index, role), [])
        assert list(messages)[: len(before)] == before, f"{role} of item {index}: earlier messages have changed"
        latest[index, role] = list(messages)
        interview = interviews.setdefault(str(index), {"order": [], "messages": {}})
        interview["order"].append(role)
        interview["messages"][role] = [f"{m['role']}: {', '.join(_contents(m['content'], index))}" for m in messages]
    return {
        "sampling": dict(sorted(sampling.items())),
        "interviews": {index: interviews[index] for index in sorted(interviews, key=int)},
    }


def _contents(text: str, index: int) -> list[str]:
    """Return the names of what a message holds, in the order of the text."""
    item, found = ITEMS[index], list[tuple[int, str]]()
    for number, example in enumerate(EXAMPLES):
        if (at := text.find(example["question"])) >= 0:
            found.append((at, f"example {number}"))
            answered = text.find(
                _labelled(example, example["answer"]), text.find(_choices(example)) + len(_choices(example))
            )
            found.append((answered, f"answer of example {number}"))
    if (at := text.find(item["question"])) >= 0:
        found.append((at, "question"))
    if (at := text.find(_choices(item))) >= 0:
        found.append((at, "choices"))
    rest = text.replace(_choices(item), " " * len(_choices(item)))
    # A right first answer is the right choice: the interactor's message then holds it twice.
    names = {_labelled(item, item["answer"]): "the right choice", _labelled(item, item["chosen"]): "the chosen choice"}
    for choice in names:
        found += [(match.start(), names[choice]) for match in re.finditer(re.escape(choice), rest)]
    for kind in ("Question", "Reply"):
        found += [(match.start(), match[0].lower()) for match in re.finditer(rf"{kind} {index}\.\d", text)]
    found += [(match.start(), match[0]) for match in _MARKERS.finditer(text)]
    found += [(text.find(words), name) for name, words in _PHRASES.items() if words in text]
    if all(name in text.lower() for name in ASPECTS) and all(reason in text for reason in REASONS):
        found.append((0, "the five aspects and stop reasons"))
    found += [(text.find("{"), f"verdict {_form(verdict)}") for verdict in _verdicts(text)]
    if (match := re.search(r"I find reply \d+\.\d", text)) is not None:
        found.append((match.start(), "an unreadable verdict"))
    return [name for _, name in sorted(found)]


_PHRASES = {"a limit of 200 words": "200 words", "only the answer is wanted": "only the answer"}


def _verdicts(text: str) -> list[dict[str, Any]]:
    """Return the JSON object of a text in a list."""
    try:
        return [json.loads(text[text.index("{") : text.rindex("}") + 1])]
    except ValueError:
        return []


def _form(verdict: Mapping[str, Any]) -> str:
    """Return the fields of a verdict in their order, with all values except comments."""
    return "; ".join(
        " ".join([name, *(part if part == "comment" else str(value[part]) for part in value)])
        if isinstance(value, dict)
        else name if name == "overall_comment" else f"{name} {value}"
        for name, value in verdict.items()
    )  # fmt: skip


def _choices(item: Mapping[str, Any]) -> str:
    return "\n".join(_labelled(item, index) for index in range(len(item["choices"])))


def _labelled(item: Mapping[str, Any], index: int) -> str:
    return f"{'ABCDE'[index]}. {item['choices'][index]}"
