"""Transcripts of recorded conversations with every prompt, reconstructed from the run folder alone.

A conversation is replayed against its recorded calls (`engine.conversation_replay`) with the prompt pack in the
manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from viva.engine.conversation_replay import Aside, Entry, Exchange, Replay, Step, entry_from_record, replay_conversation
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.run_folder import RunFolder, installed_versions
from viva.engine.steps import Computed
from viva.engine.thoughts import join_thoughts
from viva.scenarios.contract import Converse
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scenarios.registry import scenario_of_manifest

from .launch import recorded_settings


@dataclass(slots=True)
class Speech:
    """An entry of a transcript.

    `party` is a role, a party without a model, or the name of a step. `prompt` is the model's prompt as messages in
    OpenAI's format, or the texts whose likelihood it computed; None if no model was called or the prompt is unknown.
    `branch` is the path of the entry's branch, "" for the conversation itself.
    """

    party: str
    text: str
    prompt: Any = None
    branch: str = ""


@dataclass(slots=True)
class Transcript:
    """Transcript of a conversation.

    `key` is empty if its record is damaged. `problem` says why some prompts are unknown, or is None. `unanswered` are
    calls without a recorded answer, as speeches without text. They were sent if the conversation
    failed; otherwise it is unknown if they were sent.
    """

    key: str
    speeches: list[Speech]
    problem: str | None
    unanswered: list[Speech]


class Transcripts:
    """Transcripts of one run.

    If the scenario is not installed, or another version of viva recorded settings that this one cannot read,
    transcripts contain only the recorded texts.

    Raises:
        ConfigurationError: The manifest is invalid.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._manifest = folder.manifest
        self._labels: list[str] = []
        self._converse: Converse[Any] | None = None
        self._task: Callable[[Any], Any] | None = None
        self._problem = _unknown_reason(folder.manifest)
        if self._problem is None:
            self._open(folder)

    def _open(self, folder: RunFolder) -> None:
        manifest = folder.manifest
        try:
            scenario, settings = recorded_settings(folder)
        except ConfigurationError as error:
            if manifest.get("versions", {}).get("viva") == installed_versions()["viva"]:
                raise
            self._problem = f"recorded by another version of viva: {error}"
            return
        self._labels, self._task = lineup_labels(scenario.roles_of(settings), manifest), scenario.task
        try:
            pack = None
            if scenario.templates is not None and manifest["prompts"] is not None:
                pack = scenario.templates.read(manifest["prompts"], manifest["pack"]["name"])
            self._converse = scenario.protocol(settings, pack, manifest)
        except Exception as error:  # today's protocol cannot use the recorded settings
            self._problem = f"this version cannot replay its conversations: {type(error).__name__}: {error}"

    async def read(self, history: History, number: int, *, thoughts: bool = False) -> Transcript:
        """Return the transcript of a started conversation; with `thoughts`, answers include their reasoning."""
        replay = await self.replay(history, number)
        return Transcript(
            (history.started(number) or ("", None))[0],
            [_speech(entry, thoughts) for entry in replay.lines],
            replay.problem,
            [_speech(entry, thoughts) for entry in replay.unanswered],
        )

    def label_of(self, key: str) -> str:
        """Return the label of the compared models in a conversation's key."""
        return label_of_key(key, self._labels)

    async def replay(self, history: History, number: int, most_calls: int | None = None) -> Replay:
        """Replay a started conversation against its recorded calls.

        If there are more than `most_calls`, prompts are not reconstructed.
        """
        key, item = history.started(number) or ("", None)
        calls = history.calls(number)
        problem = self._problem
        if most_calls is not None and len(calls) > most_calls:
            problem = problem or f"it has {len(calls):,} calls, and prompts are shown for at most {most_calls:,}"
        elif item is None:
            problem = problem or "the record of its task is damaged"
        elif self._converse is not None and self._task is not None:
            try:
                task = self._task(item)
                label = label_of_key(key, self._labels)
                return await replay_conversation(
                    self._converse,
                    task,
                    calls,
                    seed=self._manifest["seed"],
                    number=number,
                    key=key,
                    label=label,
                    repeat=repeat_of(key, label, task.id),
                )
            except Exception as error:  # today's scenario reads tasks differently
                problem = f"this version cannot read its task: {type(error).__name__}: {error}"
        return Replay([entry_from_record(call) for call in calls], problem)


def _unknown_reason(manifest: Mapping[str, Any]) -> str | None:
    """Return why a run's scenario is unusable; None if it is usable, or the manifest names none."""
    if isinstance(imported := manifest.get("imported"), Mapping):
        return f"imported from another tool ({str(imported.get('from'))[:60]})"
    name = manifest.get("scenario")
    if not isinstance(name, str):
        return None
    try:
        scenario_of_manifest(manifest)
    except Exception as error:  # unknown name, or the package cannot be imported
        return f"the scenario '{name[:60]}' cannot be used here: {str(error)[:200]}"
    return None


def repeat_of(key: str, label: str, task: str) -> int:
    """Return how often a conversation's task had begun with its label, counting from 1, from the conversation's key."""
    number = key.removeprefix(f"{label}/{task}").removeprefix("#")
    return int(number) if number.isdigit() else 1


def _speech(entry: Entry, thoughts: bool) -> Speech:
    if isinstance(entry, Aside):
        return Speech(entry.party, entry.text, branch=entry.branch)
    if isinstance(entry, Step):
        return Speech(entry.name, _step_text(entry.computed), branch=entry.branch)
    completion = entry.completion
    if completion is None:
        return Speech(entry.role, "", _prompt(entry), entry.branch)
    if completion.likelihoods is not None:
        return Speech(entry.role, _likelihood_text(completion.likelihoods, entry.reading), _prompt(entry), entry.branch)
    text = join_thoughts(completion) if thoughts else completion.text
    calls = [f"{call.name}({call.arguments})" for call in completion.calls or ()]
    return Speech(entry.role, "\n".join([*([text] if text or not calls else []), *calls]), _prompt(entry), entry.branch)


def _prompt(exchange: Exchange) -> dict[str, Any] | None:
    if exchange.reading is not None:
        reading = exchange.reading
        return {"context": reading.shared + reading.context, "continuations": list(reading.continuations)}
    if exchange.messages is None:
        return None
    prompt: dict[str, Any] = {"messages": [message.to_openai() for message in exchange.messages]}
    return prompt if exchange.tools is None else prompt | {"tools": exchange.tools.specs}


def _step_text(computed: Computed) -> str:
    if computed.error is not None:
        return "{type}: {message} ({at})".format(**computed.error)
    return computed.value if isinstance(computed.value, str) else orjson.dumps(computed.value).decode()


def _likelihood_text(likelihoods: list[Likelihood], reading: Reading | None) -> str:
    if len(likelihoods) == 1:
        [likelihood] = likelihoods
        return f"the text: {likelihood.total:.4f} nats over {len(likelihood.logprobs)} tokens"
    names = [text.strip() for text in reading.continuations] if reading is not None else map(str, range(1, 1000))
    return "log-probabilities: " + ", ".join(
        f"{name} {likelihood.total:.4f}" for name, likelihood in zip(names, likelihoods, strict=False)
    )
