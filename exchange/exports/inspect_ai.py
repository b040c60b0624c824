"""Export to Inspect logs (`.eval`), one per cell, written by the package `inspect_ai` itself.

A conversation becomes a sample: the compared model's dialogs become messages, every call of every role becomes an
event, and each criterion becomes a score with the judge's comments as its explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio

from viva.engine.conversation_replay import Exchange
from viva.engine.imports import import_under_lock
from viva.engine.journal import role_in_branch
from viva.engine.json_data import to_utf8_data
from viva.engine.messages import Completion, Message
from viva.engine.tools import Toolbox, ToolCall
from viva.scenarios.run_settings import repeats_of

from ..files import TransferResult, atomic_file, import_extra, safe_name, viva_version
from .conversations import Conversation, ExportCell, read_arguments, read_conversations

_STOP_REASONS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}


class SampleMaker:
    """Factory of one cell's samples."""

    def __init__(self, cell: ExportCell) -> None:
        self._cell = cell
        self._log, self._model = import_under_lock("inspect_ai.log"), import_under_lock("inspect_ai.model")
        self._tool, self._event = import_under_lock("inspect_ai.tool"), import_under_lock("inspect_ai.event")
        self._score = import_under_lock("inspect_ai.scorer").Score
        self._began = datetime.fromtimestamp(cell.began or 0, UTC)

    def sample(self, conversation: Conversation) -> Any:
        """Return a conversation as an `EvalSample` with its dialogs in sequence."""
        messages = [message for dialog in conversation.dialogs for message in self._messages(dialog.messages)]
        usage = {
            role: _usage(prompt_tokens, completion_tokens)
            for role, (_, prompt_tokens, completion_tokens) in conversation.usage().items()
        }
        sample = self._log.EvalSample(
            id=conversation.task,
            epoch=conversation.repeat,
            input=to_utf8_data(conversation.question),
            choices=to_utf8_data(conversation.choices),
            target=to_utf8_data(conversation.reference),
            messages=messages,
            output=self._output(conversation),
            scores=self._scores(conversation),
            # Inspect keeps the metadata of all samples in memory, so large data goes to the store.
            metadata=to_utf8_data({"key": conversation.key, "number": conversation.number, "end": conversation.end}),
            store=to_utf8_data({"task": conversation.item, "result": conversation.result,
                           "rounds": [{"round": turn.turn, **turn.scores} for turn in conversation.turns]}),
            events=[self._call(exchange) for exchange in conversation.exchanges],
            role_usage=usage,
            model_usage=self._by_model(usage),
            total_time=sum(self._completion_of(exchange).latency for exchange in conversation.exchanges),
            uuid=_hash(self._cell.name, conversation.key),
        )  # fmt: skip
        if conversation.error is not None:
            sample.error = self._log.EvalError(
                message=to_utf8_data(conversation.error), traceback="", traceback_ansi=""
            )
        return sample

    def _scores(self, conversation: Conversation) -> dict[str, Any] | None:
        if conversation.error is not None:
            return None
        scores: dict[str, Any] = {}
        for name, value in conversation.scores.items():
            explanation, answer = (
                to_utf8_data(conversation.explained(name)),
                None if scores else to_utf8_data(conversation.answer) or None,
            )
            if value is None:
                scores[name] = self._score.unscored(explanation=explanation, answer=answer, reason="unscored")
            else:
                scores[name] = self._score(value=value, explanation=explanation, answer=answer)
        return scores

    def _output(self, conversation: Conversation) -> Any:
        own = [exchange for exchange in conversation.exchanges if exchange.role == self._cell.compared]
        return self._answer(own[-1]) if own else self._model.ModelOutput(model=self._cell.model)

    def _call(self, exchange: Exchange) -> Any:
        """Return a call as the event that Inspect's viewer shows with prompt and answer."""
        messages = list(exchange.messages or ())
        if exchange.reading is not None:  # the request is a text to rate, not a prompt
            messages = [Message("user", exchange.reading.shared + exchange.reading.context)]
        return self._event.ModelEvent(
            model=self._cell.model_of(exchange.role) or self._cell.model,
            role=exchange.role,
            input=self._messages(messages),
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
                self._completion_of(exchange).text,
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
        completion = self._completion_of(exchange)
        model = self._cell.model_of(exchange.role) or self._cell.model
        text = completion.text
        if completion.likelihoods is not None:
            continuations = exchange.reading.continuations if exchange.reading is not None else ()
            pairs = zip(continuations, completion.likelihoods, strict=False)
            text = "\n".join(
                f"{continuation.strip()[:200]}: {likelihood.total:.6f} nats" for continuation, likelihood in pairs
            )
        message = self._assistant(Message("assistant", text, calls=tuple(completion.calls or ())), completion.thoughts)
        stop = _STOP_REASONS.get(completion.finish, "stop" if completion.finish.startswith("watch:") else "unknown")
        choice = self._model.ChatCompletionChoice(message=message, stop_reason=stop)
        usage = _usage(completion.prompt_tokens, completion.completion_tokens)
        return self._model.ModelOutput(model=model, choices=[choice], usage=usage, time=completion.latency)

    @staticmethod
    def _completion_of(exchange: Exchange) -> Completion:
        assert exchange.completion is not None, "only answered calls are exported"
        return exchange.completion

    def _by_model(self, usage: dict[str, Any]) -> dict[str, Any]:
        totals: dict[str, Any] = {}
        for role, usage_of_role in usage.items():
            model = self._cell.model_of(role)
            if model is not None:
                totals[model] = totals[model] + usage_of_role if model in totals else usage_of_role
        return totals

    def _messages(self, messages: Sequence[Message]) -> list[Any]:
        """Convert messages. A message's id hashes all messages up to it; so the log stores common beginnings once."""
        chain, chat_messages = "", []
        for message in messages:
            chain = _hash(chain, message.role, message.content, *(call.arguments for call in message.calls))
            chat_messages.append(self._message(message, chain))
        return chat_messages

    def _message(self, message: Message, name: str) -> Any:
        content = to_utf8_data(message.content)
        if message.role == "system":
            return self._model.ChatMessageSystem(content=content, id=name)
        if message.role == "user":
            return self._model.ChatMessageUser(content=content, id=name)
        if message.role == "tool":
            call_id = message.call_id or None
            return self._model.ChatMessageTool(
                content=content, tool_call_id=call_id, function=message.name or None, id=name
            )
        return self._assistant(message, "", name)

    def _assistant(self, message: Message, thoughts: str, name: str | None = None) -> Any:
        content: Any = to_utf8_data(message.content)
        if thoughts:
            content = [self._model.ContentReasoning(reasoning=to_utf8_data(thoughts)),
                       self._model.ContentText(text=content)]  # fmt: skip
        calls = [self._tool_call(call) for call in message.calls] or None
        return self._model.ChatMessageAssistant(content=content, tool_calls=calls, id=name or _hash(message.content))

    def _tool_call(self, call: ToolCall) -> Any:
        arguments, problem = read_arguments(call), None
        if not isinstance(arguments, dict):
            arguments, problem = {}, f"no object: {call.arguments}"
        return self._tool.ToolCall(id=call.id, function=call.name, arguments=arguments, parse_error=problem)

    def _tools(self, tools: Toolbox | None) -> list[Any]:
        infos = []
        for spec in [] if tools is None else tools.specs:
            function = spec["function"]
            parameters = self._tool.ToolParams.model_validate(function.get("parameters") or {})
            description = function.get("description") or ""
            infos.append(self._tool.ToolInfo(name=function["name"], description=description, parameters=parameters))
        return infos


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=11).hexdigest()


BUFFERED_SAMPLES = 2_000  # samples that Inspect's own writer may hold in memory
_FLUSH_EVERY = 500
_STATES = {"done": "success", "stopped": "success"}  # every other state means interrupted


def export_inspect(cells: Sequence[ExportCell], out: Path, max_buffered: int = BUFFERED_SAMPLES) -> TransferResult:
    """Write one log per cell to the folder `out` with `write_eval_log`.

    `write_eval_log` holds all samples in memory until the file is written. A cell with more than `max_buffered`
    conversations is therefore written by Inspect's recorder, `_FLUSH_EVERY` samples at a time.

    Raises:
        ConfigurationError: The package is not installed, or a file cannot be written.
    """
    log_module = import_extra("inspect_ai.log", "inspect", "writing Inspect logs")
    result = TransferResult()
    for cell in cells:
        file = out / f"{safe_name(cell.name)}.eval"
        log = _log(cell)
        with atomic_file(file) as part:
            if cell.ended <= max_buffered:
                log.samples = list(_samples(cell))
                log_module.write_eval_log(log, str(part), format="eval")
            else:
                anyio.run(_stream_samples, log, part, cell)
        result.files.append(file)
        result.records += cell.ended
    return result


def _samples(cell: ExportCell) -> Iterator[Any]:
    make: Callable[[Conversation], Any] = SampleMaker(cell).sample
    return (make(conversation) for conversation in read_conversations(cell))


async def _stream_samples(log: Any, file: Path, cell: ExportCell) -> None:
    """Write a log like `write_eval_log`, but flush regularly to bound memory."""
    recorder = import_under_lock("inspect_ai.log._recorders.eval").EvalRecorder(str(file.parent))
    condense = import_under_lock("inspect_ai.log._condense").condense_sample
    await recorder.log_init(log.eval, str(file), clean=True)
    await recorder.log_start(log.eval, log.plan)
    for number, sample in enumerate(_samples(cell), 1):
        await recorder.log_sample(log.eval, condense(sample))
        if number % _FLUSH_EVERY == 0:  # each flush of Inspect's recorder would copy the whole file
            await next(iter(recorder.data.values())).write_buffered_samples()
    await recorder.log_finish(log.eval, log.status, log.stats, log.results, None, None)


def _log(cell: ExportCell) -> Any:
    """Return a cell's log without its samples."""
    log_module = import_under_lock("inspect_ai.log")
    manifest = cell.manifest
    identity = f"{manifest['seed']}/{cell.name}/{cell.dataset}/{cell.began}"
    began, finished = _time(cell.began), _time(cell.finished)
    settings = to_utf8_data(manifest["settings"])
    spec = log_module.EvalSpec(
        eval_id=_hash("eval", identity),
        run_id=_hash("run", identity),
        task_id=_hash("task", cell.scenario.name, cell.dataset),
        created=began,
        task=cell.scenario.name,
        task_version=str(manifest["versions"].get("viva", "")),
        task_args=settings,
        tags=["viva"],
        dataset=log_module.EvalDataset(name=cell.dataset, samples=len(cell.tasks), sample_ids=cell.tasks),
        model=cell.model,
        model_roles=_model_roles(cell) or None,
        config=log_module.EvalConfig(epochs=repeats_of(cell.settings), fail_on_error=False),
        packages={"viva-exam": viva_version()},
        metadata=to_utf8_data({"viva": {"cell": cell.name, "label": cell.label, "seed": cell.seed,
            "tier": manifest["tier"],
                                   "pack": manifest["pack"], "dataset": manifest["dataset"], "judge": cell.judge}}),
        headline_metric={"score": next(iter(cell.criteria), None), "metric": "mean"},
        scorers=[{"name": name, "options": {}, "metrics": []} for name in cell.criteria],
    )  # fmt: skip
    plan = log_module.EvalPlan(
        name=cell.scenario.name, steps=[log_module.EvalPlanStep(solver=cell.scenario.name, params=settings)]
    )
    stats = log_module.EvalStats(started_at=began, completed_at=finished)
    stats.role_usage = {role: _role_usage(counts) for role, counts in cell.usage.items()}
    for role, counts in cell.usage.items():
        model = cell.model_of(role)
        if model is not None:
            stats.model_usage[model] = stats.model_usage.get(model, _role_usage({})) + _role_usage(counts)
    status = _STATES.get(cell.state, "cancelled")
    return log_module.EvalLog(status=status, eval=spec, plan=plan, results=_results(cell), stats=stats)


def _model_roles(cell: ExportCell) -> dict[str, Any]:
    config = import_under_lock("inspect_ai.model").ModelConfig
    return {role.name: config(model=model) for role in cell.roles
            if role.name != cell.compared and (model := cell.model_of(role.name)) is not None}  # fmt: skip


def _results(cell: ExportCell) -> Any:
    """Return the criteria with mean and standard error, and the figures of the run's report as metadata."""
    log_module = import_under_lock("inspect_ai.log")
    scores = []
    for criterion in cell.criteria.values():
        figures = {"mean": criterion.mean.mean, "stderr": criterion.mean.se} if criterion.mean is not None else {}
        present = {name: value for name, value in figures.items() if value is not None}
        count = 0 if criterion.mean is None else criterion.mean.n
        score = log_module.EvalScore(name=criterion.name, scorer=cell.scenario.name, scored_samples=count)
        score.unscored_samples = criterion.unscored
        score.metrics = {name: log_module.EvalMetric(name=name, value=value) for name, value in present.items()}
        scores.append(score)
    finished = cell.ended - cell.failed
    results = log_module.EvalResults(total_samples=cell.planned, completed_samples=finished, scores=scores)
    fields = ("value", "se", "low", "high", "n")
    results.metadata = {
        "report": {
            name: {field: row[field] for field in fields if row[field] is not None}
            for name, row in cell.figures.items()
        }
    }
    return results


def _usage(prompt_tokens: int, completion_tokens: int) -> Any:
    usage = import_under_lock("inspect_ai.model").ModelUsage
    return usage(
        input_tokens=prompt_tokens, output_tokens=completion_tokens, total_tokens=prompt_tokens + completion_tokens
    )


def _role_usage(counts: Any) -> Any:
    usage = _usage(int(counts.get("prompt_tokens") or 0), int(counts.get("completion_tokens") or 0))
    usage.total_cost = counts.get("cost")
    return usage


def _time(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds or 0, UTC).isoformat()
