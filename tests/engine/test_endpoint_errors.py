"""What endpoints say is wrong, in the words of each of them: a prompt that is too long, an account that is answered no
more, and pauses that last longer than a run waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from case_tables import case_table
from command import viva
from provider_asks import asking
from small_runs import results, small_run

from viva.engine.backends.endpoint_errors import Dialect, error_from_response
from viva.engine.backends.fault_injection import Fault, FaultPlan
from viva.engine.backends.gemini import GeminiErrors
from viva.engine.backends.redaction import Redactor
from viva.engine.backends.registry import build
from viva.engine.backends.retry import RetryingBackend
from viva.engine.clock import RealClock, VirtualClock
from viva.engine.errors import (
    AccountBlocked,
    BackendError,
    ContextTooLong,
    Forbidden,
    Rejected,
    Throttled,
    Unauthorized,
    Unavailable,
)
from viva.engine.events import EndpointPaused
from viva.engine.messages import Completion
from viva.orchestration.run_progress import WaitStatus

if TYPE_CHECKING:
    from tests.servers.process import Plan, Server

    StartChaos = Callable[[Plan], Server]

ITEMS = files("viva.scenarios.kieval") / "items" / "science.jsonl"


def said(status: int, body: Any, headers: dict[str, str] | None = None, dialect: Dialect | None = None) -> BackendError:
    """The error for an answer with this body: a text or JSON data."""
    data = body if isinstance(body, str) else json.dumps(body)
    return error_from_response(
        "m", status, data.encode(), headers or {}, Redactor(None), "check the key", dialect or Dialect()
    )


def wrapped(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


_TOO_LONG: list[tuple[str, int, Any]] = [
    ("OpenAI", 400, wrapped("This model's maximum context length is 8192 tokens. However, your messages resulted in "
                            "9012 tokens.", type="invalid_request_error", code="context_length_exceeded")),
    ("OpenAI, newer", 400, wrapped("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted "
                                   "in 300011 tokens. Please reduce the length of the messages.")),
    ("OpenAI, a long string", 400, wrapped("Invalid 'messages[0].content': string too long.",
                                           code="string_above_max_length")),
    ("vLLM", 400, {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you "
                   "requested 5000 tokens (4800 in the messages, 200 in the completion).", "code": 400}),
    ("vLLM, the engine", 400, wrapped("The decoder prompt (length 5000) is longer than the maximum model length of "
                                      "4096. Make sure that `max_model_len` is no smaller", code=400)),
    ("vLLM as 500", 500, wrapped("This model's maximum context length is 4096 tokens.", type="InternalServerError")),
    ("SGLang", 400, {"object": "error", "message": "The input (5000 tokens) is longer than the model's context length "
                     "(4096 tokens).", "type": "BadRequest", "code": 400}),
    ("SGLang, with the answer", 400, wrapped("Requested token count exceeds the model's maximum context length of 4096 "
                                             "tokens.")),
    ("SGLang, allowed", 400, wrapped("Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).")),
    ("llama.cpp", 400, wrapped("the request exceeds the available context size (4096 tokens), try increasing it",
                               type="exceed_context_size_error", n_ctx=4096, code=400)),
    ("llama.cpp as 500", 500, wrapped("Context size has been exceeded.", type="server_error", code=500)),
    ("llama.cpp, batch", 500, wrapped("input is too large to process. increase the physical batch size", code=500)),
    ("llama-cpp-python", 500, wrapped("Requested tokens (600) exceed context window of 512", type="internal_error")),
    ("TGI", 422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 "
                  "`inputs` tokens and 200 `max_new_tokens`", "error_type": "validation"}),
    ("TGI, older", 422, {"error": "Input validation error: `inputs` must have less than 1024 tokens. Given: 1500"}),
    ("Ollama", 500, {"error": "the input length exceeds the context length"}),
    ("Ollama, as OpenAI", 400, wrapped("prompt is too long: exceeds maximum context length", type="api_error")),
    ("Anthropic", 400, {"type": "error", "error": {"type": "invalid_request_error",
                        "message": "prompt is too long: 212536 tokens > 200000 maximum"}}),
    ("Anthropic, with the answer", 400, {"type": "error", "error": {"type": "invalid_request_error", "message":
                        "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"}}),
    ("Anthropic, bytes", 413, {"type": "error", "error": {"type": "request_too_large",
                        "message": "Request exceeds the maximum size"}}),
    ("Gemini", 400, {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input token count (1200000) "
                     "exceeds the maximum number of tokens allowed (1048576)."}}),
    ("OpenRouter", 400, wrapped("This endpoint's maximum context length is 131072 tokens. However, you requested about "
                                "150000 tokens", code=400)),
    ("OpenRouter, behind it", 400, wrapped("Provider returned error", code=400, metadata={"raw":
        '{"type":"error","error":{"message":"prompt is too long: 1 > 0"}}', "provider_name": "X"})),
    ("Azure", 400, wrapped("This model's maximum context length is 16385 tokens, however you requested 17000 tokens",
                           code="context_length_exceeded", innererror=None)),
    ("GitHub Models", 413, wrapped("Request body too large for gpt-4o model. Max size: 8000 tokens.",
                                   code="tokens_limit_reached")),
    ("Mistral", 400, {"object": "error", "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for "
                      "model with 32768 maximum context length", "type": "invalid_request_error", "code": "3051"}),
    ("Cohere", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
    ("Bedrock", 400, {"message": "Input is too long for requested model."}),
    ("xAI", 400, {"code": "invalid-argument", "error": "This model's maximum prompt length is 131072 but the request "
                  "contains 537812 tokens."}),
    ("Moonshot", 400, wrapped("Invalid request: Your request exceeded model token limit: 8192")),
    ("Fireworks", 400, wrapped("The prompt is too long: 140000, model maximum context length: 131071")),
    ("MiniMax", 400, wrapped("invalid params, context window exceeds limit (2013)")),
    ("LM Studio", 400, {"error": "Trying to keep the first 5000 tokens when context the overflows. However, the model "
                        "is loaded with context length of only 4096 tokens"}),
    ("TensorRT-LLM", 422, {"detail": "Prompt length (5000) should not exceed max_num_tokens (4096)"}),
    ("FastAPI", 422, {"detail": [{"loc": ["body", "prompt"], "msg": "the prompt is longer than the context window"}]}),
    ("a text", 400, "Error: this model's context window is 4096 tokens"),
    ("Zhipu", 400, {"error": {"code": "1261", "message": "Prompt 超长"}}),
    ("MLX", 400, {"error": "prompt exceeds max length"}),
]  # fmt: skip


@case_table(("status", "body"), [one[1:] for one in _TOO_LONG], ids=[one[0] for one in _TOO_LONG])
def test_a_prompt_that_is_too_long_is_known_in_every_endpoints_words(status: int, body: Any) -> None:
    for dialect in (Dialect(), GeminiErrors()):
        error = said(status, body, dialect=dialect)
        assert type(error) is ContextTooLong
        assert not error.retryable


_BLOCKED: list[tuple[str, int, Any]] = [
    ("OpenAI", 429, wrapped("You exceeded your current quota, please check your plan and billing details.",
                            type="insufficient_quota", code="insufficient_quota")),
    ("OpenAI, no code", 429, wrapped("You exceeded your current quota, please check your plan and billing details.")),
    ("OpenAI, hard limit", 400, wrapped("Billing hard limit has been reached", code="billing_hard_limit_reached")),
    ("OpenAI, not active", 429, wrapped("Your account is not active, please check your billing details on our website.",
                                        type="billing_not_active")),
    ("OpenAI, deactivated", 401, wrapped("The OpenAI account associated with this API key has been deactivated.",
                                         code="account_deactivated")),
    ("OpenAI, terminated", 403, wrapped("Your access was terminated due to violation of our policies",
                                        type="access_terminated")),
    ("any 402", 402, ""),
    ("DeepSeek", 402, wrapped("Insufficient Balance", type="unknown_error", code="invalid_request_error")),
    ("OpenRouter", 402, wrapped("This request requires more credits, or fewer max_tokens.", code=402)),
    ("OpenRouter, key", 403, wrapped("Key limit exceeded (total limit). Manage it using …", code=403)),
    ("OpenRouter, by the day", 429, wrapped("Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 "
                                            "free model requests per day", code=429)),
    ("Anthropic", 400, {"type": "error", "error": {"type": "invalid_request_error", "message":
                        "Your credit balance is "
                        "too low to access the Anthropic API. Please go to Plans & Billing to upgrade."}}),
    ("Anthropic, limit", 400, {"type": "error", "error": {"type": "invalid_request_error", "message":
                        "You have reached "
                        "your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."}}),
    ("Anthropic, disabled", 400, {"type": "error", "error": {"type": "invalid_request_error",
                        "message": "This organization has been disabled."}}),
    ("Gemini, by the day", 429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "You exceeded your "
        "current quota, please check your plan and billing details.", "details": [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId":
         "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "250"}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}]}}),
    ("Gemini, no quota", 429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "limit: 0", "details":
        [{"violations": [{"quotaId": "GenerateRequestsPerMinute-FreeTier", "quotaValue": "0"}]}]}}]),
    ("Gemini, spent", 429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED",
                            "message": "Your project has exceeded its monthly spending cap."}}),
    ("Gemini, billing", 403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "This API method "
                              "requires billing", "details": [{"reason": "BILLING_DISABLED"}]}}),
    ("xAI", 403, {"code": "permission denied", "error": "Your newly created team doesn't have any credits yet."}),
    ("xAI, spent", 429, {"code": "Some resource has been exhausted", "error": "Your team 1 has either used all "
                         "available credits or reached its monthly spending limit."}),
    ("Groq", 400, wrapped("Organization has been restricted. Please reach out to support.",
                          code="organization_restricted")),
    ("Groq, spent", 400, wrapped("API access has been blocked due to spend limit", code="blocked_api_access")),
    ("Fireworks", 412, wrapped("Account x is suspended, possibly due to reaching the monthly spending limit")),
    ("Hugging Face", 402, {"error": "You have exceeded your monthly included credits for Inference Providers."}),
    ("Perplexity", 401, wrapped("You exceeded your current quota", type="insufficient_quota", code=401)),
    ("Moonshot", 429, wrapped("Your account is suspended, please check your plan and billing details",
                              type="exceeded_current_quota_error")),
    ("Zhipu", 429, {"error": {"code": "1113", "message": "余额不足或无可用资源包,请充值。"}}),
    ("DashScope", 400, {"code": "Arrearage", "message": "Access denied, please make sure your account is in good "
                        "standing."}),
    ("SiliconFlow", 403, {"code": 30001, "message": "Sorry, your account balance is insufficient"}),
    ("LiteLLM", 429, wrapped("ExceededBudget: User=a over budget. Spend=20.1, Budget=20.0", type="budget_exceeded")),
    ("one-api", 403, wrapped("用户额度不足", type="one_api_error", code="insufficient_user_quota")),
    ("Azure gateway", 403, {"statusCode": 403, "message": "Out of call volume quota. Quota will be replenished in "
                            "12:21:10."}),
    ("Cohere", 429, {"message": "You are using a Trial key, which is limited to 1000 API calls / month."}),
    ("Together", 402, wrapped("Credit limit exceeded, please navigate to billing", type="credit_limit")),
    ("Novita", 403, {"code": 403, "reason": "NOT_ENOUGH_BALANCE", "message": "not enough balance"}),
    ("Baidu", 403, {"error": {"code": "no_permission", "message": "Open api daily request limit reached"}}),
    ("Bedrock", 429, {"message": "Too many tokens per day, please wait before trying again."}),
    ("Cerebras", 429, {"message": "Tokens per day limit exceeded - too many tokens processed.", "param": "quota",
                       "type": "too_many_tokens_error", "code": "token_quota_exceeded"}),
]  # fmt: skip


@case_table(("status", "body"), [one[1:] for one in _BLOCKED], ids=[one[0] for one in _BLOCKED])
def test_an_account_that_is_answered_no_more_is_known_in_every_endpoints_words(status: int, body: Any) -> None:
    for dialect in (Dialect(), GeminiErrors()):
        error = said(status, body, dialect=dialect)
        assert type(error) is AccountBlocked
        assert not error.retryable
        assert "then resume the run" in str(error)


_NEITHER: list[tuple[int, Any, type[BackendError], float | None]] = [
    (429, wrapped("Rate limit reached for gpt-4o on requests per min (RPM): Limit 3. Please try again in 20s. Visit …",
                  code="rate_limit_exceeded"), Throttled, 20.0),
    (429, wrapped("Rate limit reached for model `x` on tokens per day (TPD): Limit 100000, Used 99000. Please try "
                  "again in 14m24.5s.", code="rate_limit_exceeded"), Throttled, 864.5),
    (429, wrapped("Requests have exceeded call rate limit of your current pricing tier. Please retry after 56 "
                  "seconds."),
     Throttled, 56.0),
    (429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota, please "
           "check your plan and billing details. Please retry in 37.2s.", "details": [{"violations": [{"quotaId":
           "GenerateRequestsPerMinutePerProjectPerModel", "quotaValue": "15"}]}]}}, Throttled, 37.2),
    (429, wrapped("You have exceeded your usage limit of 5 requests per minute"), Throttled, None),
    (429, {"message": "Service tier capacity exceeded for this model."}, Throttled, None),
    (429, wrapped("Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested "
                  "40000. The input or output tokens must be reduced in order to run successfully."), Rejected, None),
    (413, wrapped("Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 8000, please "
                  "reduce your message size and try again."), Rejected, None),
    (400, wrapped("max_tokens is too large: 32000. This model supports at most 16384 completion tokens."), Rejected,
     None),
    (400, wrapped("Invalid schema for response_format"), Rejected, None),
    (400, wrapped("access to tools is disabled for this model"), Rejected, None),
    (400, wrapped("the answer exceeded the thinking budget"), Rejected, None),
    (429, wrapped("Usage limit reached. Please try again in 5 minutes"), Throttled, 300.0),
    (401, wrapped("Incorrect API key provided", code="invalid_api_key"), Unauthorized, None),
    (403, wrapped("You are not allowed to use this model"), Unauthorized, None),
    (500, wrapped("The server had an error while processing your request."), Unavailable, None),
    (503, wrapped("The model is overloaded; its account of the matter is suspended"), Unavailable, None),
    (400, wrapped("invalid content: " + "x" * 400 + " my account was suspended"), Rejected, None),
    (429, wrapped("You exceeded your current quota, please check your plan and billing.", code="limit_requests"),
     Throttled, None),
    (429, wrapped("Too many requests, please wait about 20 seconds."), Throttled, 20.0),
    (424, {"error": "Request failed during generation: Server error: out of memory", "error_type": "generation"},
     Unavailable, None),
    (499, wrapped("The operation was cancelled.", status="CANCELLED"), Unavailable, None),
    (403, wrapped('m requires moderation on OpenAI. Your input was flagged for "violence".', code=403,
                  metadata={"reasons": ["violence"], "flagged_input": "…"}), Forbidden, None),
]  # fmt: skip


@case_table(("status", "body", "kind", "pause"), _NEITHER)
def test_what_passes_or_is_another_fault_is_neither(
    status: int, body: Any, kind: type[BackendError], pause: float | None
) -> None:
    error = said(status, body)
    assert type(error) is kind
    assert error.retry_after == pause


def run_of(server: Server, out: Path, *more: str) -> Any:
    models = ["--candidate", server.model("c"), "--interactor", "simulated:i", "--evaluator", "simulated:e"]
    return viva("run", "kieval", "--dataset", str(ITEMS), "-n", "4", "--rounds", "1", *models, "--out", out, *more)


def test_an_account_without_quota_stops_the_run_at_once_and_a_resume_goes_on(
    replanned: StartChaos, tmp_path: Path
) -> None:
    body = wrapped("You exceeded your current quota.", type="insufficient_quota", code="insufficient_quota")
    refused = {"do": "raw", "status": 429, "say": json.dumps(body)}
    server = replanned({"schedule": {"0": "ok", "1": "ok"}, "default": refused})
    out = tmp_path / "run"
    done = run_of(server, out, "--concurrency", "2")
    assert done.returncode == 1
    assert "HTTP 429: You exceeded your current quota; waiting does not help" in done.stderr
    assert "add credit, raise the limit or use another key" in done.stderr
    assert f"viva resume {out}" in done.stderr
    assert len(server.log()) <= 4, "the two that were answered, and what was in flight beside the first refusal"
    assert "failed" not in done.stderr
    resumed = (replanned({}), viva("resume", out))[1]
    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(viva("report", out, "--json").stdout)["candidates"]["c"]
    assert (report["interviews"], report["failed"]) == (4, 0)


def test_a_retry_after_beyond_patience_stops_the_run_with_the_endpoints_words(
    replanned: StartChaos, tmp_path: Path
) -> None:
    server = replanned({"default": {"do": "429", "say": "daily quota is used up", "retry_after": 86400}})
    out = tmp_path / "run"
    done = run_of(server, out, "--wait-for-endpoint", "300", "--concurrency", "1")
    assert done.returncode == 1
    assert "HTTP 429: daily quota is used up; it asks not to be called again before 20" in done.stderr
    assert "24 hours from now, longer than --wait-for-endpoint (300 s)" in done.stderr
    assert f"viva resume {out}" in done.stderr
    assert len(server.log()) == 1


@pytest.mark.parametrize(
    ("patience", "asked", "waits"), [(600.0, 590.0, True), (60.0, 61.0, False), (7200.0, 3600.0, True)]
)
def test_a_pause_is_taken_whole_up_to_patience_and_said(
    patience: float, asked: float, waits: bool, tmp_path: Path
) -> None:
    clock = VirtualClock()
    plan = FaultPlan(faults=[Fault.model_validate({"kind": "throttled", "to": 5.0, "seconds": asked})])
    outcome, events = small_run(tmp_path, count=2, model="simulated:m", clock=clock, chaos=plan, patience=patience)
    if not waits:
        assert isinstance(outcome.error, AccountBlocked)
        assert (outcome.how, outcome.failed, outcome.interrupted) == ("failed", 0, 1)
        resumed, _ = small_run(tmp_path, count=2, resume=True)
        assert (resumed.how, len(results(tmp_path))) == ("done", 2)
        return
    assert (outcome.how, outcome.finished) == ("done", 2)
    assert asked <= clock.now() < asked + 60.0
    [paused] = [event for event in events if isinstance(event, EndpointPaused)]
    assert paused.until - paused.at == pytest.approx(asked)
    waiting = WaitStatus([("judge", ["simulated:m"])], dict, lambda: paused.at + 1.0)
    waiting.hear(paused)
    assert waiting.paused().startswith("paused: judge until ")
    assert "429" in waiting.paused()
    over = WaitStatus([("judge", ["simulated:m"])], dict, lambda: paused.until + 1.0)
    over.hear(paused)
    assert over.paused() == ""


@pytest.mark.parametrize(("reset", "spread"), [("60s", True), ("23h59m0s", False)])
def test_requests_by_the_day_are_used_up_rather_than_waited_for_in_silence(
    reset: str, spread: bool, replanned: StartChaos
) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    body = {"choices": [{"message": {"content": "B"}, "finish_reason": "stop"}]}
    server = replanned({"default": {"do": "raw", "status": 200, "say": json.dumps(body), "headers": headers}})

    async def main() -> bool:
        async with build(server.model("c"), RealClock()) as backend:
            await backend.generate(asking())
            assert isinstance(backend, RetryingBackend)
            return backend.limits.free

    assert RealClock().run(main) is not spread


def test_a_pool_goes_on_with_the_accounts_that_are_left(replanned: StartChaos, tmp_path: Path) -> None:
    spent = {"default": {"do": "raw", "status": 402, "say": "{}"}}
    server = replanned({"by_model": {"a": spent, "b": spent, "c": {"default": "ok"}}})
    members = [server.model(name) for name in "abc"]

    def asked(names: list[str], times: int) -> list[Completion]:
        file = tmp_path / f"{len(names)}.yaml"
        file.write_text("members:\n" + "".join(f"  - {name}\n" for name in names))

        async def main() -> list[Completion]:
            async with build(f"pool:{file}?label=p", RealClock()) as backend:
                assert isinstance(backend, RetryingBackend)
                return [await backend.generate(asking()) for _ in range(times)]

        return RealClock().run(main)

    assert len(asked(members, 5)) == 5
    assert sum(one["model"] != "c" for one in server.log()) <= 2, "who is out of credit is asked once"
    with pytest.raises(AccountBlocked, match="HTTP 402"):
        asked(members[:2], 1)
