"""Finished conversations of viva runs as dialogs, from the compared role's view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio.from_thread
from pydantic import ValidationError

from viva.engine.conversation_replay import Exchange, Replay, replay_conversation
from viva.engine.errors import ConfigurationError, DatasetError, JournalError
from viva.engine.journal_reader import History, RecordedCall
from viva.engine.messages import Message as SentMessage
from viva.engine.run_folder import RunFolder

from ...contract import compared_role
from ...models import label_of_key
from ...registry import scenario_of_manifest
from ..dialog import Dialog, Message, ToolCall
from .logged_calls import CallIndex, JoinedCalls, LoggedCall
from .records import UnreadableRecord

_RUN_FILES = ("manifest.json", "journal.sqlite")


def is_run_path(path: Path) -> bool:
    """Return True if a path is a run folder, or the manifest or journal in it."""
    folder = path.parent if path.name in _RUN_FILES else path
    return folder.is_dir() and all((folder / name).is_file() for name in _RUN_FILES)


def read_run(path: Path) -> Iterator[Dialog | UnreadableRecord]:
    """Yield the dialogs of all finished conversations, without failed ones.

    Their metadata has `model` (the compared model's label), `conversation` (the key) and `run` (the folder's name). A
    conversation with separate prompts, instead of a growing one, gives a dialog per prompt. A conversation with unknown
    prompts gives an `UnreadableRecord` with its number as the line.

    Raises:
        DatasetError: The folder cannot be used.
    """
    folder = path.parent if path.name in _RUN_FILES else path
    try:
        run = RunFolder.open(folder)
        reader = _RunReader(run.manifest)
        with History(run.journal) as history, anyio.from_thread.start_blocking_portal() as portal:
            for number in sorted(history.ended_numbers(failed=False)):
                started = history.started(number)
                key, item = started or ("", None)
                if item is None:
                    yield UnreadableRecord(str(folder), number, "the record of this conversation is damaged")
                    continue
                calls = history.calls(number)  # in this thread, because the portal runs in another
                try:
                    replay = portal.call(reader.replay, calls, number, key, item)
                except Exception as error:  # today's scenario reads tasks differently
                    problem = f"conversation {key} cannot be replayed: {type(error).__name__}: {error}"
                    yield UnreadableRecord(str(folder), number, problem)
                    continue
                yield from _conversation_dialogs(replay, reader.role, key, number, folder, reader.label(key))
    except (ConfigurationError, JournalError) as error:
        raise DatasetError(f"cannot be read as a run: {error}", path=str(folder)) from None


class _RunReader:
    """A run's scenario, ready to replay its conversations. `role` is the compared role."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        scenario = scenario_of_manifest(manifest)
        try:
            settings = scenario.settings.model_validate({**scenario.settings.formerly, **manifest["settings"]})
        except (ValidationError, KeyError) as error:
            raise ConfigurationError(f"its settings cannot be used: {str(error)[:300]}") from None
        prompts = manifest.get("prompts")
        if prompts is not None:
            settings.remember_prompts(prompts)
        pack = None
        if scenario.templates is not None and prompts is not None:
            pack = scenario.templates.read(prompts, manifest["pack"]["name"])
        role = compared_role(scenario.roles_of(settings))
        self.role = role.name
        self._labels = list(manifest["models"][role.name])
        self._seed = manifest["seed"]
        self._task = scenario.task
        self._converse = scenario.protocol(settings, pack, {**manifest, "settings": settings.model_dump(mode="json")})

    def label(self, key: str) -> str:
        """Return the label of the compared model in a conversation's key."""
        return label_of_key(key, self._labels)

    async def replay(self, calls: Sequence[RecordedCall], number: int, key: str, item: Any) -> Replay:
        """Replay a conversation against its recorded calls."""
        task, label = self._task(item), self.label(key)
        suffix = key.removeprefix(f"{label}/{task.id}").removeprefix("#")
        repeat = int(suffix) if suffix.isdigit() else 1
        return await replay_conversation(
            self._converse, task, calls, seed=self._seed, number=number, key=key, label=label, repeat=repeat
        )


def _conversation_dialogs(
    replay: Replay, role: str, key: str, number: int, folder: Path, label: str
) -> Iterator[Dialog | UnreadableRecord]:
    index = CallIndex()
    calls_by_dialog: dict[int, tuple[JoinedCalls, LoggedCall]] = {}
    answers: dict[int, dict[int, Message]] = {}
    metadata = {"model": label, "conversation": key, "run": folder.resolve().name}
    unknown = False
    for position, entry in enumerate(replay.lines):
        if not isinstance(entry, Exchange) or entry.role != role or entry.completion is None:
            continue
        if entry.completion.likelihoods is not None:  # a text with its likelihood is no dialog
            continue
        if entry.messages is None:
            unknown = True
            continue
        messages, answer = [_sent_message(message) for message in entry.messages], _answer_message(entry)
        call = LoggedCall(key, "", messages, [answer], metadata)
        if added := index.add(call, (number, position), key):
            calls_by_dialog[id(added[0])] = (added[0], call)
            answers.setdefault(id(added[0]), {})[len(messages)] = answer
    if unknown or not calls_by_dialog:
        problem = replay.problem or f"the {role} was not called"
        yield UnreadableRecord(
            str(folder), number, f"conversation {key}: the prompts of the {role} are unknown: {problem}"
        )
    for dialog_id, (joined, call) in calls_by_dialog.items():
        # A protocol may shorten an answer before it continues; the original answer counts.
        messages = [answers[dialog_id].get(position, message) for position, message in enumerate(call.prompt)]
        yield joined.dialog(LoggedCall(key, "", messages, call.answer, metadata))


def _sent_message(message: SentMessage) -> Message:
    return Message(message.role, message.content, _read_calls(message.calls), message.name, message.call_id)


def _answer_message(entry: Exchange) -> Message:
    completion = entry.completion
    assert completion is not None
    metadata = {"finish_reason": completion.finish} | ({"thoughts": completion.thoughts} if completion.thoughts else {})
    tokens = {"prompt": completion.prompt_tokens, "completion": completion.completion_tokens}
    return Message(
        "assistant", completion.text, _read_calls(completion.calls or ()), "", "", completion.latency, tokens, metadata
    )


def _read_calls(calls: Any) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.name, call.arguments, call.id) for call in calls)
