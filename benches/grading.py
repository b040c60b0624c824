"""What grading by people costs the server: 200 graders at once on the pages of one folder.

``viva grade serve`` runs in a process of its own over 400 questions with four answers each; the graders are connections
of this process, each with a session, a question and its form token, as browsers have them. First each presses a key
every second, at moments of their own, which is faster than people read; then all press at the same moment, again and
again; then each presses as soon as the last grade is acknowledged. At the end the grades in the folder must be those
that were acknowledged last. ``--quick`` takes a third of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
import table
from grade_analysis import analysis
from running import note

from viva.grading.records import Answer, Label, Question, Turn
from viva.grading.store import GradeStore

GRADERS, QUESTIONS, ANSWERS = 200, 400, 4
REACH: table.Reach = {"submit_p95_ms": ("<=", 50), "analysis_seconds": ("<=", 5)}
_LABELS = [Label(float(value), word) for value, word in enumerate(("wrong", "incomplete", "right", "more than right"))]
_SENTENCE = "the lock fills from above so that boats rise with its water while both gates stay closed"
_WORDS = _SENTENCE.split()
_PAGE = re.compile(r'data-form="([^"]+)".*?data-question="(\d+)" data-seal="([^"]+)"', re.DOTALL)


def make_folder(folder: Path) -> None:
    """A grading folder with all graders and questions; an answer has about 120 words."""
    draw = random.Random(3)

    def answer(name: str) -> Answer:
        return Answer(name, [Turn("assistant", " ".join(draw.choices(_WORDS, k=120)))])

    def question(number: int) -> Question:
        answers = [answer(f"m{model}") for model in range(ANSWERS)]
        right = " ".join(draw.choices(_WORDS, k=40))
        return Question(f"q{number}", f"{_SENTENCE}?", _LABELS, answers, standard_answer=right, overlap=3)

    questions = [question(number) for number in range(QUESTIONS)]
    with GradeStore.create(folder, questions, title="a bench", seed=1) as store, store.batch():
        for number in range(GRADERS):
            store.add_grader(f"g{number}")


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, dict[str, str], int]]:
    """``viva grade serve`` in a process of its own: its address, the links by name, its process id."""
    command = [sys.executable, "-m", "viva", "grade", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            links: dict[str, str] = {}
            for line in process.stdout:
                if match := re.fullmatch(r"(\w+) \(\w+\): (\S+)\n", line):
                    links[match[1]] = match[2]
                elif match := re.match(r"viva grade: (\S+)/ ", line):
                    yield match[1], links, process.pid
                    return
            raise SystemExit("grading: the server ended before it served")
        finally:
            process.terminate()


@dataclass(slots=True)
class Person:
    """A grader with a page open: what is sent with each grade, and what was acknowledged."""

    number: int
    cookie: str
    form: str
    question: int
    seal: str
    draw: random.Random
    count: Iterator[int] = field(default_factory=itertools.count)
    grades: dict[int, int] = field(default_factory=dict)


async def enter(session: aiohttp.ClientSession, link: str, number: int) -> tuple[Person, float]:
    """A grader who opened the link and the first question; the milliseconds until that page was there."""
    async with session.post(
        link, allow_redirects=False, headers={"Content-Type": "application/x-www-form-urlencoded"}
    ) as begun:
        cookie = begun.headers["Set-Cookie"].partition(";")[0]
        base = begun.headers["Location"]
    began = time.perf_counter()
    async with session.get(f"{base}next", headers={"Cookie": cookie}) as page:
        text = await page.text()
    took = 1e3 * (time.perf_counter() - began)
    match = _PAGE.search(text)
    assert match is not None, text[:500]
    return Person(number, cookie, match[1], int(match[2]), match[3], random.Random(number)), took


async def press(session: aiohttp.ClientSession, person: Person) -> float:
    """Give a grade as the page's script does; the milliseconds until it was acknowledged."""
    position, value = person.draw.randint(1, ANSWERS), person.draw.randint(0, 3)
    item = {"name": f"{next(person.count)}", "question": person.question, "position": position, "value": value,
            "comment": "", "seal": person.seal}  # fmt: skip
    body = orjson.dumps({"form": person.form, "items": [item]})
    headers = {"Cookie": person.cookie, "Content-Type": "application/json", "Accept": "application/json"}
    began = time.perf_counter()
    async with session.post(f"/g/{person.number}/grades", data=body, headers=headers) as answer:
        reply = orjson.loads(await answer.read())
    took = 1e3 * (time.perf_counter() - began)
    assert reply["results"] == {item["name"]: {}}, reply
    person.grades[position] = value
    return took


async def steadily(session: aiohttp.ClientSession, people: list[Person], seconds: float) -> list[float]:
    """Each presses a key every second, at moments of their own."""

    async def grade_steadily(grader: Person) -> list[float]:
        begin = time.perf_counter() + grader.draw.random()
        took = []
        for number in range(int(seconds)):
            await asyncio.sleep(max(0.0, begin + number - time.perf_counter()))
            took.append(await press(session, grader))
        return took

    return [each for person in await asyncio.gather(*map(grade_steadily, people)) for each in person]


async def together(session: aiohttp.ClientSession, people: list[Person], times: int) -> list[float]:
    """All press at the same moment, again and again."""
    all_times: list[float] = []
    for _ in range(times):
        all_times += await asyncio.gather(*(press(session, person) for person in people))
        await asyncio.sleep(0.2)
    return all_times


async def breathless(session: aiohttp.ClientSession, people: list[Person], seconds: float) -> float:
    """Grades a second where each presses as soon as the last grade is acknowledged."""
    end = time.perf_counter() + seconds

    async def grade_at_once(person: Person) -> int:
        count = 0
        while time.perf_counter() < end:
            await press(session, person)
            count += 1
        return count

    began = time.perf_counter()
    return sum(await asyncio.gather(*map(grade_at_once, people))) / (time.perf_counter() - began)


def check(folder: Path, people: list[Person]) -> None:
    """See that the folder holds what was acknowledged last, and nothing else."""
    with GradeStore.open(folder) as store:
        for person in people:
            places = {answer.id: answer.position for answer in store.question(person.question).answers}
            stored = {places[grade.answer]: grade.value for grade in store.grades(grader=person.number)}
            if stored != person.grades:
                raise SystemExit(f"grading: grader {person.number} gave {person.grades}, and {stored} is recorded")


def pages(quick: bool) -> dict[str, float]:
    """200 graders at once: milliseconds from a key to its acknowledgement."""
    seconds = 10 if quick else 30

    async def ask(address: str, links: dict[str, str]) -> tuple[list[Person], list[list[float]], float]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(address, connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            entered = [await enter(session, links[f"g{n}"].removeprefix(address), n + 1) for n in range(GRADERS)]
            people = [person for person, _ in entered]
            await together(session, people, 1)  # each has a connection from here on
            note(f"{GRADERS} graders, a grade each second, {seconds} s")
            steady = await steadily(session, people, seconds)
            note(f"{GRADERS} graders at the same moment")
            burst = await together(session, people, seconds)
            note(f"{GRADERS} graders without a break")
            rate = await breathless(session, people, seconds / 3)
            return people, [[took for _, took in entered], steady, burst], rate

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "folder"
        make_folder(folder)
        with served(folder) as (address, links, pid):
            people, (first, steady, burst), rate = asyncio.run(ask(address, links))
            peak = _peak_mb(pid)
        check(folder, people)
    rows = [[name, f"{len(took):,}", *(f"{_at(took, share):.1f}" for share in (0.5, 0.95, 0.99, 1.0))]
            for name, took in (("a question's page", first), ("a grade, one a second each", steady),
                               ("a grade, all at the same moment", burst))]  # fmt: skip
    table.show(f"{GRADERS} graders at once (milliseconds)", ["what", "n", "p50", "p95", "p99", "most"], rows)
    return {
        "submit_p50_ms": _at(steady, 0.5),
        "submit_p95_ms": _at(steady, 0.95),
        "submit_p99_ms": _at(steady, 0.99),
        "same_moment_p95_ms": _at(burst, 0.95),
        "question_page_p95_ms": _at(first, 0.95),
        "grades_per_second": rate,
        "server_peak_mb": peak,
    }


def _at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _peak_mb(pid: int) -> float:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


PARTS = {"pages": pages, "analysis": analysis}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="what grading by people costs")
    parser.add_argument("--quick", action="store_true", help="a third of the time")
    parser.add_argument("--only", choices=PARTS, help="one part; the others' figures are left out")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for name, part in PARTS.items():
        if options.only in (None, name):
            figures |= part(options.quick)
    table.conclude("grading", {name: round(value, 3) for name, value in figures.items()}, REACH)


if __name__ == "__main__":
    main()
