"""Verification of a run: do its recorded conversations fit the scenario's code of today? No model is called.

Each conversation is checked against its record (`engine.conversation_check`). Differences of one kind are counted
together and shown at their first conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from viva.agents.prompts import PromptPack
from viva.engine.cancellation import ConversationStopped
from viva.engine.conversation_check import ConversationCheck, Difference, shorten
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import ConfigurationError, JournalError, user_frame
from viva.engine.journal_reader import History
from viva.engine.messages import Message
from viva.engine.permissions import NotPermitted, absolute_path, grant
from viva.engine.run_folder import RunFolder
from viva.engine.steps import STEP_PREFIX
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scenarios.registry import scenario_from_file

from .completeness import planned_in_total
from .launch import recorded_settings, refuse_imported
from .manifest import code_file
from .python_api import Run, run_blocking
from .transcripts import Transcripts, repeat_of

_MOST_NAMED = 5  # damaged records in a sentence
_CONTEXT = 20  # characters shown before the first difference of two texts


@dataclass(slots=True)
class DifferenceKind:
    """A way in which conversations differ from their records, at one place.

    `first` is the difference of the first such conversation, whose key and number are `key` and `number`.
    """

    first: Difference
    key: str
    number: int
    conversations: int = 0

    def title(self) -> str:
        """Return the kind in words."""
        difference = self.first
        name = difference.role.removeprefix(STEP_PREFIX)
        part = f"the step '{name}'" if difference.role.startswith(STEP_PREFIX) else difference.role
        part += f" in the branch '{difference.branch}'" if difference.branch else ""
        call = "first call" if difference.ordinal == 0 else "later call"
        return {
            "request": f"another request of {part}, {call}",
            "added": f"a call of {part} that is not recorded, {call}",
            "missing": f"a recorded call of {part} that is no longer made, {call}",
            "result": "another result",
            "error": f"an exception, {difference.now.partition(':')[0]}",
            "task": "a task that can no longer be read",
        }[difference.change]

    def sentences(self) -> str:
        """Return the kind, its number of conversations, and what differs in the first one."""
        difference = self.first
        position = f", {difference.role} #{difference.ordinal}" if difference.role else ""
        count = f"{self.conversations} conversation{'s' * (self.conversations > 1)}"
        recorded = f"Recorded: {difference.recorded}."
        if difference.change == "request" and difference.recorded.startswith("not stored"):
            recorded = f"(The recorded request is {difference.recorded}.)"
        return (
            f"{self.title()[0].upper()}{self.title()[1:]}: {count}, the first {self.key or self.number}{position}. "
            f"Now: {difference.now}. {recorded}"
        )

    def to_record(self) -> dict[str, Any]:
        """Return plain data."""
        difference = self.first
        names = ("change", "role", "ordinal", "branch", "now", "recorded")
        fields = {name: getattr(difference, name) for name in names}
        return {"conversations": self.conversations, "key": self.key, "number": self.number, **fields}


@dataclass(slots=True)
class Verification:
    """Result of a verification.

    `conversations` were checked; `differing` of them have at least one of the `kinds`. `damaged` names the damaged
    records of the conversations in `unreadable`, of which only the readable beginning was checked. `pack` says how the
    prompt pack differs from the recorded one; "" if it does not. `file` is the scenario's Python file; "" if it belongs
    to a package. `unfinished` counts the run's conversations that have not ended, with those that have not begun.
    """

    conversations: int = 0
    differing: int = 0
    kinds: list[DifferenceKind] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    pack: str = ""
    file: str = ""
    unfinished: int = 0

    @property
    def fits(self) -> bool:
        """True if every recorded conversation fits and could be read."""
        return not self.differing and not self.damaged

    def sentences(self) -> list[str]:
        """Return the answer, and a paragraph for each kind of difference."""
        count = self.conversations
        if self.differing:
            titles = "; ".join(f"{kind.title()} ({kind.conversations})" for kind in self.kinds)
            answer = f"{self.differing} of {count} conversations no longer fit: {titles}."
        elif self.damaged:
            answer = f"{count - len(self.unreadable)} of {count} recorded conversations fit."
        else:
            answer = f"All {count} recorded conversations fit." if count > 1 else "The recorded conversation fits."
        if self.damaged:
            names = ", ".join(self.damaged[:_MOST_NAMED]) + ", …" * (len(self.damaged) > _MOST_NAMED)
            answer += f" {len(self.unreadable)} cannot be verified to their end. Damaged: {names}."
        if self.unfinished:
            they = "1 conversation has" if self.unfinished == 1 else f"{self.unfinished} conversations have"
            answer += f" The run is not finished: {they} not ended; the recorded part was checked."
        return [*([self.pack] if self.pack else []), answer, *(kind.sentences() for kind in self.kinds)]

    def to_record(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "fits": self.fits,
            "conversations": self.conversations,
            "differing": self.differing,
            "kinds": [kind.to_record() for kind in self.kinds],
            "pack": self.pack or None,
            "file": self.file or None,
            "unfinished": self.unfinished,
            **({"damaged": self.damaged, "unreadable": self.unreadable} if self.damaged else {}),
        }


def verify(
    run: str | Path | Run, *, pack: str | Path | None = None, scenario: str | Path | None = None
) -> Verification:
    """Check whether a run's recorded conversations fit the scenario's code of today, without calling any model.

    Args:
        run: The run, or its folder.
        pack: A prompt pack to check with, in place of the recorded prompts: a shipped name or a YAML file.
        scenario: The Python file to check with, in place of the recorded one.

    Raises:
        ConfigurationError: There is no run here, nothing is recorded, or the scenario or the pack cannot be read.
        JournalError: The journal cannot be read, or its structure is damaged.
    """
    if isinstance(run, Run):
        run = run.path
    folder = RunFolder.open(Path(run))
    refuse_imported(folder)
    if scenario is not None:
        _replace_scenario(folder, Path(scenario))
    checker = _RunCheck(folder, None if pack is None else str(pack))
    return run_blocking(checker.check)


def _replace_scenario(folder: RunFolder, file: Path) -> None:
    """Let the opened run, not its file, name another Python file of its scenario."""
    name = folder.manifest.get("scenario")
    if code_file(folder.manifest) is None:
        raise ConfigurationError(
            f"{folder.path}: its scenario {name} belongs to a package, not to a file such as {file}"
        )
    file = absolute_path(file)
    grant(file)
    scenario_from_file(file, str(name))
    folder.manifest["code"] = {"file": str(file)}


class _RunCheck:
    """A run's protocol of today, ready to check its conversations."""

    def __init__(self, folder: RunFolder, pack: str | None) -> None:
        self._folder, manifest = folder, folder.manifest
        try:
            self._scenario, self._settings = recorded_settings(folder)
        except ConfigurationError as error:
            file = code_file(manifest)
            if isinstance(error, NotPermitted) or file is None or file.is_file():
                raise
            raise ConfigurationError(f"{error}, or name another file with --scenario FILE.py") from None
        self._labels = lineup_labels(self._scenario.roles_of(self._settings), manifest)
        current, self._pack_note = self._choose_pack(pack)
        self._has_other_prompts = pack is not None and bool(self._pack_note)
        try:
            converse = self._scenario.protocol(self._settings, current, manifest)
        except Exception as error:
            problem = f"{type(error).__name__}: {error} (at {user_frame(error)})"
            raise ConfigurationError(
                f"{folder.path}: its scenario cannot use the recorded settings: {problem}"
            ) from error
        self._checker = ConversationCheck(converse, manifest["seed"], recorded_stop)

    def _choose_pack(self, source: str | None) -> tuple[PromptPack | None, str]:
        """Return the pack to check with, and how today's pack differs from the recorded one ("" if it does not)."""
        templates, manifest = self._scenario.templates, self._folder.manifest
        if templates is None or manifest.get("prompts") is None:
            if source is not None:
                raise ConfigurationError(f"pack {source}: {self._scenario.name} has no prompt pack")
            return None, ""
        recorded = templates.read(manifest["prompts"], manifest["pack"]["name"])
        if source is not None:
            current = templates.open(source)
            return current, _compare_packs(recorded, current, f"The prompt pack {source} differs", "")
        source = str(getattr(self._settings, "pack", self._scenario.name))
        try:
            current = templates.open(source)
        except ConfigurationError:  # the file is gone; its recorded text is used
            return recorded, ""
        advice = f"; the recorded prompts are used (--pack {source}: those of today)"
        return recorded, _compare_packs(recorded, current, f"The prompt pack {source} now differs", advice)

    async def check(self) -> Verification:
        """Check all conversations."""
        verification = Verification(pack=self._pack_note, file=str(getattr(self._scenario, "file", None) or ""))
        kinds: dict[tuple[str, ...], DifferenceKind] = {}
        ended = 0
        with History(self._folder.journal) as history:
            if not history.sound:
                raise JournalError(
                    f"{history.path}: the file is damaged, so records may be missing and nothing can be verified; "
                    "restore it from a copy"
                )
            for number in history.numbers():
                key, differences = await self._check_conversation(history, number, verification)
                verification.conversations += 1
                ended += history.end(number) is not None
                verification.differing += bool(differences)
                for name in dict.fromkeys(map(_kind_name, differences)):
                    first = next(difference for difference in differences if _kind_name(difference) == name)
                    kind = kinds.setdefault(name, DifferenceKind(first, key, number))
                    kind.conversations += 1
            if not verification.conversations:
                raise ConfigurationError(f"{self._folder.path}: no conversation is recorded yet")
            if self._has_other_prompts:
                for kind in kinds.values():
                    kind.first = await self._with_recorded_prompt(history, kind)
            verification.damaged = list(history.damage)
        planned = max(planned_in_total(self._folder) or 0, verification.conversations)
        verification.unfinished = max(0, planned - ended - len(verification.unreadable))
        verification.kinds = list(kinds.values())
        return verification

    async def _check_conversation(
        self, history: History, number: int, verification: Verification
    ) -> tuple[str, list[Difference]]:
        """Return key and differences of a conversation; note it if its record is damaged."""
        damage = len(history.damage)
        key, item = history.started(number) or ("", None)
        calls, end = history.calls(number), history.end(number)
        if len(history.damage) > damage or item is None:
            verification.unreadable.append(key or str(number))
            end = None
        if item is None:
            return key, []
        try:
            task = self._scenario.task(item)
            label = label_of_key(key, self._labels)
            repeat = repeat_of(key, label, task.id)
        except Exception as error:
            now = f"{type(error).__name__}: {shorten(str(error))}"
            return key, [Difference("task", now=now, recorded="a task that could be read")]
        return key, await self._checker.check(task, calls, end, number=number, key=key, label=label, repeat=repeat)

    async def _with_recorded_prompt(self, history: History, kind: DifferenceKind) -> Difference:
        """Return a difference with the recorded messages, if the recorded pack still gives them."""
        first = kind.first
        if first.change != "request":
            return first
        replay = await Transcripts(self._folder).replay(history, kind.number)
        for entry in replay.lines:
            if (
                isinstance(entry, Exchange)
                and (entry.role, entry.ordinal, entry.branch) == (first.role, first.ordinal, first.branch)
                and entry.messages is not None
            ):
                now, recorded = _compare_messages(first.messages, entry.messages)
                return Difference("request", first.role, first.ordinal, first.branch, now, recorded, first.messages)
        return first


def recorded_stop(result: Any) -> ConversationStopped:
    """Return how a conversation was stopped, as far as its result says so; else a budget's stop."""
    stopped = result.get("stopped", result) if isinstance(result, dict) else None
    if isinstance(stopped, str):
        source, _, reason = stopped.partition(": ")
        return ConversationStopped(source, reason)
    if isinstance(stopped, dict) and isinstance(cause := stopped.get("by", stopped.get("ended_by")), str):
        return ConversationStopped(cause, str(stopped.get("reason", "")))
    return ConversationStopped("budget", "")


def _compare_packs(recorded: PromptPack, current: PromptPack, beginning: str, end: str) -> str:
    """Return a sentence on how two packs differ; "" if they are equal."""
    if current.text == recorded.text:
        return ""
    texts = [{name: template.render({field: f"{{{field}}}" for field in template.placeholders})
              for name, template in pack.templates.items()} for pack in (recorded, current)]  # fmt: skip
    names = sorted(name for name in texts[0].keys() | texts[1].keys() if texts[0].get(name) != texts[1].get(name))
    return f"{beginning} from the recorded one in {', '.join(names) or 'no template'}{end}."


def _kind_name(difference: Difference) -> tuple[str, ...]:
    """Return what differences of one kind have in common."""
    error = difference.now.partition(":")[0] if difference.change == "error" else ""
    return difference.change, difference.role, difference.branch, "first" if difference.ordinal == 0 else "later", error


def _compare_messages(now: Sequence[Message], recorded: Sequence[Message]) -> tuple[str, str]:
    """Return the first messages that differ, each from shortly before its first difference."""
    for new, old in zip(now, recorded, strict=False):
        if (new.role, new.content) != (old.role, old.content):
            equal = (first == second for first, second in zip(new.content, old.content, strict=False))
            beginning = max(0, sum(takewhile(bool, equal)) - _CONTEXT)
            return _quote(new, beginning), _quote(old, beginning)
    return f"{len(now)} messages", f"{len(recorded)} messages"


def _quote(message: Message, beginning: int) -> str:
    return f'{message.role} "{shorten(message.content, beginning)}"'
