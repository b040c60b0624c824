"""A small file of single calls and one of dialogs, of FunctionChat's forms and in words of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Spec = dict[str, Any]
TOOL_LISTS = ("exact", "4_random", "4_close", "8_random", "8_close")


def _tool(name: str, required: Sequence[str] = (), **types: str) -> Spec:
    properties = {key: {"type": kind} for key, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": parameters}}


TOOLS = {
    "set_alarm": _tool("set_alarm", ["time"], time="string", label="string"),
    "add_note": _tool("add_note", ["text"], text="string"),
    "dim_lamp": _tool("dim_lamp", ["percent"], percent="integer", slowly="boolean"),
    "next_tide": _tool("next_tide", ["harbour"], harbour="string"),
}
SINGLE = {
    "set_alarm": [("Wake me at 06:40.", {"time": "06:40"}), ("Alarm for 21:05, please.", {"time": "21:05"})],
    "dim_lamp": [
        ("Lamp down to 30 percent.", {"percent": 30}),
        ("Dim it to 5%, slowly.", {"percent": 5, "slowly": True}),
    ],
    "add_note": [("Note: buy thyme.", {"text": "buy thyme"}), ("Write down: call Noor.", {"text": "call Noor"})],
}


def singlecall_lines() -> list[Spec]:
    """Three functions, two queries each, under five tool lists: 30 turns."""
    lines = []
    serial = 0
    for number, (name, queries) in enumerate(SINGLE.items(), 1):
        serials = [serial := serial + 1 for _ in queries]
        truths = [json.dumps({"name": name, "arguments": json.dumps(arguments)}) for _, arguments in queries]
        acceptable = [None] * len(queries)
        if name == "set_alarm":
            acceptable = ["Only ground truth is allowed."] * len(queries)
        others = [tool for other, tool in TOOLS.items() if other != name]
        lists = [[TOOLS[name]], *([TOOLS[name], *others[: 2 + index % 2]] for index in range(4))]
        lines.append(
            {
                "function_num": number,
                "function_name": name,
                "query": _numbered(serials, [query for query, _ in queries]),
                "ground_truth": _numbered(serials, truths),
                "acceptable_arguments": _numbered(serials, acceptable),
                "tools": [{"type": kind, "content": tools} for kind, tools in zip(TOOL_LISTS, lists, strict=True)],
            }
        )
    return lines


def _numbered(serials: Sequence[int], contents: Sequence[Any]) -> list[Spec]:
    return [{"serial_num": serial, "content": content} for serial, content in zip(serials, contents, strict=True)]


def _call(name: str, **arguments: Any) -> Spec:
    return {"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def dialog_lines(count: int = 3) -> list[Spec]:
    """So many dialogs of five turns: a slot question, two calls at once, a completion, a refusal, small talk."""
    return [_dialog(number, f"Port {chr(64 + number)}") for number in range(1, count + 1)]


def _dialog(number: int, harbour: str) -> Spec:
    calls = [_call("next_tide", harbour=harbour), _call("set_alarm", time="05:30")]
    said: list[tuple[str, Spec, list[Spec]]] = [
        (
            "slot",
            {"content": "For which harbour, and when shall I wake you?"},
            [_user("When is the tide? And wake me.")],
        ),
        ("call", {"content": None, "tool_calls": calls}, [_user(f"{harbour}, and 05:30.")]),
        ("completion", {"content": f"High water in {harbour} is at 06:10; I set the alarm."}, _results(calls)),
        ("relevance", {"content": "I cannot order food."}, [_user("Order me some soup.")]),
        ("relevance", {"content": "Good night!"}, [_user("Then good night.")]),
    ]
    turns: list[Spec] = []
    history: list[Spec] = []
    for place, (kind, truth, new) in enumerate(said, 1):
        history = [*history, *new]
        message = {"role": "assistant", **truth}
        serial = (number - 1) * len(said) + place
        turns.append({"turn_num": place, "serial_num": serial, "query": history, "ground_truth": message})
        turns[-1] |= {"type_of_output": kind, "acceptable_arguments": None}
        history = [*history, message]
    return {"dialog_num": number, "tools_count": 2, "tools": [TOOLS["next_tide"], TOOLS["set_alarm"]], "turns": turns}


def common_lines() -> list[Spec]:
    """Turns of the common form, two of each of four categories; serial numbers begin anew with each."""
    asked = ["When is high water in Vlissingen?", "High water in Oban, please?"]
    harbours = ["Vlissingen", "Oban"]
    offered, others = [TOOLS["add_note"], TOOLS["next_tide"]], [TOOLS["add_note"], TOOLS["dim_lamp"]]
    lines: list[Spec] = []
    for serial, (text, harbour) in enumerate(zip(asked, harbours, strict=True), 1):
        right = {"name": "next_tide", "arguments": json.dumps({"harbour": harbour})}
        some = [_user("The tide?"), {"role": "assistant", "content": "Where?"}, _user(f"Near {harbour}.")]
        acceptable = json.dumps({"harbour": [harbour.upper()]}) if serial == 1 else None
        for category, kind, tools, messages, truth in (
            ("CALL", "call", offered, [_user(text)], right),
            ("REJECT", "relevance", others, [_user(text)], {"role": "assistant", "content": "I know no tides."}),
            ("SLOT-all", "slot", offered, [_user("The tide?")], {"role": "assistant", "content": "Where?"}),
            ("SLOT-some", "slot", offered, some, {"role": "assistant", "content": "Which harbour there?"}),
        ):
            system = {"role": "system", "content": f"Rules of {category} {serial}."}
            lines.append({"serial_num": serial, "category": category, "input_messages": [system, *messages]})
            lines[-1] |= {"input_tools": tools, "type_of_output": kind, "ground_truth": truth}
            lines[-1]["acceptable_arguments"] = acceptable if kind == "call" else None
    return sorted(lines, key=lambda line: str(line["category"]))


def _user(text: str) -> Spec:
    return {"role": "user", "content": text}


def _results(calls: Sequence[Spec]) -> list[Spec]:
    told = ['{"high": "06:10"}', '{"set": true}']
    return [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": content}
        for call, content in zip(calls, told, strict=True)
    ]


def write_data(folder: Path) -> Path:
    """Both files under their published names, and a system prompt; gives the folder."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("Singlecall", singlecall_lines()), ("Dialog", dialog_lines())):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"FunctionChat-{name}.jsonl").write_text(text)
    (folder / "system_prompt.txt").write_text("Use the functions, and ask for what is missing.\n")
    return folder


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    """A file of these records, a line each; text is written as it is. Gives the path."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def write_rubrics(folder: Path) -> Path:
    """Rubrics in place of the pack's, with the placeholders of the published ones; gives the folder."""
    folder.mkdir(exist_ok=True)
    for name in ("call", "completion", "slot", "relevance"):
        more = "ACCEPTABLE {acceptable_arguments}\n" if name == "call" else ""
        text = f"{name}\nTOOLS {{tools}}\nQUERY {{query}}\nTRUTH {{ground_truth}}\n{more}REPLY {{response}}\n"
        text += "Give reasons; then, on a line of its own, pass or fail.\n"
        (folder / f"rubric_{name}.txt").write_text(text)
    return folder
