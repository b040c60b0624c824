"""Conversations as samples of Inspect's logs: messages, events, scores, usage, errors.

What never belongs here: the log around them (``inspect_log``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import orjson

from viva.engine.escapes import in_utf8
from viva.engine.journal import role_in_branch
from viva.engine.lazy_import import imported
from viva.engine.messages import Completion, Message
from viva.engine.rerun import Exchange
from viva.engine.tools import Toolbox, ToolCall

from .cells import ExportCell
from .conversations import Conversation

_STOPS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}


class Samples:
    """Makes the samples of one cell."""

    def __init__(self, cell: ExportCell) -> None:
        self._cell = cell
        self._log, self._model = imported("inspect_ai.log"), imported("inspect_ai.model")
        self._tool, self._event = imported("inspect_ai.tool"), imported("inspect_ai.event")
        self._score = imported("inspect_ai.scorer").Score
        self._began = datetime.fromtimestamp(cell.began or 0, UTC)

    def sample(self, one: Conversation) -> Any:
        """A conversation as an ``EvalSample``; its dialogs stand one behind the other."""
        messages = [made for dialog in one.dialogs for made in self._messages(dialog.messages)]
        usage = {role: self._usage(sent, said) for role, (_, sent, said) in one.usage().items()}
        sample = self._log.EvalSample(
            id=one.task,
            epoch=one.repeat,
            input=in_utf8(one.question),
            choices=in_utf8(one.choices),
            target=in_utf8(one.reference),
            messages=messages,
            output=self._output(one),
            scores=self._scores(one),
            # Of each sample Inspect keeps a summary in memory, metadata included; what is large stands in the store.
            metadata=in_utf8({"key": one.key, "number": one.number, "end": one.end}),
            store=in_utf8({"task": one.item, "result": one.result,
                           "rounds": [{"round": turn.turn, **turn.scores} for turn in one.turns]}),
            events=[self._call(exchange) for exchange in one.exchanges],
            role_usage=usage,
            model_usage=self._by_model(usage),
            total_time=sum(self._said(exchange).latency for exchange in one.exchanges),
            uuid=_hash(self._cell.name, one.key),
        )  # fmt: skip
        if one.error is not None:
            sample.error = self._log.EvalError(message=in_utf8(one.error), traceback="", traceback_ansi="")
        return sample

    def _scores(self, one: Conversation) -> dict[str, Any] | None:
        if one.error is not None:
            return None
        scores: dict[str, Any] = {}
        for name, value in one.scores.items():
            told, answer = in_utf8(one.explained(name)), None if scores else in_utf8(one.answer) or None
            if value is None:
                scores[name] = self._score.unscored(explanation=told, answer=answer, reason="unscored")
            else:
                scores[name] = self._score(value=value, explanation=told, answer=answer)
        return scores

    def _output(self, one: Conversation) -> Any:
        """The compared model's last answer."""
        own = [exchange for exchange in one.exchanges if exchange.role == self._cell.compared]
        return self._answer(own[-1]) if own else self._model.ModelOutput(model=self._cell.model)

    def _call(self, exchange: Exchange) -> Any:
        """A call as the event that Inspect's viewer shows with its prompt and answer."""
        sent = list(exchange.messages or ())
        if exchange.reading is not None:  # a text that was read, not answered
            sent = [Message("user", exchange.reading.shared + exchange.reading.context)]
        return self._event.ModelEvent(
            model=self._cell.model_of(exchange.role) or self._cell.model,
            role=exchange.role,
            input=self._messages(sent),
            tools=self._tools(exchange.tools),
            tool_choice="auto",
            config=self._config(exchange),
            output=self._answer(exchange),
            timestamp=self._began,
            working_start=0.0,
            uuid=_hash(
                self._cell.name,
                role_in_branch(exchange.branch, exchange.role),
                str(exchange.ordinal),
                self._said(exchange).text,
            ),
        )

    def _config(self, exchange: Exchange) -> Any:
        sampling = exchange.sampling
        if sampling is None:
            return self._model.GenerateConfig()
        return self._model.GenerateConfig(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop_seqs=list(sampling.stop) or None,
        )

    def _answer(self, exchange: Exchange) -> Any:
        said = self._said(exchange)
        model = self._cell.model_of(exchange.role) or self._cell.model
        text = said.text
        if said.likelihoods is not None:
            named = exchange.reading.continuations if exchange.reading is not None else ()
            pairs = zip(named, said.likelihoods, strict=False)
            text = "\n".join(f"{told.strip()[:200]}: {one.total:.6f} nats" for told, one in pairs)
        message = self._assistant(Message("assistant", text, calls=tuple(said.calls or ())), said.thoughts)
        stop = _STOPS.get(said.finish, "stop" if said.finish.startswith("watch:") else "unknown")
        choice = self._model.ChatCompletionChoice(message=message, stop_reason=stop)
        usage = self._usage(said.prompt_tokens, said.completion_tokens)
        return self._model.ModelOutput(model=model, choices=[choice], usage=usage, time=said.latency)

    @staticmethod
    def _said(exchange: Exchange) -> Completion:
        assert exchange.completion is not None, "only answered calls are exported"
        return exchange.completion

    def _usage(self, sent: int, said: int) -> Any:
        return self._model.ModelUsage(input_tokens=sent, output_tokens=said, total_tokens=sent + said)

    def _by_model(self, usage: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for role, used in usage.items():
            model = self._cell.model_of(role)
            if model is not None:
                found[model] = found[model] + used if model in found else used
        return found

    def _messages(self, messages: Sequence[Message]) -> list[Any]:
        """Messages whose ids are a hash of all that stands before them: equal beginnings are kept once in the log."""
        chain, found = "", []
        for one in messages:
            chain = _hash(chain, one.role, one.content, *(call.arguments for call in one.calls))
            found.append(self._message(one, chain))
        return found

    def _message(self, one: Message, name: str) -> Any:
        content = in_utf8(one.content)
        if one.role == "system":
            return self._model.ChatMessageSystem(content=content, id=name)
        if one.role == "user":
            return self._model.ChatMessageUser(content=content, id=name)
        if one.role == "tool":
            called = one.call_id or None
            return self._model.ChatMessageTool(content=content, tool_call_id=called, function=one.name or None, id=name)
        return self._assistant(one, "", name)

    def _assistant(self, one: Message, thoughts: str, name: str | None = None) -> Any:
        content: Any = in_utf8(one.content)
        if thoughts:
            content = [self._model.ContentReasoning(reasoning=in_utf8(thoughts)),
                       self._model.ContentText(text=content)]  # fmt: skip
        calls = [self._tool_call(call) for call in one.calls] or None
        return self._model.ChatMessageAssistant(content=content, tool_calls=calls, id=name or _hash(one.content))

    def _tool_call(self, call: ToolCall) -> Any:
        try:
            arguments, problem = orjson.loads(call.arguments or "{}"), None
        except orjson.JSONDecodeError as error:
            arguments, problem = {}, f"{error}: {call.arguments}"
        if not isinstance(arguments, dict):
            arguments, problem = {}, f"no object: {call.arguments}"
        return self._tool.ToolCall(id=call.id, function=call.name, arguments=arguments, parse_error=problem)

    def _tools(self, tools: Toolbox | None) -> list[Any]:
        found = []
        for spec in [] if tools is None else tools.specs:
            function = spec["function"]
            told = self._tool.ToolParams.model_validate(function.get("parameters") or {})
            described = function.get("description") or ""
            found.append(self._tool.ToolInfo(name=function["name"], description=described, parameters=told))
        return found


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=11).hexdigest()
