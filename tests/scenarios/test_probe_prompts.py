"""What a probe asks with: few-shot examples and the prompts of its pack, as the server's log shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing import PACK, make_items, probe

if TYPE_CHECKING:
    from tests.servers.process import Server

Chaos = Callable[[dict[str, Any]], "Server"]
_HEADER = "Multiple-choice questions on {}, each followed by its answer."


def _shown(server: Server, before: int = 0) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By the question asked: the header, and the questions of the examples, as the prompts of the server's log say."""
    shown = {}
    for entry in server.log()[before:]:
        header, *examples, asked = entry["prompt"].split("\n\n")
        told = (header, tuple(example.split("\n")[0] for example in examples))
        assert shown.setdefault(asked.split("\n")[0], told) == told  # the same before each option
    return shown


def test_examples_are_of_the_dev_split_and_do_not_change_with_the_run(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    make_items(tmp_path / "quiz_test.jsonl", 12, "law art", seed=1)
    make_items(tmp_path / "quiz_dev.jsonl", 9, "law art tea", seed=2)
    data, model = ["--dataset", tmp_path / "quiz_test.jsonl"], ["--candidate", server.model("m")]
    probe(tmp_path / "all", *data, *model, "--shots", "2", "--concurrency", "1")
    everything = _shown(server)
    assert len(everything) == 12
    asked = {f"Which one is number 1.{n}?": ["law", "art"][n % 2] for n in range(12)}
    for question, (header, examples) in everything.items():
        assert header == _HEADER.format(asked[question])
        assert len(set(examples)) == 2
        # Of three examples of the subject's own, which stand at 0, 3, 6 (law) and 1, 4, 7 (art) of the dev split.
        own = {f"Which one is number 2.{n + ['law', 'art'].index(asked[question])}?" for n in (0, 3, 6)}
        assert set(examples) <= own
    assert len(set(everything.values())) == 2  # one set of examples a subject

    before = len(server.log())
    probe(tmp_path / "some", *data, *model, "--shots", "2", "-n", "5", "--concurrency", "64")
    some = _shown(server, before)
    assert len(some) == 5
    assert some.items() <= everything.items()

    before = len(server.log())
    probe(tmp_path / "other", *data, *model, "--shots", "2", "--seed", "8")
    assert _shown(server, before).keys() == everything.keys()
    assert _shown(server, before) != everything


def test_an_item_is_never_its_own_example(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    # Every example is an item too, by its id or, in a copy of the file, by its question.
    items = make_items(tmp_path / "quiz.jsonl", 8, "law art", seed=1)
    copies = [json.loads(line) | {"id": f"copy-{number}"} for number, line in enumerate(items.read_text().splitlines())]
    (tmp_path / "copies.jsonl").write_text("".join(json.dumps(copy) + "\n" for copy in copies))
    for name, shots in (("quiz.jsonl", 7), ("copies.jsonl", 5)):
        before = len(server.log())
        options = ["--dataset", items, "--shots-from", tmp_path / name, "--shots", str(shots)]
        probe(tmp_path / name.removesuffix(".jsonl"), *options, "--candidate", server.model("m"))
        shown = _shown(server, before)
        assert len(shown) == 8
        for question, (_, examples) in shown.items():
            assert question not in examples
            assert len(set(examples)) == shots


def test_the_prompt_is_that_of_the_pack(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    make_items(tmp_path / "quiz_test.jsonl", 1, "world_law", seed=1)
    make_items(tmp_path / "quiz_dev.jsonl", 1, "world_law", seed=2)
    one, two = (json.loads((tmp_path / f"quiz_{split}.jsonl").read_text()) for split in ("test", "dev"))
    methods = ["--method", "letter", "--method", "text", "--method", "loss"]
    data = ["--dataset", tmp_path / "quiz_test.jsonl", "--shots", "1", *methods]
    probe(tmp_path / "run", *data, "--candidate", server.model("m"))

    def options(item: dict[str, Any]) -> str:
        return "\n".join(f"{name}. {choice}" for name, choice in zip("ABCD", item["choices"], strict=True))

    shown = f"{two['question']}\n{options(two)}\nAnswer: {'ABCD'[two['answer']]}\n\n"
    asked = f"{_HEADER.format('world law')}\n\n{shown}{one['question']}\n{options(one)}\nAnswer:"
    words = (
        f"Question: {two['question']}\nAnswer: {two['choices'][two['answer']]}\n\nQuestion: {one['question']}\nAnswer:"
    )
    right = f"{one['question']}\n{options(one)}\nAnswer: {'ABCD'[one['answer']]}. {one['choices'][one['answer']]}"
    expected = {f"{asked} {name}" for name in "ABCD"} | {f"{words} {choice}" for choice in one["choices"]} | {right}
    assert {entry["prompt"] for entry in server.log()} == expected

    before = len(server.log())
    (tmp_path / "pack.yaml").write_text(PACK.read_text().replace("Answer:", "Reply:"))
    probe(tmp_path / "own", *data, "--candidate", server.model("m"), "--pack", tmp_path / "pack.yaml")
    assert {entry["prompt"] for entry in server.log()[before:]} == {
        prompt.replace("Answer:", "Reply:") for prompt in expected
    }


def test_beginnings_of_texts_are_continued_as_they_stand(chaos: Chaos, tmp_path: Path) -> None:
    server = chaos({})
    (tmp_path / "stories.jsonl").write_text(
        json.dumps({"ctx": "A cat sits", "endings": ["down.", " up.", "in.", "on."], "label": 0, "activity_label": "C"})
    )
    data = ["--dataset", f"hellaswag:{tmp_path / 'stories.jsonl'}", "--shots", "0", "--method", "text"]
    probe(tmp_path / "run", *data, "--candidate", server.model("m"))
    assert {entry["prompt"] for entry in server.log()} == {
        f"A cat sits {ending}" for ending in ("down.", "up.", "in.", "on.")
    }
