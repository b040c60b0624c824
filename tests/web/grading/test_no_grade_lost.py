"""Graders at the same moment, and a server that is killed again and again: no grade is lost or doubled."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from grading_site import GradingSite, Visitor, field, grading_site, make_folder

from viva.grading.store import GradeStore

_KILLS = int(os.environ.get("VIVA_KILLS", "10"))


def _item(
    name: str, number: int, position: int, value: float | None, seal: str, comment: str = ""
) -> dict[str, object]:
    return {"name": name, "question": number, "position": position, "value": value, "comment": comment, "seal": seal}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "folder", 6)


@pytest.fixture
def site(folder: Path) -> Iterator[GradingSite]:
    with grading_site(folder) as one:
        yield one


def test_two_at_the_same_moment_never_share_a_spare_seat(tmp_path: Path) -> None:
    names = [f"grader {number}" for number in range(16)]
    folder = make_folder(tmp_path / "folder", 24, roles=dict.fromkeys(names, "grader"), overlap=1)
    with grading_site(folder) as site, ThreadPoolExecutor(len(names)) as pool:
        visitors = [Visitor(site.port, site.links[name]) for name in names]
        together = threading.Barrier(len(names))

        def grade_all(visitor: Visitor) -> list[int]:
            together.wait()
            mine = []
            while (found := visitor.next())[0] is not None:
                number, seal = found
                assert number is not None
                mine.append(number)
                items = [_item(f"{number}.{position}", number, position, 1, seal) for position in range(1, 5)]
                assert visitor.grade(*items)[0] == 200
            return mine

        taken = list(pool.map(grade_all, visitors))
    assert sorted(itertools.chain(*taken)) == list(range(1, 25)), "each question once"
    with GradeStore.open(folder) as store:
        assert len(store.grades()) == 24 * 4


class _Grading(threading.Thread):
    """Somebody who changes grades without a break; what is not acknowledged is sent again under its name."""

    def __init__(self, name: str, links: dict[str, str], server: _Restarted) -> None:
        super().__init__()
        self.who, self._server, self._draw = name, server, random.Random(name)
        self._visitor = Visitor(server.port, links[name])
        self._visitor.form()
        self._seats = []
        for _ in range(2):
            number, seal = self._visitor.next()
            assert number is not None
            self._seats.append((number, seal))
            for position in range(1, 5):  # so that the next question comes
                self._visitor.grade(_item(f"first {number} {position}", number, position, 0, seal))
        self.acknowledged: list[tuple[str, int, int, int]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for count in itertools.count():
                if self._server.over.is_set():
                    return
                number, seal = self._draw.choice(self._seats)
                position, value = self._draw.randint(1, 4), self._draw.randint(0, 2)
                name = f"{self.who} {count}"
                while not self._sent(_item(name, number, position, value, seal)):
                    self._server.wait_for_the_next()
                self.acknowledged.append((name, number, position, value))
                self._server.heard()
        except BaseException as error:
            self.error = error
            raise

    def _sent(self, item: dict[str, object]) -> bool:
        try:
            status, told = self._visitor.grade(item)
        except (OSError, http.client.HTTPException):
            return False
        assert (status, told["results"]) == (200, {item["name"]: {}})
        return True


class _Restarted:
    """A server that is killed after a drawn count of acknowledgements, ``VIVA_KILLS`` times, and started again."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder, self._draw = stack, folder, random.Random(11)
        self.site = self._site(0)
        self.port = self.site.port
        self.over, self._up, self._due = threading.Event(), threading.Event(), threading.Event()
        self._up.set()
        self._lock = threading.Lock()
        self._left = self._draw.randint(1, 25)

    def _site(self, port: int) -> GradingSite:
        return self._stack.enter_context(grading_site(self._folder, port=port))

    def heard(self) -> None:
        """An acknowledgement arrived; the due one ends the server, with other submissions on their way."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._up.clear()
                self._due.set()

    def wait_for_the_next(self) -> None:
        """Wait until a server is there again."""
        self._up.wait(60)

    def run(self) -> None:
        """Kill and start again, to the end."""
        for number in range(_KILLS):
            assert self._due.wait(60)
            self._due.clear()
            self.site.kill()
            self.site = self._site(self.port)
            with self._lock:
                self._left = self._draw.randint(1, 25) if number < _KILLS - 1 else -1
            self._up.set()
        self.over.set()


def test_what_was_acknowledged_is_there_once_after_many_kills(folder: Path) -> None:
    with ExitStack() as stack:
        server = _Restarted(stack, folder)
        graders = [_Grading(name, server.site.links, server) for name in ("Ada", "Ben", "Cem")]
        for grader in graders:
            grader.start()
        try:
            server.run()
        finally:
            server.over.set()
            for grader in graders:
                grader.join(60)
    assert [grader.error for grader in graders] == [None] * 3
    with GradeStore.open(folder) as store:
        recorded = dict(store.connection.execute("select name, value from submissions"))
        places = {answer.id: (one.number, answer.position) for one in store.questions() for answer in one.answers}
        for grader in graders:
            holder = store.grader(grader.who).number
            last = {(number, position): value for _, number, position, value in grader.acknowledged}
            for name, _, _, value in grader.acknowledged:
                assert recorded.pop(f"{holder} {name}") == value
            standing = {places[one.answer]: one.value for one in store.grades(grader=holder)}
            assert {place: standing[place] for place in last} == last
        assert [name for name in recorded if " first " not in name] == [], "nothing is there that was not sent"
        assert store.connection.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_form_that_is_sent_again_changes_nothing(site: GradingSite, folder: Path) -> None:
    visitor = Visitor(site.port, site.links["Ada"])
    number, seal = visitor.next()
    page = visitor.get(f"q/{number}")[1]
    fields = {"name": field(page, 'name="name" value'), "seal": seal}
    for position in range(1, 5):
        fields |= {f"value-{position}": "", f"had-{position}": "", f"comment-{position}": "", f"said-{position}": ""}
    first = fields | {"value-1": "2.0", "comment-1": "so it is\r\nindeed", "next": "1"}
    assert visitor.post(f"q/{number}", first) == (303, f"../next?after={number}")
    second = fields | {
        "name": "another",
        "value-1": "0.0",
        "had-1": "2.0",
        "comment-1": "",
        "said-1": "so it is\nindeed",
    }
    assert visitor.post(f"q/{number}", second) == (303, str(number))
    assert visitor.post(f"q/{number}", first)[0] == 303
    for _ in range(2):
        assert visitor.grade(_item("s", number or 0, 2, 1, seal))[1]["results"] == {"s": {}}
    with GradeStore.open(folder) as store:
        given = {one.answer: (one.value, one.comment) for one in store.grades()}
        answers = store.question(number or 0).answers
        assert given == {answers[0].id: (0.0, ""), answers[1].id: (1.0, "")}
        assert store.connection.execute("select count(*) from submissions").fetchone() == (3,)


def test_one_process_serves_a_folder(site: GradingSite, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="another process is serving this folder"), grading_site(folder):
        pass
    with pytest.raises(AssertionError, match="not a grading folder"), grading_site(tmp_path / "none"):
        pass
    assert site.stop() == 0
    with grading_site(folder) as again:
        assert again.links == {}, "whoever has a link keeps it"
        assert Visitor(again.port, site.links["Ada"]).next()[0] is not None
