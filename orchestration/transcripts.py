"""Transcripts of recorded conversations, from the run's folder alone: who said what, and what each model was sent.

A conversation is held again against its recorded calls (``engine.rerun``), in the words of the prompt pack that the
manifest keeps. What never belongs here: how a transcript looks, and results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from viva.engine.folder import RunFolder
from viva.engine.history import History
from viva.engine.likelihood import Likelihood, Reading
from viva.engine.messages import Message
from viva.engine.rerun import Entry, Line, Rerun, Step, entry_of, held_again
from viva.engine.steps import Computed
from viva.engine.thoughts import with_thoughts
from viva.scenarios.contract import Converse, many_role
from viva.scenarios.models import label_of

from .launch import recorded_settings


@dataclass(slots=True)
class Speech:
    """One entry of a transcript. ``prompt`` is what the model was sent for it, as messages in OpenAI's form, or the
    texts that it read; None where no model was asked, or where that is not known.
    """

    party: str
    text: str
    prompt: Any = None


@dataclass(slots=True)
class Transcript:
    """``problem`` says why the prompts of its later speeches are not known; None where all are."""

    speeches: list[Speech]
    problem: str | None


class Transcripts:
    """The transcripts of one run. ``compared`` is the role whose models are compared.

    :raises ConfigurationError: the folder's manifest cannot be used.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.scenario, self._settings = recorded_settings(folder)
        manifest = self._manifest = folder.manifest
        self.compared = many_role(self.scenario.roles_of(self._settings)).name
        self._labels = list(manifest["models"][self.compared])
        self._converse: Converse[Any] | None = None
        self._problem = ""
        try:
            pack = None
            if self.scenario.templates is not None and manifest["prompts"] is not None:
                pack = self.scenario.templates.read(manifest["prompts"], manifest["pack"]["name"])
            self._converse = self.scenario.protocol(self._settings, pack, manifest)
        except Exception as error:  # of a protocol that has no use any more for what was recorded
            self._problem = f"this version cannot hold its conversations again: {type(error).__name__}: {error}"

    async def of(self, history: History, number: int, *, thoughts: bool = False) -> Transcript:
        """The transcript of a conversation that was admitted; with ``thoughts`` answers begin with them."""
        rerun = await self.rerun(history, number)
        return Transcript([_speech(one, thoughts) for one in rerun.lines], rerun.problem)

    def label_of(self, key: str) -> str:
        """The label of the compared model in a conversation's key."""
        return label_of(key, self._labels)

    async def rerun(self, history: History, number: int) -> Rerun:
        """A conversation that was admitted, held again against its record."""
        key, item = history.started(number) or ("", None)
        calls = history.calls(number)
        problem = self._problem
        if self._converse is not None and item is not None:
            try:
                task = self.scenario.task(item)
                label = label_of(key, self._labels)
                return await held_again(
                    self._converse,
                    task,
                    calls,
                    seed=self._manifest["seed"],
                    key=key,
                    label=label,
                    repeat=_repeat(key, label, task.id),
                )
            except Exception as error:  # of a system that reads its tasks otherwise today
                problem = f"this version cannot read its task: {type(error).__name__}: {error}"
        elif item is None:
            problem = "the record of its task is damaged"
        return Rerun([entry_of(call) for call in calls], problem)


def _repeat(key: str, label: str, task: str) -> int:
    told = key.removeprefix(f"{label}/{task}").removeprefix("#")
    return int(told) if told.isdigit() else 1


def _speech(one: Entry, thoughts: bool) -> Speech:
    if isinstance(one, Line):
        return Speech(one.party, one.text)
    if isinstance(one, Step):
        return Speech(one.name, _computed(one.computed))
    completion = one.completion
    if completion.likelihoods is not None:
        return Speech(one.role, _read_out(completion.likelihoods, one.reading), _texts(one.reading))
    text = with_thoughts(completion) if thoughts else completion.text
    calls = [f"{call.name}({call.arguments})" for call in completion.calls or ()]
    prompt = None if one.messages is None else {"messages": [message_record(message) for message in one.messages]}
    if prompt is not None and one.tools is not None:
        prompt["tools"] = one.tools.specs
    return Speech(one.role, "\n".join([*([text] if text or not calls else []), *calls]), prompt)


def _computed(computed: Computed) -> str:
    if computed.error is not None:
        return "{type}: {message} ({at})".format(**computed.error)
    return computed.value if isinstance(computed.value, str) else orjson.dumps(computed.value).decode()


def _read_out(likelihoods: list[Likelihood], reading: Reading | None) -> str:
    if len(likelihoods) == 1:
        [one] = likelihoods
        return f"the text: {one.total:.4f} nats over {len(one.logprobs)} tokens"
    names = [text.strip() for text in reading.continuations] if reading is not None else map(str, range(1, 1000))
    return "log-probabilities: " + ", ".join(
        f"{name} {one.total:.4f}" for name, one in zip(names, likelihoods, strict=False)
    )


def _texts(reading: Reading | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    return {"context": reading.shared + reading.context, "continuations": list(reading.continuations)}


def message_record(message: Message) -> dict[str, Any]:
    """A message in OpenAI's form."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        record["tool_calls"] = [call.to_openai() for call in message.calls]
    if message.call_id:
        record["tool_call_id"] = message.call_id
    if message.name:
        record["name"] = message.name
    return record
