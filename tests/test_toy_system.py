"""A system that the house does not know: a package of its own with one entry-point line, through the real command.

The package is made here, installed by hand into a folder on the path, and used as a user would: run, killed and
resumed, forked, swept, reported in every form, scored otherwise, and looked at with its prompts.
"""

from __future__ import annotations

import csv
import os
import signal
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
from viva_process import ended

SYSTEM = '''
"""Lectures: a speaker explains a word, a listener grades the explanation from 0 to 4."""

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import BaseModel, Field

import viva


class LectureSettings(viva.RunSettings):
    words: str = Field(description="A file of words, one a line.")
    speaker: list[str] = Field(min_length=1, description="Model that explains; may be given several times.")
    listener: str = Field(description="Model that grades.")
    sentences: int = Field(default=2, ge=1, description="Sentences of an explanation.")
    pack: str = "lectures"


class LectureScoring(viva.Scoring):
    top: int | None = Field(default=None, ge=1, description="The best grade that there is.")

    def note(self, report):
        return None if self.top is None else f"grades are shares of {self.top}"


class Grade(BaseModel):
    reason: str
    grade: int = Field(ge=0, le=4)


@dataclass(frozen=True)
class Word:
    id: str
    letters: int

    def to_record(self):
        return asdict(self)


@dataclass(frozen=True)
class Graded:
    """What simulated models play: a speaker who knows some words, a listener who grades what was known."""

    word: Word

    def simulated(self, model, request, chance):
        if request.role == "speaker":
            return f"{self.word.id.capitalize()} has {self.word.letters} letters.", None
        grade = Grade(reason="I looked it up.", grade=int(chance[3] * 5))
        return ("?" if chance[4] < model.malformed else grade.model_dump_json()), None


class Lectures:
    def __init__(self, manifest, scoring):
        self.manifest, self.top = manifest, scoring.top or 4
        self.grades = {label: [] for label in manifest["models"]["speaker"]}
        self.failures = dict.fromkeys(self.grades, 0)

    def add(self, key, result):
        self.grades[result["speaker"]].append((key, result["grade"]))

    def add_failure(self, key, error):
        self.failures[key.partition("/")[0]] += 1

    def headline(self):
        return "  ".join(f"{label} {len(grades)}" for label, grades in self.grades.items())

    def report(self):
        speakers = {}
        for label, grades in self.grades.items():
            known = [grade / self.top for _, grade in sorted(grades, key=lambda pair: pair[0]) if grade is not None]
            speakers[label] = {"lectures": len(grades), "failed": self.failures[label],
                               "grade": {"mean": sum(known) / len(known) if known else None, "n": len(known)}}
        return {"scenario": "lecture", "tier": self.manifest["tier"], "candidates": speakers}

    def tables(self):
        rows = [[label, str(one["lectures"]), "–" if one["grade"]["mean"] is None else f"{one['grade']['mean']:.3f}"]
                for label, one in self.report()["candidates"].items()]
        return [(f"Lectures, seed {self.manifest['seed']}", ["speaker", "lectures", "grade"], rows)]


class LectureSystem(viva.Scenario):
    name = "lecture"
    summary = "A speaker explains a word, a listener grades."
    plural = "lectures"
    data = "words"
    settings = LectureSettings
    scoring = LectureScoring
    roles = (viva.Role("speaker", many=True), viva.Role("listener", judge=True))
    templates = viva.PackTemplates({"speaker.system": frozenset(), "speaker.explain": frozenset({"word", "sentences"}),
                                    "listener.system": frozenset(), "listener.grade": frozenset({"text"})})

    def prepare(self, settings):
        try:
            words = Path(settings.words).read_text().split()
        except OSError as error:
            raise viva.ConfigurationError(f"words: {error}") from None
        digest = str(sum(map(len, words)))
        return viva.Prepared([Word(word, len(word)) for word in words],
                             {"dataset": {"name": Path(settings.words).stem, "digest": digest, "chosen": len(words)}})

    def protocol(self, settings, pack, records):
        async def lecture(conversation, word):
            hint = Graded(word)
            speaker = viva.Agent(conversation, "speaker", pack.render("speaker.system"), hint=hint)
            listener = viva.Agent(conversation, "listener", pack.render("listener.system"), hint=hint)
            conversation.tell(lambda: [("word", word.id)])
            asked = pack.render("speaker.explain", word=word.id, sentences=str(settings.sentences))
            told = (await speaker.ask(asked)).text
            grade = await listener.ask_for(Grade, pack.render("listener.grade", text=told))
            return {"speaker": conversation.label, "grade": None if grade is None else grade.grade}

        return lecture

    def task(self, record):
        return Word(**record)

    def aggregate(self, manifest, scoring):
        return Lectures(manifest, scoring)


SYSTEM = LectureSystem()
'''
PACK = """
name: lectures
version: "3"
speaker: {system: You explain words., explain: "Explain “{word}” in {sentences} sentences."}
listener: {system: You grade., grade: "Grade this: {text}"}
"""
FUNCTION = '''
"""Echoes: a scenario of one function."""

import viva


@viva.scenario(many="voice", judge="ear")
async def echo(conversation: viva.Conversation, word: str) -> dict[str, str]:
    """A voice says a word, an ear listens."""
    said = (await viva.Agent(conversation, "voice").ask(f"Say {word}.")).text
    heard = (await viva.Agent(conversation, "ear").ask(said)).text
    return {"said": said[:20], "heard": heard[:20]}
'''
PROJECT = """
[project]
name = "lectures-viva"
version = "1"

[project.entry-points."viva.scenarios"]
lecture = "lectures_viva.system:SYSTEM"
echo = "lectures_viva.echoes:echo"

[project.entry-points."viva.packs"]
lectures = "lectures_viva"
"""
WORDS = ["tide", "rust", "salt", "ember", "quartz", "lichen"]


@dataclass(frozen=True)
class Place:
    """A folder with words and runs, where the package is installed."""

    path: Path
    environment: dict[str, str]

    def started(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """``viva`` with these arguments, on its way."""
        command = [sys.executable, "-m", "viva", *map(str, arguments)]
        return subprocess.Popen(command, cwd=self.path, env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)  # fmt: skip

    def viva(self, *arguments: str | Path) -> tuple[bytes, str]:
        """What ``viva`` with these arguments prints and says, where it succeeds."""
        code, printed, said = ended(self.started(*arguments))
        assert code == 0, said
        return printed, said

    def printed(self, *arguments: str | Path) -> bytes:
        """What it prints."""
        return self.viva(*arguments)[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("toy")
    package, about = base / "source" / "lectures_viva", base / "source" / "lectures_viva-1.dist-info"
    (package / "packs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "system.py").write_text(SYSTEM)
    (package / "echoes.py").write_text(FUNCTION)
    (package / "packs" / "lectures.yaml").write_text(PACK)
    (base / "source" / "pyproject.toml").write_text(PROJECT)
    about.mkdir()  # what an installer makes of the project file
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lectures-viva\nVersion: 1\n")
    points = tomllib.loads(PROJECT)["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in these.items())
             for group, these in points.items()]  # fmt: skip
    (about / "entry_points.txt").write_text("\n".join(lines))
    here = base / "here"
    here.mkdir()
    (here / "words.txt").write_text("\n".join(WORDS))
    (here / "words.jsonl").write_text("".join(f'"{word}"\n' for word in WORDS))
    path = os.pathsep.join([str(base / "source"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Place(here, os.environ | {"PYTHONPATH": path})


LECTURE = ["run", "lecture", "--words", "words.txt", "--listener", "simulated:l", "--speaker"]
ECHO = ["run", "echo", "--tasks", "words.jsonl", "--ear", "simulated:e", "--voice"]
SLOW = "simulated:a?latency=0.1&sigma=0"
KEYS = [f"a/{word}" for word in WORDS]


def _killed(process: subprocess.Popen[bytes], journal: Path) -> None:
    """Kill the run once three of its calls are recorded."""
    recorded = 0
    while recorded < 3 and process.poll() is None:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as file:
            [recorded] = file.execute("select count(*) from calls").fetchone()
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL


def _calls(run: Path) -> int:
    with closing(sqlite3.connect(run / "journal.sqlite")) as journal:
        [count] = journal.execute("select count(*) from calls").fetchone()
        return int(count)


@pytest.fixture(scope="module")
def whole(place: Place) -> bytes:
    """The report of a run that nobody interrupted."""
    return place.printed(*LECTURE, SLOW, "--json", "--out", "whole")


def test_killed_and_resumed_it_reports_what_an_uninterrupted_run_does(place: Place, whole: bytes) -> None:
    _killed(
        place.started(*LECTURE, SLOW, "--concurrency", "1", "--json", "--out", "cut"),
        place.path / "cut" / "journal.sqlite",
    )
    assert b"interrupted" in place.printed("show", "cut")
    assert place.printed("resume", "cut", "--concurrency", "9", "--json") == whole
    assert place.printed("report", "cut", "--json") == whole
    assert _calls(place.path / "cut") == 12


def test_forked_it_asks_the_other_judge_alone_and_shows_what_each_was_sent(place: Place, whole: bytes) -> None:
    place.viva("run", "--fork", "whole", "--judge", "simulated:strict?malformed=1", "--out", "fork")
    assert _calls(place.path / "fork") == 18  # an answer that cannot be read is asked for once more
    shown = [[orjson.loads(line) for line in place.printed("show", run, "--json", "--prompts").splitlines()]
             for run in ("whole", "fork")]  # fmt: skip
    for before, after in zip(*shown, strict=True):
        assert before["talk"][:2] == after["talk"][:2]
        listened = [one["prompt"]["messages"] for one in after["talk"][2:]]
        assert listened[0] == before["talk"][2]["prompt"]["messages"] == listened[1][:2]
        assert "could not be read" in listened[1][-1]["content"]
    assert [one["key"] for one in shown[1]] == KEYS
    page = place.printed("show", "fork", "--prompts", "--conversation", "a/tide").decode()
    for text in ("tide", "You explain words.", "Explain “tide” in 2 sentences.", "Tide has 4 letters.", "You grade."):
        assert text in page


def test_its_report_has_tables_and_options_of_scoring(place: Place, whole: bytes) -> None:
    mean = orjson.loads(whole)["candidates"]["a"]["grade"]["mean"]
    table = place.printed("report", "whole").decode()
    assert "Lectures, seed 7" in table
    assert f"{mean:.3f}" in table
    printed, said = place.viva("score", "whole", "--top", "8", "--json")
    assert orjson.loads(printed)["candidates"]["a"]["grade"] == {"mean": pytest.approx(mean / 2), "n": 6}
    assert said == "viva: note: grades are shares of 8\n"


def test_a_scenario_of_one_function_needs_one_entry_point_line_too(place: Place) -> None:
    _killed(
        place.started(*ECHO, SLOW, "--concurrency", "1", "--out", "echo-cut"),
        place.path / "echo-cut" / "journal.sqlite",
    )
    resumed = place.printed("resume", "echo-cut", "--concurrency", "9", "--json")
    assert resumed == place.printed(*ECHO, SLOW, "--json", "--out", "echo")
    forked = place.printed("run", "--fork", "echo-cut", "--judge", "simulated:other", "--json", "--out", "echo-fork")
    counts = [orjson.loads(report)["candidates"]["a"]["counts"] for report in (resumed, forked)]
    assert counts[0]["said"] == counts[1]["said"]
    assert sum(counts[1]["heard"].values()) == len(WORDS)
    shown = [orjson.loads(line) for line in place.printed("show", "echo-fork", "--json", "--prompts").splitlines()]
    assert [one["key"] for one in shown] == KEYS
    voice, ear = shown[0]["talk"]
    assert voice["prompt"]["messages"] == [{"role": "user", "content": "Say tide."}]
    assert ear["prompt"]["messages"] == [{"role": "user", "content": voice["text"]}]


GRID = """
candidates: [simulated:quick, "simulated:slow?verbosity=3"]
datasets: [words.txt]
seeds: [1, 2]
evaluators: [simulated:mild]
lectures: {sentences: 3}
"""


def test_swept_it_exports_every_form_and_a_page(place: Place) -> None:
    (place.path / "grid.yaml").write_text(GRID)
    place.viva("sweep", "grid.yaml", "--out", "swept")
    report = orjson.loads(place.printed("report", "swept", "--json", "--csv", "all.csv", "--html", "page.html"))
    assert [(cell["candidate"], cell["seed"], cell["state"]) for cell in report["cells"]] == [
        (candidate, seed, "done") for seed in (1, 2) for candidate in ("quick", "slow")
    ]
    with (place.path / "all.csv").open() as file:
        rows = {(row["candidate"], row["seed"], row["measure"]): row["value"] for row in csv.DictReader(file)}
    assert rows["slow", "2", "lectures"] == "6"
    assert float(rows["slow", "2", "grade"]) == report["cells"][3]["result"]["grade"]["mean"]
    page = (place.path / "page.html").read_text("utf-8")
    assert "Lectures, seed …" in page
    assert "<h2>Lectures</h2>" in page
    latex, markdown = (place.printed("report", "swept", form).decode() for form in ("--latex", "--markdown"))
    assert "\\begin{tabular}" in latex
    assert "| speaker |" in markdown
