"""Secret links, sessions and form tokens: what opens something, what does not, and for how long."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from viva.engine.errors import ConfigurationError
from viva.web.sessions import Sessions, new_token, parse_expiry, read_or_make_secret

SECRET = bytes(range(32))


def _sent_back(response: web.Response) -> web.Request:
    """The request of a browser that was given the response's cookies."""
    pairs = "; ".join(f"{one.key}={one.value}" for one in response.cookies.values())
    return make_mocked_request("GET", "/", headers={"Cookie": pairs})


def _started(sessions: Sessions, expires: float | None = None) -> web.Response:
    response = web.Response()
    sessions.start(response, "7", "sha256:abc", path="/g/7/", expires=expires, secure=False)
    return response


def test_a_token_has_256_bits_and_its_hash_does_not_give_it_away() -> None:
    token, kept = new_token()
    assert len(base64.urlsafe_b64decode(token + "=")) == 32
    assert kept.startswith("sha256:")
    assert token not in kept
    assert new_token()[0] != token


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("12h", 43200), ("7d", 604800), ("2w", 1209600)])
def test_durations_of_links(text: str, seconds: float) -> None:
    assert parse_expiry(text, 1000.0) == 1000.0 + seconds


def test_a_link_may_never_expire_and_anything_else_is_refused() -> None:
    assert parse_expiry("never", 1000.0) is None
    for text in ("", "0d", "7", "d", "-1d", "7 d", "1y", "99999d"):
        with pytest.raises(ConfigurationError, match="--expires"):
            parse_expiry(text, 0.0)


def test_the_secret_is_made_once_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "pages.secret"
    secret = read_or_make_secret(file)
    assert read_or_make_secret(file) == secret
    assert len(secret) == 32
    file.chmod(0o644)
    assert read_or_make_secret(file) == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["pages.secret"]
    file.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="delete the file"):
        read_or_make_secret(file)


def test_a_session_is_read_back_until_its_link_expires() -> None:
    now = [1000.0]
    sessions = Sessions(SECRET, purpose="grading", clock=lambda: now[0])
    response = _started(sessions, expires=1500.0)
    [cookie] = response.cookies.values()
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == ("/g/7/", True, "Strict")
    session = sessions.read(_sent_back(response))
    assert session is not None
    assert (session.holder, session.link) == ("7", "sha256:abc")
    now[0] = 1500.0
    assert sessions.read(_sent_back(response)) is None


def test_what_was_not_signed_here_is_no_session() -> None:
    sessions = Sessions(SECRET, purpose="grading", clock=lambda: 1000.0)
    response = _started(sessions)
    others = [Sessions(bytes(32), purpose="grading"), Sessions(SECRET, purpose="room")]
    for other in others:
        [cookie] = _started(other).cookies.values()
        forged = make_mocked_request("GET", "/", headers={"Cookie": f"{sessions.cookie}={cookie.value}"})
        assert sessions.read(forged) is None
    [cookie] = response.cookies.values()
    for value in (cookie.value[:-2], cookie.value + "x", "", "WzFd.x", "null"):
        assert sessions.read(make_mocked_request("GET", "/", headers={"Cookie": f"{sessions.cookie}={value}"})) is None


def test_a_form_token_is_of_one_session_and_is_no_session() -> None:
    sessions = Sessions(SECRET, purpose="grading", clock=lambda: 1000.0)
    one, other = (sessions.read(_sent_back(_started(sessions))) for _ in range(2))
    assert one is not None
    assert other is not None
    token = sessions.form_token(one)
    assert sessions.is_of_form(one, token)
    assert not sessions.is_of_form(other, token)
    for wrong in (None, "", token[:-1], 7, _started(sessions).cookies[sessions.cookie].value):
        assert not sessions.is_of_form(one, wrong)
    as_cookie = make_mocked_request("GET", "/", headers={"Cookie": f"{sessions.cookie}={token}"})
    assert sessions.read(as_cookie) is None
