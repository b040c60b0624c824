"""Small files as other tools write them, for tests of imports: details of interviews, and samples of static answers.

Made in their form from invented items.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from viva.data.items import Item, content_id

ASPECTS = ("accuracy", "logic", "relevance", "coherence", "conciseness")
# Of each interview: whether the first answer is right, then its rounds as (five scores, overall, stop reason).
_TALKS: list[tuple[bool, list[tuple[list[Any], Any, str]]]] = [
    (True, [([4, 4, 4, 4, 4], 4, ""), ([3, 4, 4, 4, 2], 3, ""), ([4, 3, 4, 4, 3], 4, "")]),
    (False, [([1, 2, 3, 3, 4], 2, ""), ([1, 1, 2, 3, 3], 1, "meaningless_repetition")]),
    (True, [([3, 3, None, 4, 4], 3, ""), ([2, 3, 4, 4, 4], None, ""), ([4, 4, 4, 4, 4], 4, "")]),
    (False, [([2, 2, 2, 2, 2], 2, ""), ([0, 1, 1, 1, 1], 1, ""), ([2, 3, 2, 3, 2], 2, "off_topic")]),
]


def items() -> list[Item]:
    """As many items as there are interviews, with published ids."""
    found = []
    for number in range(len(_TALKS)):
        texts = [f"about {number * 10 + place} metres" for place in range(4)]
        question = f"How tall is tower {number}, seen from the square?"
        found.append(Item(content_id(question, texts, number % 4, None), question, texts, number % 4))
    return found


def details() -> list[dict[str, Any]]:
    """``interact_details.json`` of four interviews: missing scores, two early stops."""
    return [_entry(item, *talk) for item, talk in zip(items(), _TALKS, strict=True)]


def _entry(item: Item, right: bool, rounds: list[tuple[list[Any], Any, str]]) -> dict[str, Any]:
    asked = f"### Question: {item.question}\n\n### Choices: {item.labelled_choices()}\n\n\n"
    answer = item.labelled_choice(item.answer if right else (item.answer + 1) % 4)
    interactor = f"{asked}\n### Correct Answer: {item.labelled_answer()}\n### My Answer: {answer}\nBegin to ask."
    prefilled = json.dumps(
        {"accuracy": {"comment": "", "score": 4 if right else 1}, "overall_score": 4 if right else 2}
    )
    said: list[dict[str, str]] = []
    results = []
    for number, (scores, overall, stop) in enumerate(rounds, 1):
        verdict: dict[str, Any] = {
            name: {"comment": f"{name} of reply {number}", "score": score}
            for name, score in zip(ASPECTS, scores, strict=True)
        }
        verdict |= {"overall_comment": "", "overall_score": overall, "comment": ""}
        verdict |= {"stop_conversation": bool(stop), "stop_reason": stop or "none"}
        said.append({"role": "interactor", "content": f"Why do you think so? ({number})"})
        said.append({"role": "candidate", "content": f"Because of its shadow. ({number})"})
        said.append({"role": "evaluator", "content": json.dumps(verdict)})
        results.append(verdict)
    return {
        "uuid": item.id,
        "messages": [],
        "random_seed": 0,
        "prompt": None,
        "stop_interaction": bool(rounds[-1][2]),
        "all_messages": said,
        "current_party": "evaluator",
        "role_messages": {
            "interactor": _messages("Ask.", interactor),
            "candidate": _messages("Answer.", asked, answer),
            "evaluator": _messages("Judge.", f"{asked}{answer}", prefilled),
        },
        "evaluation_results": results,
        "aggregated_result": None,
    }


def _messages(*contents: str) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant")
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def write_details(folder: Path) -> Path:
    """The file, and the results beside it that name the models."""
    folder.mkdir()
    roles = {"candidate": "remote_hf: org/tower-7b", "interactor": "openai: gpt-4", "evaluator": "openai: gpt-4"}
    (folder / "results.json").write_text(json.dumps({"roles": roles}))
    file = folder / "interact_details.json"
    file.write_text(json.dumps(details(), indent=2))
    return file


def write_samples(folder: Path, wanted: list[Item], rights: list[bool], shots: int = 5) -> Path:
    """``samples_towers_DATE.jsonl`` of one model, and its results: each item's texts read for their likelihood."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for number, (item, right) in enumerate(zip(wanted, rights, strict=True)):
        best = item.answer if right else (item.answer + 1) % len(item.choices)
        sums = [-1.5 if place == best else -4.0 - place for place in range(len(item.choices))]
        by_length = [value / len(text) for value, text in zip(sums, item.choices, strict=True)]
        normalised = by_length.index(max(by_length)) == item.answer
        doc = {"id": item.id, "question": item.question, "choices": item.choices, "answer": item.answer}
        lines.append({
            "doc_id": number,
            "doc": doc,
            "target": str(item.answer),
            "arguments": {f"gen_args_{at}": {"arg_0": f"Question: {item.question}\nAnswer:", "arg_1": f" {text}"}
                          for at, text in enumerate(item.choices)},
            "resps": [[[str(value), "False"]] for value in sums],
            "filtered_resps": [[str(value), "False"] for value in sums],
            "filter": "none",
            "metrics": ["acc", "acc_norm"],
            "doc_hash": "0", "prompt_hash": "0", "target_hash": "0",
            "acc": float(right), "acc_norm": float(normalised),
        })  # fmt: skip
    means = {name: math.fsum(line[name] for line in lines) / len(lines) for name in ("acc", "acc_norm")}
    date = "2026-05-01T10-00-00.000001"
    results = {
        "results": {"towers": {f"{name},none": value for name, value in means.items()}},
        "n-shot": {"towers": shots},
        "model_name": "org/tower-7b",
    }
    (folder / f"results_{date}.json").write_text(json.dumps(results))
    file = folder / f"samples_towers_{date}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
