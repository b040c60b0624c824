"""A suite against an HTTP application of one's own: from ``init`` to a red and a green gate, and all its troubles."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from small_suites import run_suite, write_suite
from viva_process import ended, started

from viva.engine.backends.http_application_mapping import inline_name
from viva.engine.clock import RealClock
from viva.engine.permissions import grant

_SERVER = Path(__file__).parents[2] / "servers" / "application.py"


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    """The address of a running application."""
    with importlib.import_module("process").serving_port([sys.executable, str(_SERVER)]) as port:
        yield f"http://127.0.0.1:{port}"


def test_from_init_to_a_red_and_a_green_gate_in_under_ten_changed_lines(place: str, tmp_path: Path) -> None:
    code, said, _ = ended(started("suite", "init", "bot", cwd=tmp_path))
    assert code == 0
    assert b"viva suite run bot/suite.yaml" in said
    suite = tmp_path / "bot" / "suite.yaml"
    written = suite.read_text()

    mapping = f'{{url: {place}/chat, body: {{text: "{{message}}"}}, answer: reply.text}}'
    mine = written.replace("system: simulated:support?knowledge=0.95", f"system: {mapping}")
    mine = mine.replace("statistic: p98, at_most: 120", "statistic: p98, at_most: 3")
    suite.write_text(mine)
    assert sum(old != new for old, new in zip(written.splitlines(), mine.splitlines(), strict=True)) < 10
    code, printed, said_aloud = ended(
        started("suite", "run", suite, "--junit", "gate.xml", "--out", "red", cwd=tmp_path)
    )
    assert code == 1, said_aloud
    assert b"  missed by" in printed  # above a maximum or below a minimum
    assert "viva: BROKEN: p98(words) <= 3: application: " in said_aloud
    assert "above the maximum of 3 (n = " in said_aloud
    cases = list(ElementTree.parse(tmp_path / "gate.xml").iter("testcase"))
    assert [case.get("name") for case in cases if case.find("failure") is not None] == ["p98(words) <= 3"]

    suite.write_text(mine.replace("at_most: 3}", "at_most: 30}"))
    code, printed, said_aloud = ended(started("suite", "run", suite, "--out", "green", cwd=tmp_path))
    assert code == 0, said_aloud
    assert printed.startswith(b"Gate: every threshold holds")
    assert "viva: the gate holds: 3 thresholds" in said_aloud


def test_each_trouble_of_an_application_is_named_and_the_rest_completes(place: str, tmp_path: Path) -> None:
    words = ("do:html", "do:500", "do:half", "do:nothing", "do:otherwise", "hello")
    mapping = {"url": f"{place}/sse", "stream": "sse", "body": {"text": "{message}"}, "answer": "delta.text"}
    mapping |= {"done": {"kind": "end"}, "timeout": 1.5}
    talks = [{"id": word, "messages": [{"role": "user", "content": word}]} for word in words]
    suite = write_suite(tmp_path, talks, metrics=[{"function": "length"}])
    system = inline_name(mapping) + "?retries=0&label=app"
    outcome, report = run_suite(suite, tmp_path / "run", RealClock(), candidate=[system])
    assert (outcome.how, outcome.finished, outcome.failed) == ("done", 1, 5)
    reasons = report["candidates"]["app"]["failure_reasons"]
    told = "\n".join(reasons)
    assert sum(reasons.values()) == 5
    for what in ("a page of HTML", "HTTP 500", "broke off before its end", "no answer in time"):
        assert what in told, told
    assert report["candidates"]["app"]["metrics"]["length"]["n"] == 1


@pytest.mark.parametrize("named", ["function", "class"])
def test_a_python_function_is_the_system(tmp_path: Path, named: str) -> None:
    (tmp_path / "bot.py").write_text(
        "def answer(messages):\n    return messages[-1]['content'].upper()\n"
        "import viva\n"
        "class Bot(viva.Backend):\n"
        "    async def generate(self, request):\n"
        "        return viva.Completion(request.messages[-1].content.upper())\n"
    )
    talk = {"id": "a", "messages": [{"role": "user", "content": "loud"}]}
    (tmp_path / "loud.py").write_text("def loud(text: str) -> bool:\n    return text.isupper()\n")
    system = f"python:{tmp_path / 'bot.py'}#{'answer' if named == 'function' else 'Bot'}"
    grant(tmp_path / "bot.py", tmp_path / "loud.py")
    suite = write_suite(tmp_path, [talk], system=system, metrics=[{"function": "loud.py#loud"}])
    _, report = run_suite(suite, tmp_path / "run")
    [one] = report["candidates"].values()
    assert one["metrics"]["loud"]["mean"] == 1
