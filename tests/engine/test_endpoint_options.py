"""What a model's name says of its requests: sampling, limits, effort, further fields, headers, parameters of the URL;
what is said where an endpoint refuses one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from case_tables import case_table
from command import viva
from provider_asks import CLOCK, TOOLS, VERDICT, answer, asking, governed

from viva.engine.backends.base import ModelSpec
from viva.engine.backends.endpoint_address import EndpointAddress
from viva.engine.backends.openai import OpenAIBackend, build
from viva.engine.errors import BackendError, ConfigurationError, Rejected

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

SECRET = "hdr-Jx4vQ9TzLw2NfR8sKb5YhD3c"
ITEMS = files("viva.scenarios.kieval") / "items" / "science.jsonl"


def sent(server: Server, kind: str, options: str, request: Any = None) -> dict[str, Any]:
    """The entry of the log for one request of a model with these options."""
    name = {"openai": server.model, "anthropic": server.anthropic, "gemini": server.gemini}[kind]("m")
    answer(f"{name}?{options}" if options else name, request or asking(temperature=0.5, top_p=0.9, top_k=3))
    entry: dict[str, Any] = server.log()[-1]
    return entry


def settings(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a request says of sampling and its limit, under one name for all kinds."""
    body = body["generationConfig"] if kind == "gemini" else body
    names = {"topP": "top_p", "topK": "top_k", "maxOutputTokens": "max_tokens", "max_completion_tokens": "max_tokens"}
    known = ("temperature", "top_p", "top_k", "max_tokens")
    return {names.get(name, name): value for name, value in body.items() if names.get(name, name) in known}


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_sampling_and_limit_of_a_model_are_its_own_whatever_the_kind(kind: str, replanned: StartChaos) -> None:
    server = replanned({"record": True})
    run = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_tokens": 512}
    assert settings(kind, sent(server, kind, "")["body"]) == run
    assert settings(kind, sent(server, kind, "sampling=off")["body"]) == {"max_tokens": 512}
    own = sent(server, kind, "temperature=1&top_p=0.5&max_tokens=4000")
    assert settings(kind, own["body"]) == run | {"temperature": 1.0, "top_p": 0.5, "max_tokens": 4000}
    both = sent(server, kind, "sampling=off&max_tokens=64")
    assert settings(kind, both["body"]) == {"max_tokens": 64}


def test_penalties_belong_to_the_sampling_that_is_left_out(replanned: StartChaos) -> None:
    request = asking(frequency_penalty=0.5, presence_penalty=0.5, min_p=0.1, repeat_penalty=1.2)
    body = sent(replanned({"record": True}), "openai", "sampling=off&seed=off", request)["body"]
    assert body.keys() == {"model", "messages", "max_tokens"}


@case_table(
    ("kind", "options", "fields"),
    [
        ("openai", "effort=low", {"reasoning_effort": "low"}),
        ("openai", "thinking=off", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ("openai", "thinking=on", {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}}),
        ("anthropic", "effort=low", {"output_config": {"effort": "low"}}),
        ("anthropic", "thinking=off", {"thinking": {"type": "disabled"}}),
        ("anthropic", "thinking=on", {"thinking": {"type": "adaptive", "display": "summarized"}}),
        ("gemini", "effort=low", {"thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}}),
        ("gemini", "thinking=off", {"thinkingConfig": {"thinkingBudget": 0}}),
        ("gemini", "thinking=on", {"thinkingConfig": {"thinkingBudget": -1, "includeThoughts": True}}),
    ],
)
def test_thinking_and_effort_are_options_of_every_kind(
    kind: str, options: str, fields: dict[str, Any], replanned: StartChaos
) -> None:
    body = sent(replanned({"record": True}), kind, options)["body"]
    body = body["generationConfig"] if kind == "gemini" else body
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("options", "limit", "fields"),
    [
        ("", "max_completion_tokens", {}),
        ("?effort=high", "max_completion_tokens", {"reasoning_effort": "high"}),
        ("?thinking=off", "max_completion_tokens", {"reasoning_effort": "none"}),
        ("?tokens_field=max_tokens", "max_tokens", {}),
    ],
)
def test_the_public_api_is_asked_as_its_reasoning_models_take_it(
    options: str, limit: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    backend = build(ModelSpec.parse(f"openai:o3{options}"), CLOCK)
    assert isinstance(backend, OpenAIBackend)
    body = backend._body(asking(), "prompt", streaming=False)
    assert {name: body[name] for name in fields} == fields
    assert [name for name in body if name.startswith("max_")] == [limit]
    assert "chat_template_kwargs" not in body


@case_table(
    ("given", "put"),
    [
        ("body.reasoning_effort=low", {"reasoning_effort": "low"}),
        ('body.reasoning_effort="low"', {"reasoning_effort": "low"}),
        ("body.top_k=20", {"top_k": 20}),
        ("body.temperature=1.5", {"temperature": 1.5}),
        ("body.flag=true&body.off=false", {"flag": True, "off": False}),
        ('body.provider={"order": ["a", "b"]}', {"provider": {"order": ["a", "b"]}}),
        ("body.chat_template_kwargs.enable_thinking=false", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("body.a.b=1&body.a.c=[2]", {"a": {"b": 1, "c": [2]}}),
        ("thinking=off&body.chat_template_kwargs.x=1",
         {"chat_template_kwargs": {"enable_thinking": False, "thinking": False, "x": 1}}),
        ("body.top_p=null&body.seed=null", {}),
    ],
)  # fmt: skip
def test_further_fields_of_the_body(given: str, put: dict[str, Any], replanned: StartChaos) -> None:
    quoted = "&".join(f"{one.partition('=')[0]}={quote(one.partition('=')[2])}" for one in given.split("&"))
    body = sent(replanned({"record": True}), "openai", quoted)["body"]
    assert {name: body.get(name) for name in put} == put
    assert "null" not in given or not {"top_p", "seed"} & body.keys()


def test_fields_of_the_body_reach_the_nested_settings_of_gemini(replanned: StartChaos) -> None:
    options = "body.generationConfig.topK=7&body.generationConfig.seed=null"
    config = sent(replanned({"record": True}), "gemini", options)["body"]["generationConfig"]
    assert config["topK"] == 7
    assert "seed" not in config
    assert config["temperature"] == 0.5


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_headers_and_parameters_go_with_each_request(
    kind: str, streaming: bool, replanned: StartChaos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HDR", SECRET)
    server = replanned({"record": True})
    options = "query.api-version=2024-10-21&query.b=x%26y&header.api-key=$HDR&header.X-Auth=Bearer%20${HDR}"
    options += "&header.X-Title=viva"
    entry = sent(server, kind, options, asking(on_text=(lambda piece: None) if streaming else None))
    headers = {name.lower(): value for name, value in entry["headers"].items()}
    assert (headers["api-key"], headers["x-auth"], headers["x-title"]) == (SECRET, f"Bearer {SECRET}", "viva")
    assert entry["query"].endswith("api-version=2024-10-21&b=x%26y")
    if kind == "anthropic":
        assert headers["anthropic-version"]


@pytest.mark.parametrize(
    "place",
    [
        "https://x.openai.azure.com/openai/deployments/d",
        "https://x.services.ai.azure.com/v1",
        "https://x.openai.azure.us",
    ],
)
def test_azure_is_sent_its_key_under_the_name_that_it_has_there(place: str) -> None:
    backend = OpenAIBackend(CLOCK, EndpointAddress(place, "m", SECRET))
    assert backend._endpoint._headers["api-key"] == SECRET
    assert "Authorization" not in backend._endpoint._headers
    assert (
        OpenAIBackend(CLOCK, EndpointAddress("https://azure.com.test/v1", "m", "k"))._endpoint._headers["Authorization"]
        == "Bearer k"
    )


@case_table(
    ("options", "said"),
    [
        ("header.api-key=sk-written-out", "header.api-key=$NAME"),
        ("header.Authorization=Bearer%20sk-written", "header.Authorization=$NAME"),
        ("header.X-Anything=Bearer%20sk-written", "header.X-Anything=$NAME"),
        ("query.key=sk-written-out", "query.key=$NAME"),
        ("query.subscription-key=sk-written", "query.subscription-key=$NAME"),
        ("body.api_key=sk-written-out", "header.NAME=$NAME"),
        ("body.extra.token=sk-written-out", "header.NAME=$NAME"),
    ],
)
def test_a_key_that_is_written_out_in_a_name_is_refused_and_not_repeated(options: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ModelSpec.parse(f"openai:http://a.test/v1#m?{options}")
    assert said in str(caught.value)
    assert "written" not in str(caught.value)


@case_table(
    ("options", "said"),
    [
        ("header.X-Key=$NOT_SET_ANYWHERE", "no value in the environment variable NOT_SET_ANYWHERE; set it"),
        ("header.Content-Length=5", "expected the name of a header that the client does not set itself"),
        ("header.X%20Y=5", "expected the name of a header"),
        ("header.X=a%0Ab", "printable ASCII"),
        ("body.messages=[]", "expected the name of a field other than messages"),
        ("body.stream=true", "expected the name of a field other than"),
        ("body.x=False", "not JSON; write false"),
        ("body.x={%22a%22:", "not JSON"),
        ("body..x=1", "expected the name of a field"),
        ("sampling=off&temperature=1", "sampling=off excludes temperature and top_p; remove it or them"),
        ("sampling=no", "expected one of on, off"),
        ("temperature=3", "expected a number from 0 to 2"),
        ("max_tokens=0", "expected a number from 1"),
        ("effort=huge", "expected one of none, minimal, low, medium, high, xhigh, max"),
        ("api-version=2024-10-21", "write a parameter of the endpoint's URL as query.KEY=VALUE"),
    ],
)
def test_an_option_that_cannot_be_meant_says_what_to_write(options: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        governed(f"openai:http://a.test/v1#m?{options}")
    assert said in str(caught.value)


_UNSUPPORTED: list[tuple[str, str, Any, str]] = [
    ("openai", "", {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model. Only "
                    "the default (1) value is supported.", "param": "temperature", "code": "unsupported_value"}},
     "sampling=off"),
    ("openai", "", {"error": {"message": "Unsupported parameter: 'top_p' is not supported with this model."}},
     "sampling=off"),
    ("openai", "", {"error": {"message": "invalid value", "param": "temperature", "code": "unsupported_value"}},
     "sampling=off"),
    ("openai", "", {"error": {"message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                    "'max_completion_tokens' instead."}}, "tokens_field=max_completion_tokens"),
    ("openai", "tokens_field=max_completion_tokens", {"detail": [{"type": "extra_forbidden", "loc": ["body",
                "max_completion_tokens"], "msg": "Extra inputs are not permitted", "input": 5}]},
     "tokens_field=max_tokens"),
    ("openai", "", {"error": {"message": "max_tokens is too large: 512. This model supports at most 256 completion "
                    "tokens"}}, "max_tokens=NUMBER"),
    ("openai", "", {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"],
                    "msg": "Extra inputs are not permitted"}]}, "seed=off"),
    ("openai", "", {"error": {"message": "Unsupported parameter: 'stop' is not supported with this model."}},
     "body.stop=null"),
    ("openai", "", {"error": {"message": "Unknown parameter: 'chat_template_kwargs'."}}, "effort=none"),
    ("openai", "", {"error": {"message": "Unsupported value: 'reasoning_effort' does not support 'none'"}}, "effort="),
    ("anthropic", "", {"type": "error", "error": {"type": "invalid_request_error", "message":
                       "`temperature` and `top_p` cannot both be specified for this model. Please use only one."}},
     "sampling=off"),
    ("anthropic", "", {"type": "error", "error": {"type": "invalid_request_error", "message":
                       "temperature: Extra inputs are not permitted"}}, "sampling=off"),
    ("gemini", "", {"error": {"code": 400, "message": "Parameter 'topK' is not supported by this model",
                    "status": "INVALID_ARGUMENT"}}, "sampling=off"),
    ("openai", "", {"error": {"message": "Unrecognized request argument supplied: seed"}}, "seed=off"),
    ("openai", "", {"error": "Argument not supported on this model: temperature"}, "sampling=off"),
    ("openai", "", {"error": {"message": "gpt-5 models don't support temperature=0.0."}}, "sampling=off"),
    ("openai", "", {"detail": [{"loc": ["body", "temperature"], "msg": "ensure this value is greater than 0"}]},
     "sampling=off"),
    ("openai", "", {"error": {"message": "parameter.enable_thinking must be set to false for non-streaming calls"}},
     "body.enable_thinking=false"),
    ("anthropic", "", {"type": "error", "error": {"type": "invalid_request_error", "message":
                       "This model does not support the effort parameter."}}, "effort="),
    ("anthropic", "", {"type": "error", "error": {"type": "invalid_request_error", "message":
                       "max_tokens: 512 > 256, which is the maximum allowed number of output tokens for m"}},
     "max_tokens="),
    ("anthropic", "", {"type": "error", "error": {"message": '"thinking.type.enabled" is not supported for this model. '
                       'Use "thinking.type.adaptive" and "output_config.effort".'}},
     "thinking="),
    ("gemini", "", {"error": {"message": "Thinking level is not supported for this model."}}, "thinking="),
    ("gemini", "", {"error": {"code": 400, "message": "Budget 0 is invalid. It only works in thinking mode."}},
     "thinking="),
]  # fmt: skip


@case_table(("kind", "options", "body", "helps"), _UNSUPPORTED)
def test_a_setting_that_a_model_does_not_take_ends_the_run_with_the_option_that_helps(
    kind: str, options: str, body: Any, helps: str, replanned: StartChaos
) -> None:
    server = replanned({"default": {"do": "raw", "status": 400, "say": json.dumps(body)}})
    with pytest.raises(ConfigurationError, match="HTTP 400: ") as caught:
        sent(server, kind, options, asking(schema=VERDICT))
    assert helps in str(caught.value)
    assert len(server.log()) == 1, "nothing is tried with less of a schema"


@pytest.mark.parametrize(
    "message",
    [
        "Invalid 'messages': the temperature of the sun is not allowed here",
        "response_format is not supported",
        "The prompt was refused: unsupported language",
        "my_temperature: unknown",
    ],
)
def test_another_refusal_is_that_of_its_conversation_alone(message: str, replanned: StartChaos) -> None:
    server = replanned({"default": {"do": "raw", "status": 400, "say": json.dumps({"error": {"message": message}})}})
    with pytest.raises(Rejected, match="HTTP 400"):
        sent(server, "openai", "")


def test_where_others_are_answered_a_refused_setting_fails_one_conversation(replanned: StartChaos) -> None:
    refused = {"error": {"message": "Unsupported value: 'temperature' does not support 0.5"}}
    server = replanned({"schedule": {"1": {"do": "raw", "status": 400, "say": json.dumps(refused)}}})

    async def main() -> None:
        async with governed(server.model("m")) as backend:
            await backend.generate(asking())
            with pytest.raises(Rejected, match="sampling=off"):
                await backend.generate(asking(temperature=0.5))

    CLOCK.run(main)


def test_no_secret_of_a_header_or_parameter_is_left_anywhere(
    replanned: StartChaos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HDR", SECRET)
    echo = {"choices": [{"message": {"content": f"I was sent {SECRET}."}, "finish_reason": "stop"}]}
    refusal = {"error": {"message": f"bad header {SECRET} in ?code={SECRET}"}}
    server = replanned({"schedule": {"0": {"do": "raw", "status": 200, "say": json.dumps(echo)}},
                        "default": {"do": "raw", "status": 400, "say": json.dumps(refusal)}})  # fmt: skip
    out = tmp_path / "run"
    model = server.model("c") + "?header.X-Key=$HDR&query.code=${HDR}"
    models = ["--candidate", model, "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    done = viva("-v", "run", "kieval", "--dataset", str(ITEMS), "-n", "2", *models, "--out", out, "--json")
    assert "bad header *** in ?code=***" in done.stderr + done.stdout
    printed = [done.stderr, done.stdout, *(viva(*words, out).stdout for words in (("report",), ("show",)))]
    assert any("$HDR" in text for text in (out / "manifest.json").read_text().splitlines())
    assert SECRET not in "".join(printed)
    kept = [file for file in out.rglob("*") if file.is_file()]
    assert kept
    assert not [file for file in kept if SECRET.encode() in file.read_bytes()]


def test_a_reasoning_model_is_one_role_among_others(replanned: StartChaos, tmp_path: Path) -> None:
    server = replanned({"record": True})
    options = "tokens_field=max_completion_tokens&sampling=off&effort=low&max_tokens=4000"
    models = [
        "--candidate",
        server.model("c"),
        "--interactor",
        "simulated:i",
        "--evaluator",
        f"{server.model('e')}?{options}",
    ]
    done = viva(
        "run", "kieval", "--dataset", str(ITEMS), "-n", "1", "--rounds", "1", *models, "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    bodies = {entry["model"]: entry["body"] for entry in server.log()}
    assert bodies["e"]["max_completion_tokens"] == 4000
    assert bodies["e"]["reasoning_effort"] == "low"
    assert not {"temperature", "top_p", "max_tokens"} & bodies["e"].keys()
    assert bodies["c"].keys() >= {"temperature", "top_p", "max_tokens"}


def test_tools_and_structured_output_are_as_they_were(replanned: StartChaos) -> None:
    server = replanned({"record": True})
    body = sent(server, "openai", "sampling=off", asking(tools=TOOLS))["body"]
    assert body["tools"] == TOOLS.specs
    with pytest.raises(BackendError):
        sent(replanned({"default": "no_tools"}), "openai", "sampling=off", asking(tools=TOOLS))
