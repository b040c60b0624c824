"""What others may try on grading pages: guessed links, other people's pages, other sites' forms, odd requests."""

from __future__ import annotations

import gzip
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import viva
from grading_site import CANDIDATES, GradingSite, Visitor, grading_site, make_folder

from viva.grading.store import GradeStore
from viva.web.sessions import hash_token

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("attacked") / "folder", 4)


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[GradingSite]:
    with grading_site(folder) as one:
        yield one


@pytest.fixture(scope="module")
def ada(site: GradingSite) -> Visitor:
    return Visitor(site.port, site.links["Ada"])


def _item(number: int | None, seal: str, **changes: Any) -> dict[str, Any]:
    item = {"name": secrets.token_hex(4), "question": number, "position": 1, "value": 1, "comment": "", "seal": seal}
    return item | changes


def _viva(*words: str | Path) -> str:
    done = viva("grade", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_guessed_link_opens_nothing(site: GradingSite, ada: Visitor) -> None:
    link = site.links["Ben"]
    for path in (f"/link/{secrets.token_urlsafe(32)}", link[:-1], link[:-1] + ("A" if link[-1] != "A" else "B"),
                 f"/link/{hash_token(link.removeprefix('/link/'))}", "/link/%00", "/link/../link/x"):  # fmt: skip
        for method in ("GET", "POST"):
            status, headers, text = ada.ask(method, path, b"" if method == "POST" else None, FORM)
            assert status == 404, path
            assert "set-cookie" not in headers
            assert "Ben" not in text


def test_only_hashes_of_links_are_kept(site: GradingSite, folder: Path) -> None:
    kept = b"".join(file.read_bytes() for file in folder.iterdir())
    for link in site.links.values():
        token = link.removeprefix("/link/").encode()
        assert token not in kept
        assert hash_token(token.decode()).encode() in kept
    assert (folder / "pages.secret").stat().st_mode & 0o077 == 0


def test_a_session_opens_its_own_pages_alone(site: GradingSite, ada: Visitor) -> None:
    for path in ("/g/2/", "/g/2/next", "/g/2/mine", "/g/4/disputes", "/g/5/admin", "/g/5/admin/q/1"):
        status, _, text = ada.ask("GET", path)
        assert status == 401, path
        assert "open your link" in text
    for path in ("disputes", "disputes/1/1", "admin", "admin/q/1"):
        assert ada.get(path)[0] == 403, path
    for path in ("admin/graders", "admin/graders/2", "admin/q/1", "disputes/1/1"):
        assert (
            ada.post(path, {"name": "Mallory", "role": "admin", "deed": "link", "reason": "x", "value": "1"})[0] == 403
        )
    dora = Visitor(site.port, site.links["Dora"])
    assert dora.get("admin")[0] == 403
    dora.cookie = dora.cookie[:-3] + "abc"
    assert dora.get("disputes")[0] == 401, "a forged session is none"


def test_questions_of_others_are_neither_shown_nor_graded(site: GradingSite, ada: Visitor, folder: Path) -> None:
    ben = Visitor(site.port, site.links["Ben"])
    number, seal = ben.next()
    own, own_seal = ada.next()
    other = next(one for one in range(1, 5) if one != own)
    status, text = ada.get(f"q/{other}")
    assert (status, "canal" in text) == (404, False)
    tries = [_item(other, ""), _item(other, own_seal), _item(number if number != own else other, seal),
             _item(999, own_seal), _item(own, own_seal, position=9)]  # fmt: skip
    status, told = ada.grade(*tries)
    assert status == 200
    assert {one["code"] for one in told["results"].values()} == {"not-yours"}
    for value in (7, -1, 0.5):
        item = _item(own, own_seal, value=value)
        assert ada.grade(item)[1]["results"][item["name"]]["code"] == "value"
    with GradeStore.open(folder) as store:
        assert store.grades() == []


@pytest.mark.parametrize(
    "changes",
    [{"value": True}, {"value": "1"}, {"value": [1]}, {"question": 1.5}, {"question": 2**63}, {"question": None},
     {"comment": None}, {"comment": "x" * 4001}, {"name": ""}, {"name": "x" * 61}, {"position": "1"}, {"seal": 7}],
)  # fmt: skip
def test_what_is_no_grade_is_refused(ada: Visitor, changes: dict[str, Any]) -> None:
    number, seal = ada.next()
    status, told = ada.grade(_item(number, seal) | changes)
    assert (status, told["code"]) == (400, "form")


def test_odd_bodies_are_refused(ada: Visitor) -> None:
    for body, status in ((b"", 400), (b"[]", 400), (b"{}", 400), (b'{"form": "x", "items": 7}', 400), (b"\xff", 400),
                         (b'{"form": "x", "items": [7]}', 400), (b"x" * 500_000, 413),
                         (json.dumps({"form": "x", "items": []}).encode(), 403)):  # fmt: skip
        assert ada.ask("POST", f"{ada.base}grades", body, JSON)[0] == status, body[:40]
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert ada.ask(method, f"{ada.base}grades")[0] == 405
    for path in ("/g/1/q/999999999999", "/g/x/", "/asset/../server.py", "/asset/queue.py", "/g/1/nothing"):
        assert ada.ask("GET", path)[0] == 404, path


def test_a_character_cut_in_two_loses_no_grade(ada: Visitor, folder: Path) -> None:
    number, seal = ada.next()
    items = [_item(number, seal, position=place, comment=text) for place, text in ((1, "cut \ud83d"), (2, "whole"))]
    status, told = ada.grade(*items)
    assert (status, set(map(str, told["results"].values()))) == (200, {"{}"})
    fields = {"name": "n", "seal": seal, "value-3": "2", "comment-3": "+2D0-", "had-3": "", "said-3": ""}
    for charset in ("utf-7", "utf-16", "undefined", "bogus"):
        odd = {"Content-Type": f"application/x-www-form-urlencoded; charset={charset}"}
        assert ada.post(f"q/{number}", fields, odd)[0] == 415
    with GradeStore.open(folder) as store:
        assert {"cut \ufffd", "whole"} <= {one.comment for one in store.grades() if one.value is not None}


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Origin": "https://evil.example"}, 403), ({"Origin": "http://127.0.0.1:1"}, 403),
     ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
     ({"Content-Type": "text/plain"}, 415), ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
     ({"Host": "evil.example"}, 421)],
)  # fmt: skip
def test_forms_of_other_sites_are_refused(ada: Visitor, headers: dict[str, str], status: int) -> None:
    number, seal = ada.next()
    body = json.dumps({"form": ada.form(), "items": [_item(number, seal)]}).encode()
    assert ada.ask("POST", f"{ada.base}grades", body, JSON | headers)[0] == status
    assert ada.post(f"q/{number}", {"name": "n", "value-1": "2", "comment-1": ""}, headers)[0] == status


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (FORM, b"form=\xff", 415),
        (FORM, b"form=%ff", 403),
        (FORM | {"Content-Encoding": "gzip"}, gzip.compress(b"form=x"), 415),
        (FORM | {"Content-Encoding": "br"}, b"form=x", 415),
        (FORM | {"Content-Encoding": "identity"}, b"form=x", 403),
        (FORM, b"form=" + b"x" * 500_000, 413),
        (FORM, b"a&" * 100_000, 413),
    ],
    ids=["bytes", "escapes", "gzip", "br", "uncompressed", "long", "many fields"],
)
def test_a_form_that_cannot_be_read_is_refused(
    site: GradingSite, headers: dict[str, str], body: bytes, status: int
) -> None:
    for name, path in (("Ada", "q/1"), ("Dora", "disputes/1/1"), ("Eva", "admin/graders"), ("Eva", "admin/graders/1"),
                       ("Eva", "admin/q/1")):  # fmt: skip
        one = Visitor(site.port, site.links[name])
        assert one.ask("POST", one.base + path, body, headers)[0] == status, path
        one.cookie = ""
        refused = one.ask("POST", one.base + path, body, headers)[0]
        assert refused == (415 if "gzip" in headers.values() or "br" in headers.values() else 401), path


def test_grades_of_nobody_are_refused_unread(site: GradingSite, ada: Visitor) -> None:
    stranger = Visitor(site.port, site.links["Ben"])
    stranger.cookie = ""
    for body in (b"", b"\xff", b"x" * 500_000, json.dumps({"form": ada.form(), "items": []}).encode()):
        assert stranger.ask("POST", f"{ada.base}grades", body, JSON)[0] == 401
    packed = gzip.compress(json.dumps({"form": ada.form(), "items": []}).encode())
    assert ada.ask("POST", f"{ada.base}grades", packed, JSON | {"Content-Encoding": "gzip"})[0] == 415


def test_a_form_needs_the_token_of_its_session(site: GradingSite, ada: Visitor) -> None:
    number, seal = ada.next()
    again = Visitor(site.port, site.links["Ada"])  # another session of the same person
    for token in ("", "x", again.form(), ada.cookie.partition("=")[2]):
        body = json.dumps({"form": token, "items": [_item(number, seal)]}).encode()
        status, _, told = ada.ask("POST", f"{ada.base}grades", body, JSON)
        assert (status, json.loads(told)["code"]) == (403, "form")


def test_every_answer_has_the_headers(site: GradingSite, ada: Visitor) -> None:
    for path in ("/", site.links["Ada"], "/g/1/next", "/g/1/mine", "/g/2/", "/asset/grading.js", "/nothing"):
        _, headers, _ = ada.ask("GET", path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers


def test_blind_is_blind(site: GradingSite, ada: Visitor, folder: Path) -> None:
    with GradeStore.open(folder) as store:
        secret = {answer.id for one in store.questions() for answer in one.answers} | set(CANDIDATES)
        names = {one.name for one in store.graders()} - {"Ada"}
    secret |= {"item-", "source-", "0.123", "1.123"} | names
    number, seal = ada.next()
    texts = [ada.get(path)[1] for path in (site.links["Ada"], "next", "mine", "done", f"q/{number}?written=1")]
    texts.append(json.dumps(ada.grade(_item(number, seal, value=None))[1]))
    for text in texts:
        assert [word for word in secret if word in text] == []
    dora = Visitor(site.port, site.links["Dora"])
    assert [word for word in secret - {"Dora"} if word in dora.get("disputes")[1]] == []


def test_links_expire_are_replaced_and_people_pause_and_leave(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder", 4)
    with grading_site(folder, "--expires", "2w") as site:
        with GradeStore.open(folder) as store:
            ends = [row[0] for row in store.connection.execute("select expires from graders")]
            assert all(abs(end - time.time() - 14 * 86400) < 600 for end in ends)
        ada = Visitor(site.port, site.links["Ada"])
        number, seal = ada.next()
        form = ada.form()

        def refused(code: str, words: str) -> None:
            status, told = ada.grade(_item(number, seal))
            assert status in (403, 410)
            assert told["code"] == code
            assert words in ada.get("next")[1]

        assert "Ada: paused" in _viva("graders", folder, "pause", "Ada")
        refused("paused", "You are paused")
        assert ada.get("mine")[0] == 200, "what was graded can be looked at"
        _viva("graders", folder, "resume", "Ada")
        assert ada.grade(_item(number, seal))[0] == 200
        with GradeStore.open(folder) as store:
            store.set_token(1, hash_token(site.links["Ada"].removeprefix("/link/")), time.time() - 1)
        refused("expired", "This link has expired")
        status, _, text = ada.ask("GET", site.links["Ada"])
        assert (status, "ask for a new link" in text) == (410, True)
        said = _viva("graders", folder, "link", "Ada", "--expires", "7d")
        link = said.split()[2].removeprefix(site.url)
        refused("replaced", "replaced by a newer one")
        assert ada.ask("GET", site.links["Ada"])[0] == 404
        ada = Visitor(site.port, link)
        assert ada.grade(_item(number, seal))[0] == 200, "the seal is the grader's, not the session's"
        _viva("graders", folder, "retire", "Ada")
        refused("retired", "Your part in this grading has ended")
        assert ada.ask("GET", link)[0] == 403
        assert form
        listed = _viva("graders", folder)
        assert "retired" in listed
        assert link.removeprefix("/link/") not in listed


def test_an_admin_adds_changes_and_takes_out(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "folder", 2, overlap=1)
    with grading_site(folder) as site:
        ada, eva = (Visitor(site.port, site.links[name]) for name in ("Ada", "Eva"))
        number, seal = ada.next()
        ada.grade(*(_item(number, seal, position=place, comment="<b>hm</b>") for place in range(1, 5)))
        status, place = eva.post("admin/graders", {"name": "Finn <i>", "role": "grader", "expires": "1d"})
        assert status == 303
        shown = eva.get(place.removeprefix("../"))[1]
        assert "Link of Finn &lt;i&gt;" in shown
        link = shown.partition(f"http://127.0.0.1:{site.port}")[2].partition('"')[0]
        assert "/link/" not in eva.get(place.removeprefix("../"))[1], "shown once"
        finn = Visitor(site.port, link)
        assert finn.next()[0] == 3 - (number or 0)
        assert eva.post("admin/graders/5", {"deed": "retire"})[0] == 400, "not oneself"
        assert eva.post("admin/graders/6", {"deed": "retire"})[0] == 303
        assert finn.get("next")[0] == 403
        page = eva.get(f"admin/q/{number}")[1]
        assert "&lt;b&gt;hm&lt;/b&gt;" in page
        assert [name for name in CANDIDATES if name in page] == []
        assert eva.post(f"admin/q/{number}", {"grader": "1", "position": "2", "reason": " "})[0] == 400
        assert eva.post(f"admin/q/{number}", {"grader": "1", "position": "2", "reason": "guessed"})[0] == 303
        assert eva.post(f"admin/q/{number}", {"reason": "no source"})[0] == 303
        with GradeStore.open(folder) as store:
            assert store.question(number or 0).invalid == "Eva: no source"
            assert [one.invalid for one in store.grades() if one.invalid] == ["Eva: guessed"]
            deeds = [what for _, by, what in store.audit_log() if by == "Eva"]
            assert [what.split(":")[0].split(" as ")[0] for what in deeds][:2] == ["added Finn <i>", "grader 6"]
        assert eva.post(f"admin/q/{number}", {"again": "1"})[0] == 303
        with GradeStore.open(folder) as store:
            assert store.question(number or 0).invalid == ""
        assert eva.get("next")[1].count("data-question") == 1
        assert f'data-question="{number}"' not in eva.get("next")[1], "whoever has seen grades does not give any there"
