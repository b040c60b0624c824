"""Proxies and certificates as the environment names them: what goes through a proxy, what it is sent, and what of its
login is shown (nothing).
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import viva
from provider_asks import asking

from viva.engine.backends.proxies import Proxies, is_exempt, proxy_secrets
from viva.engine.backends.redaction import make_redactor
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import BackendError, ConfigurationError, Unauthorized, Unavailable
from viva.engine.messages import Completion

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

CLOCK = RealClock()
KEY = "sk-network-0123456789abcdef"
PASSWORD = "pr%C3%B6xy-pass%40word"
LOGIN = base64.b64encode("someone:pröxy-pass@word".encode()).decode()
ANSWER = json.dumps({"choices": [{"message": {"content": "B"}, "finish_reason": "stop"}]}).encode()


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


async def ask(model: str) -> Completion:
    async with build(model, CLOCK) as backend:
        return await backend.generate(asking())


class Place:
    """A server that answers each head of a request by ``reply``, and keeps the heads. What it is to connect goes to the
    port ``tunnel``.
    """

    def __init__(self, reply: Callable[[str], bytes]) -> None:
        self.heads: list[str] = []
        self.port = 0
        self.tunnel: int | None = None
        self._reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                self.heads.append(head)
                if head.startswith("CONNECT") and self.tunnel is not None:
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    behind = await asyncio.open_connection("127.0.0.1", self.tunnel)
                    await asyncio.gather(_pass_on(reader, behind[1]), _pass_on(behind[0], writer))
                    return
                length = next((line for line in head.lower().split("\r\n") if line.startswith("content-length")), ":0")
                await reader.readexactly(int(length.split(":")[1]))
                writer.write(self._reply(head))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


def reply(status: str = "200 OK", body: bytes = ANSWER) -> Callable[[str], bytes]:
    return lambda head: f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(place: Place, tls: ssl.SSLContext | None = None) -> AsyncIterator[Place]:
    server = await asyncio.start_server(place.serve, "127.0.0.1", 0, ssl=tls)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return CLOCK.run(main)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:model.internal",
            "-keyout", "-", "-out", "-"]  # fmt: skip
    file.write_bytes(subprocess.run(made, capture_output=True, check=True).stdout)
    return file


def speaking_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_an_endpoint_is_asked_through_the_proxy_of_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> Place:
        async with serving(Place(reply())) as proxy:
            monkeypatch.setenv(
                variable, f"127.0.0.1:{proxy.port}" if variable.islower() else f"http://127.0.0.1:{proxy.port}"
            )
            assert (await ask("openai:http://model.internal/v1#m?retries=0")).text == "B"
            return proxy

    [head] = run(main).heads
    assert head.startswith("POST http://model.internal/v1/chat/completions HTTP/1.1\r\n")
    assert "proxy-authorization" not in head.lower()


def test_the_key_goes_to_the_endpoint_and_the_login_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)

    async def main() -> Place:
        async with serving(Place(reply())) as proxy:
            monkeypatch.setenv("http_proxy", f"http://someone:{PASSWORD}@127.0.0.1:{proxy.port}")
            await ask("openai:http://model.internal/v1#m?retries=0&key_env=THE_KEY")
            return proxy

    [head] = run(main).heads
    assert f"Authorization: Bearer {KEY}\r\n" in head
    assert f"Proxy-Authorization: Basic {LOGIN}\r\n" in head


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_proxy_of_tls_is_sent_its_login_and_nothing_of_the_endpoints_key(
    kind: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    message = {"content": [{"type": "text", "text": "B"}], "stop_reason": "end_turn", "type": "message"}
    body = ANSWER if kind == "openai" else json.dumps(message).encode()

    async def main() -> tuple[Place, Place]:
        proxy = Place(reply())
        async with serving(Place(reply(body=body)), speaking_tls(certificate)) as behind, serving(proxy):
            proxy.tunnel = behind.port
            monkeypatch.setenv("https_proxy", f"http://someone:{PASSWORD}@127.0.0.1:{proxy.port}")
            monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
            assert (await ask(f"{kind}:https://model.internal/v1#m?retries=0&key_env=THE_KEY")).text == "B"
            return proxy, behind

    proxy, behind = run(main)
    [connect] = proxy.heads
    assert connect.startswith("CONNECT model.internal:443 HTTP/1.1\r\n")
    assert f"Proxy-Authorization: Basic {LOGIN}\r\n" in connect
    assert KEY not in connect
    [head] = behind.heads
    assert KEY in head
    assert "proxy-authorization" not in head.lower()


@pytest.mark.parametrize("named", ["127.0.0.1", "127.0.0.0/8", "*", "example.com, 127.0.0.1", "127.0.0.1:PORT"])
def test_no_proxy_is_heeded(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Place:
        async with serving(Place(reply())) as place:
            monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
            monkeypatch.setenv("no_proxy", named.replace("PORT", str(place.port)))
            await ask(f"openai:http://127.0.0.1:{place.port}/v1#m?retries=0")
            return place

    assert run(main).heads[0].startswith("POST /v1/chat/completions ")


@pytest.mark.parametrize(
    ("scheme", "place", "exempt", "is_"),
    [
        ("http", "example.com", "example.com", True),
        ("http", "a.example.com", "example.com", True),
        ("http", "a.example.com", ".example.com", True),
        ("http", "a.example.com", "*.example.com", True),
        ("http", "A.Example.com.", "EXAMPLE.COM", True),
        ("http", "notexample.com", "example.com", False),
        ("http", "example.com", "a.example.com", False),
        ("http", "example.com:8000", "example.com:8000", True),
        ("http", "example.com", "example.com:80", True),
        ("https", "example.com", "example.com:80", False),
        ("http", "example.com:8000", "example.com:9000", False),
        ("http", "localhost:8000", "localhost", True),
        ("http", "localhost:8000", "", False),
        ("http", "127.0.0.1:8000", "localhost", False),
        ("http", "10.1.2.3", "10.0.0.0/8", True),
        ("http", "10.1.2.3", "10.1.2.3", True),
        ("http", "10.1.2.3", "11.0.0.0/8 , 10.1.0.0/16", True),
        ("http", "10.1.2.3", "2.3", False),
        ("http", "[::1]:8000", "::1", True),
        ("http", "[::1]:8000", "[::1]", True),
        ("http", "[fd00::5]", "fd00::/8", True),
        ("http", "example.com", "*", True),
        ("http", "example.com", " , ,", False),
        ("http", "example.com", ".", False),
    ],
)
def test_whom_no_proxy_exempts(scheme: str, place: str, exempt: str, is_: bool) -> None:
    assert is_exempt(scheme, place, exempt) is is_


def test_small_letters_count_before_capital_ones_and_an_empty_value_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://capital:1")
    monkeypatch.setenv("http_proxy", "http://small:2")
    proxy = Proxies().for_url("http://a.test/v1")
    assert proxy is not None
    assert (proxy.url, proxy.variable) == ("http://small:2", "http_proxy")
    assert Proxies().for_url("https://a.test/v1") is None
    monkeypatch.setenv("http_proxy", "")
    assert Proxies().for_url("http://a.test/v1") is None
    assert not Proxies()


@pytest.mark.parametrize("value", [f"socks5://someone:{PASSWORD}@127.0.0.1:1", f"http://someone:{PASSWORD}@a:b:c"])
def test_a_proxy_that_cannot_be_used_is_refused_by_its_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    problem = r"all_proxy (names a socks5 proxy|is not a proxy URL).*no_proxy"
    with pytest.raises(ConfigurationError, match=problem) as caught:
        run(lambda: ask("openai:http://model.internal/v1#m?retries=0"))
    assert "pass" not in str(caught.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(Unavailable, match="nothing listens there"):
        run(lambda: ask("openai:http://127.0.0.1:1/v1#m?retries=0"))


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("status", "kind", "advice"),
    [
        ("407 Proxy Authentication Required", Unauthorized, "check user and password in http_proxy"),
        ("403 Forbidden", Unauthorized, ""),
        ("502 Bad Gateway", Unavailable, ""),
    ],
)
def test_what_a_proxy_refuses_is_typed_and_shows_no_password(
    scheme: str, status: str, kind: type[BackendError], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"no entry for someone:{PASSWORD} or pröxy-pass@word, that is {LOGIN}".encode()

    async def main() -> BackendError:
        async with serving(Place(reply(status, said))) as proxy:
            monkeypatch.setenv(f"{scheme}_proxy", f"http://someone:{PASSWORD}@127.0.0.1:{proxy.port}")
            with pytest.raises(BackendError) as caught:
                await ask(f"openai:{scheme}://model.internal/v1#m?retries=0")
            return caught.value

    error = run(main)
    assert type(error) is kind
    assert status[:3] in str(error)
    assert advice in str(error)
    shown = str(error) + repr(error.to_record())
    assert not [secret for secret in (PASSWORD, "pass@word", "xy-pass", LOGIN[12:24]) if secret in shown], shown


def test_a_proxy_that_is_not_there_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://someone:{PASSWORD}@127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1.*the proxy of http_proxy") as caught:
        run(lambda: ask("openai:http://model.internal/v1#m?retries=0"))
    assert caught.value.absent
    assert "pass" not in str(caught.value)


def test_no_password_of_a_proxy_in_a_run_folder_or_on_the_screen(
    replanned: StartChaos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = "hunter-2-proxy-secret"
    server = replanned({"default": {"do": "raw", "status": 400, "say": f"I saw {password} and someone:{password}"}})
    place = server.url.removeprefix("http://").removesuffix("/v1")
    monkeypatch.setenv("http_proxy", f"http://someone:{password}@{place}")  # which answers as if it were the proxy
    out = tmp_path / "run"
    models = [
        "--candidate",
        "openai:http://model.internal/v1#m",
        "--interactor",
        "simulated:i",
        "--evaluator",
        "simulated:e",
    ]
    items = Path(__file__).parents[2] / "scenarios" / "kieval" / "items" / "science.jsonl"
    done = viva("run", "kieval", "--dataset", items, "-n", "1", *models, "--out", out)
    assert done.returncode == 3, done.stderr
    assert "I saw ***" in done.stderr
    assert password not in done.stderr + done.stdout
    assert not [file for file in out.rglob("*") if file.is_file() and password.encode() in file.read_bytes()]


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_an_authority_of_ones_own_is_trusted_where_the_environment_names_it(
    variable: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(Place(reply()), speaking_tls(certificate)) as place:
            model = f"openai:https://localhost:{place.port}/v1#m?retries=0"
            with pytest.raises(Unavailable, match=r"CERTIFICATE_VERIFY_FAILED.*SSL_CERT_FILE"):
                await ask(model)
            monkeypatch.setenv(variable, str(certificate))
            assert (await ask(model)).text == "B"

    run(main)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_of_certificates_that_cannot_be_read_is_named(
    variable: str, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv(variable, str(file))
    with pytest.raises(ConfigurationError, match=f"{variable}: .*ca.pem cannot be read as certificates"):
        run(lambda: ask("openai:https://localhost:1/v1#m?retries=0"))


def test_a_short_password_is_masked_in_the_login_that_a_proxy_sends_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:pw12@proxy:1")
    login = Proxies().for_url("http://h/v1")
    assert login is not None
    assert make_redactor(proxy_secrets())(f"refused {login.login}") == "refused Basic ***"
