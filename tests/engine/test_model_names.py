"""Model names: what is read from them, and that a wrong kind, option or number is named before anything is called."""

from __future__ import annotations

import pytest
from case_tables import case_table

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.openai import OpenAIBackend
from viva.engine.backends.openai import build as build_openai
from viva.engine.backends.registry import KINDS, build, with_absolute_path
from viva.engine.backends.retry import RetryingBackend
from viva.engine.backends.simulated import SimulatedBackend
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError

URL = "openai:http://127.0.0.1:8000/v1"


def made(text: str) -> Backend:
    return build(text, VirtualClock())


def problem(text: str) -> str:
    """What is said about a wrong name."""
    with pytest.raises(ConfigurationError) as caught:
        made(text)
    return str(caught.value)


@case_table(
    ("text", "kind", "where", "fragment", "options"),
    [
        ("openai:gpt-4o", "openai", "gpt-4o", "", {}),
        (f"{URL}#org/name-7B", "openai", "http://127.0.0.1:8000/v1", "org/name-7B", {}),
        (f"{URL}#name?timeout=5&label=a%20b", "openai", URL[7:], "name", {"timeout": "5", "label": "a b"}),
        ("simulated:strong?knowledge=0.9", "simulated", "strong", "", {"knowledge": "0.9"}),
        ("simulated:?label=", "simulated", "", "", {"label": ""}),
        ("replay:runs/one two", "replay", "runs/one two", "", {}),
    ],
)
def test_a_name_is_read(text: str, kind: str, where: str, fragment: str, options: dict[str, str]) -> None:
    spec = ModelSpec.parse(text)
    assert (spec.text, spec.kind, spec.where, spec.fragment, spec.options) == (text, kind, where, fragment, options)


@case_table("text", ["", "gpt-4o", ":gpt-4o", "?label=x", "strong?url=http://x"])
def test_a_name_without_a_kind_is_told_what_names_look_like(text: str) -> None:
    message = problem(text)
    assert f"model '{text}'" in message
    assert "kind:where" in message
    assert "openai:gpt-4o" in message


def test_an_unknown_kind_names_the_known_ones() -> None:
    message = problem("opanai:gpt-4o")
    assert "unknown kind 'opanai'" in message
    assert all(kind in message for kind in KINDS)
    assert {"openai", "replay", "simulated"} <= KINDS.keys()


@pytest.mark.parametrize("text", ["simulated:strong?knowlege=0.9", f"{URL}#name?knowlege=0.9"])
def test_an_unknown_option_is_named_with_the_known_ones(text: str) -> None:
    message = problem(text)
    assert "unknown option knowlege" in message
    assert all(known in message for known in ("label", "concurrency", "rpm", "price_in"))
    assert ("memorisation" in message) == text.startswith("simulated")
    assert ("timeout" in message) == text.startswith("openai")


def test_all_unknown_options_are_named() -> None:
    assert "unknown option colour, size" in problem("simulated:x?size=9&colour=red&knowledge=1")


@case_table(
    ("option", "expected"),
    [
        ("knowledge=1.5", "expected a number from 0 to 1"),
        ("knowledge=-0.1", "expected a number from 0 to 1"),
        ("knowledge=much", "expected a number from 0 to 1"),
        ("knowledge=", "expected a number from 0 to 1"),
        ("noise=nan", "expected a number from 0 to 1"),
        ("latency=-1", "expected a number from 0"),
        ("price_in=-3", "expected a number from 0"),
        ("price_out=cheap", "expected a number from 0"),
        ("concurrency=0", "expected a number from 1"),
        ("rpm=-5", "expected a number from 1"),
        ("rps=2.5", "expected a whole number"),
        ("tpm=many", "expected a number from 1"),
        ("retries=-1", "expected a number from 0"),
        ("retries=1.5", "expected a whole number"),
    ],
)
def test_a_number_out_of_range_is_named(option: str, expected: str) -> None:
    message = problem(f"simulated:x?{option}")
    assert f"model 'simulated:x?{option}': {option}: {expected}" in message


def test_an_option_without_a_value_is_named() -> None:
    assert "knowledge=: expected a number" in problem("simulated:x?knowledge")


@pytest.mark.parametrize("options", ["rps=1&rps=2", "rps=1&label=x&rps=1", "concurrency=4&concurrency="])
def test_line_29_an_option_given_twice_is_refused(options: str) -> None:
    name = options.partition("=")[0]
    assert f"the option {name} is given 2 times; give it once" in problem(f"openai:m?{options}")


def test_two_rates_at_once_are_refused() -> None:
    assert "rpm or rps, not both" in problem("simulated:x?rpm=60&rps=1")


@case_table(
    ("text", "label"),
    [
        ("simulated:strong", "strong"),
        ("simulated:strong?label=mine", "mine"),
        ("simulated:strong?label=", "strong"),
        ("simulated:", "simulated"),
        (f"{URL}#org/name", "org/name"),
        (f"{URL}#org/name?label=mine", "mine"),
        (URL, "http://127.0.0.1:8000/v1"),
        (f"{URL}#name?rpm=60", "name"),
    ],
)
def test_a_model_has_a_label(text: str, label: str) -> None:
    assert ModelSpec.parse(text).label == label
    assert made(text).label == label


def test_options_reach_the_model() -> None:
    backend = made("simulated:x?knowledge=0.25&memorisation=1&latency=2.5&price_in=3&price_out=15")
    assert isinstance(backend, SimulatedBackend)
    assert (backend.knowledge, backend.memorisation, backend.latency, backend.noise) == (0.25, 1.0, 2.5, 0.1)
    assert backend.cost(1_000_000, 100_000) == pytest.approx(4.5)


def test_a_model_that_can_neither_fail_nor_be_limited_stands_bare() -> None:
    assert isinstance(made("simulated:x"), SimulatedBackend)
    for text in ("simulated:x?rpm=60", "simulated:x?concurrency=2", "simulated:x?fail=0.1", f"{URL}#name"):
        assert isinstance(made(text), RetryingBackend)


# -- the openai kind ----------------------------------------------------------------------------------------------


def test_a_public_model_needs_a_key_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OTHER_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert "OPENAI_API_KEY" in problem("openai:gpt-4o")
    assert "OTHER_KEY" in problem(f"{URL}#name?key_env=OTHER_KEY")
    assert made(f"{URL}#name").label == "name"
    monkeypatch.setenv("OTHER_KEY", "sk-hidden")
    assert made("openai:gpt-4o?key_env=OTHER_KEY").label == "gpt-4o"
    assert "sk-hidden" not in problem("openai:gpt-4o?key_env=OTHER_KEY&nonsense=1")


def test_an_endpoint_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    backend = build_openai(ModelSpec.parse("openai:local"), VirtualClock())
    assert isinstance(backend, OpenAIBackend)
    assert (backend.base_url, backend.model) == ("http://127.0.0.1:9/v1", "local")


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    message = problem("openai:http://me:secret@127.0.0.1:8000/v1#name")
    assert "key_env" in message
    assert "secret" not in message


WITH_CREDENTIALS = [
    "openai:http://me:SECRET@127.0.0.1:8000/v1#name",
    "openai:HTTP://me:SECRET@127.0.0.1:8000/v1#name",
    "openai:hTtPs://SECRET@host/v1#name",
    "openai:http://me:SECRET%40127.0.0.1:8000/v1#name",
    "openai:http://me%3ASECRET%2540host/v1#name",
    "openai:http%3A%2F%2Fme:SECRET@host/v1#name",
    "openai:http:/me:SECRET@host/v1#name",
    "openai:http:\\\\me:SECRET@host/v1#name",
    "openai: http://me:SECRET@host/v1#name",
    "openai:ht\ttp://me:SECRET@host/v1#name",
    "openai:http://me:SECRET\uff20host/v1#name",
    "openai:http://me:SEC?RET@host/v1#name",
    "openai:http://me:SEC#RET@host/v1#name",
    "openai:me:SECRET@host:8000/v1#name",
    "llama:https://me:SECRET@host/model.gguf",
    f"{URL}?api_key=SECRET",
    f"{URL}#name?API-Key=SECRET",
    f"{URL}#name?api%5Fkey=SECRET",
    f"{URL}#name?password=SECRET",
    f"{URL}#name?key_env=sk-SECRET",
]


@case_table("text", WITH_CREDENTIALS)
def test_line_18_a_name_with_a_credential_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ModelSpec.parse(text)
    assert "key_env" in str(caught.value)
    assert "SEC" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        with_absolute_path(text)


@case_table(
    "text",
    [
        "openai:claude@20240229",
        "openai:llama3:8b@q4",
        f"{URL}#org/name@v2",
        "openai:http://127.0.0.1:8000#name@v2?label=a@b",
        "openai:http://[::1]:8000?label=a@b",
        "openai:http://host/@cf/meta#name?label=a%40b&tokens_field=max_tokens&key_env=MY_KEY",
        "llama:models/a:b@c.gguf",
        "replay:runs/me@home/one?label=x",
    ],
)
def test_line_18_an_at_sign_elsewhere_is_no_credential(text: str) -> None:
    assert ModelSpec.parse(text).text == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("openai:", "name a model"),
        (f"{URL}?json=yaml", "json=yaml: expected one of schema"),
        (f"{URL}?timeout=0", "timeout=0"),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_named(text: str, named: str) -> None:
    assert named in problem(text)
