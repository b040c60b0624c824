"""A scenario and its settings, ready to run: models by role, tasks, plans with keys, manifest, shard.

Keys are LABEL/TASK, and LABEL/TASK#REPEAT from the second repeat on, so that the first repeat has the keys of a run
without repeats. A shard is every n-th conversation of a run, so shards cannot overlap and need no common lock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viva.engine.backends.base import Backend, ModelSpec
from viva.engine.backends.fault_injection import read_fault_plan
from viva.engine.backends.registry import file_records, flash_attention_record, variation_reason
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message
from viva.engine.run_folder import installed_versions
from viva.engine.runner import Plan
from viva.scenarios.contract import (
    Role,
    SupportsForecast,
    SupportsModelOrder,
    SupportsOpenings,
    SupportsReplacement,
)
from viva.scenarios.models import batch_note, lineups, model_labels, token_prices
from viva.scenarios.registry import AnyScenario
from viva.scenarios.run_settings import RunSettings, repeats_of

from .invariance import known_invariance

_SHARD_TEXT = re.compile(r"(\d{1,6})/(\d{1,6})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard `index` (from 1) of `total`; `attempt` is the id of one attempt to run it, or empty."""

    index: int
    total: int
    attempt: str = ""

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse `2/8` (the second of eight shards); raise ConfigurationError if the text is invalid."""
        match = _SHARD_TEXT.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigurationError(f"--shard {text}: expected i/n with i from 1 to n, such as 2/8")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Shard | None:
        """Return the shard recorded in a manifest, or None for a whole run.

        Raises:
            ConfigurationError: The manifest's field is damaged.
        """
        record = manifest.get("shard")
        if record is None:
            return None
        try:
            shard = cls(int(record["index"]), int(record["of"]), str(record["attempt"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"manifest.json: field 'shard' cannot be used: {error!r}") from None
        if not 1 <= shard.index <= shard.total:
            raise ConfigurationError(f"manifest.json: field 'shard': there is no shard {shard}")
        return shard

    def __str__(self) -> str:
        return f"{self.index}/{self.total}"

    def to_record(self) -> dict[str, Any]:
        """Return plain data for a manifest."""
        return {"index": self.index, "of": self.total, "attempt": self.attempt}

    def holds(self, number: int) -> bool:
        """Return True if the conversation with this number (from 0) belongs to the shard."""
        return number % self.total == self.index - 1

    def count(self, conversations: int) -> int:
        """Return how many of `conversations` conversations, numbered from 0, belong to the shard."""
        return len(range(self.index - 1, conversations, self.total))


class Replacements:
    """Later tasks in the place of dropped ones: a model gets the next later task for each task that it drops.

    So a model's tasks are the first tasks of which `n` are not dropped, in whatever order its conversations end.
    `counts` has the number of later tasks by label; the manifest records it before such a task begins.
    """

    def __init__(self, later: Iterable[Any], labels: Iterable[str], first: int, counts: Mapping[str, Any]) -> None:
        """Create it; `first` is the number of the first conversation about a later task, `counts` as recorded.

        Raises:
            ConfigurationError: The recorded counts are damaged.
        """
        self._labels, self._first = list(labels), first
        self.counts = {label: counts.get(label, 0) for label in self._labels}
        for label, number in self.counts.items():
            if type(number) is not int or number < 0:
                raise ConfigurationError(
                    f"manifest.json: field 'replaced': {label}: found {number!r}, expected a count"
                )
        self._dropped: dict[str, set[int]] = {label: set() for label in self._labels}
        self._unread, self._tasks = iter(later), list[Any]()

    @property
    def total(self) -> int:
        """The number of conversations about later tasks."""
        return sum(self.counts.values())

    def drop(self, number: int) -> tuple[int, str, str, Any, Any, int] | None:
        """Note that a conversation has dropped its task; return the conversation in its place.

        Returns:
            None if it has one already (a repeated conversation of a resumed run), or if no task is left.
        """
        position = number - self._first if number >= self._first else number
        label = self._labels[position % len(self._labels)]
        self._dropped[label].add(number)
        index = self.counts[label]
        if len(self._dropped[label]) <= index or not self._reads(index):
            return None
        self.counts[label] += 1
        return self._conversation(index, label)

    def conversations(self) -> list[tuple[int, str, str, Any, Any, int]]:
        """Return the conversations about later tasks so far, as `PreparedRun` enumerates conversations."""
        return [
            self._conversation(index, label)
            for index in range(max(self.counts.values(), default=0))
            for label in self._labels
            if index < self.counts[label] and self._reads(index)
        ]

    def _reads(self, index: int) -> bool:
        """Read later tasks up to `index`; return False if there are not so many."""
        while len(self._tasks) <= index and (task := next(self._unread, None)) is not None:
            self._tasks.append(task)
        return index < len(self._tasks)

    def _conversation(self, index: int, label: str) -> tuple[int, str, str, Any, Any, int]:
        task = self._tasks[index]
        number = self._first + index * len(self._labels) + self._labels.index(label)
        return number, f"{label}/{task.id}", label, task, task.to_record(), 1


class PreparedRun:
    """A run that is checked as far as possible without a model.

    `total` counts the conversations of the run or the `shard`. `lineups` has, by the label in keys, the compared models
    that take part together. `models` names every model once. If the run is to be resumed, `recorded` is its manifest,
    and `bank` the item bank in its folder.

    Raises:
        ConfigurationError: The settings, the data or the prompt pack are invalid.
    """

    def __init__(
        self,
        scenario: AnyScenario,
        settings: RunSettings,
        shard: Shard | None = None,
        recorded: Mapping[str, Any] | None = None,
        bank: Path | None = None,
    ) -> None:
        self.scenario, self.settings, self.shard = scenario, settings, shard
        self.roles: tuple[Role, ...] = scenario.roles_of(settings)
        self._models_by_role = {role.name: _named_models(role, settings) for role in self.roles}
        self.lineups = lineups(self.roles, self._models_by_role)
        self._rows = {label: row for row, label in enumerate(self.lineups)}
        self._by_model = isinstance(scenario, SupportsModelOrder) and scenario.by_model
        self._task_list: list[Any] | None = None  # of adaptive exams
        self.pack = scenario.open_pack(settings)
        self.opened = scenario.prepare(settings)
        if recorded is not None:
            scenario.adopt(self.opened.records, recorded)
        self.chaos = None if settings.chaos is None else read_fault_plan(Path(settings.chaos))
        self.notes = [*self.opened.notes, *([f"fault injection: {settings.chaos}"] if self.chaos else [])]
        self.models = list(dict.fromkeys(model for role in self.roles for model in role.models(settings)))
        self.repeats = repeats_of(settings)
        self._check_keys()
        self._resumes = recorded is not None
        self._recorded_files: Mapping[str, str] = {} if recorded is None else recorded.get("files", {})
        self._recorded_attention: Mapping[str, str] = {} if recorded is None else recorded.get("flash_attention", {})
        self.first = 0  # number of the first conversation in this batch of tasks
        self.run_total = len(self.opened.tasks) * len(self.lineups) * self.repeats
        self.total = self.run_total if shard is None else shard.count(self.run_total)
        self.is_adaptive = getattr(settings, "adaptive", None) is not None
        if self.is_adaptive:
            self._prepare_exams(bank)
        self._items = getattr(settings, "n", None) or 0
        self.converse = scenario.protocol(settings, self.pack, self.opened.records)
        self._added: list[Any] = []  # tasks that were added during the run, in order
        self.is_dropped = scenario.dropped(settings) if isinstance(scenario, SupportsReplacement) else None
        self.replacements: Replacements | None = None
        if self.is_dropped is not None:
            if shard is not None:
                raise ConfigurationError(
                    "a run that replaces dropped tasks cannot be divided into shards: run it whole"
                )
            counts = {} if recorded is None else recorded.get("replaced", {})
            self.replacements = Replacements(self.opened.later, self.lineups, self.run_total, counts)
            self.total += self.replacements.total
        for added in () if recorded is None else recorded.get("added", ()):
            self.add_tasks(added["n"])
        if note := batch_note(self.models, self.total, settings.concurrency, self._batched_calls()):
            self.notes.append(note)

    def _prepare_exams(self, bank: Path | None) -> None:
        from .exams import exam_record

        if self.shard is not None or self.repeats > 1:
            raise ConfigurationError("adaptive: an exam is neither repeated nor divided into shards; run it as a whole")
        if len(self.lineups) < 2 and getattr(self.settings, "until", None) == "decided":
            raise ConfigurationError("until: decided compares candidates, and there is one; use half_width or above")
        record = exam_record(self.scenario, self.settings, self.opened, bank)
        self.opened.records |= record
        self.total = min(getattr(self.settings, "n", None) or self.total, record["bank"]["items"]) * len(self.lineups)

    def number_of(self, label: str, position: int) -> int:
        """Return the number of the conversation of a lineup and the task at this position, without repeats."""
        row, labels, tasks = self._rows[label], len(self.lineups), len(self.opened.tasks)
        return self.first + (row * tasks + position if self._by_model else position * labels + row)

    def plan_of(self, label: str, position: int, backends: dict[str, Backend]) -> Plan:
        """Return the plan of this conversation."""
        if self._task_list is None:
            self._task_list = list(self.opened.tasks)
        task = self._task_list[position]
        models = self._models_by_lineup(backends)[label]
        return Plan(self.number_of(label, position), f"{label}/{task.id}", models, task, task.to_record(), label)

    def _batched_calls(self) -> float:
        """Return the maximum number of a conversation's calls that go through batch APIs; 0 if it is unknown."""
        roles = [role.name for role in self.roles
                 if any(ModelSpec.parse(model).is_batched for model in role.models(self.settings))]  # fmt: skip
        if not roles or not isinstance(self.scenario, SupportsForecast):
            return 0.0
        usage = self.scenario.forecast(self.settings, self.opened, self.pack)
        return sum(usage[role].calls for role in roles if role in usage) / max(1, len(self.opened.tasks))

    def _check_keys(self) -> None:
        """Check that keys are unique, reading the tasks only if duplicates are possible."""
        inner = {label.removeprefix(f"{prefix}/") for label in self.lineups for prefix in self.lineups
                 if label.startswith(f"{prefix}/")}  # fmt: skip
        if self.repeats < 2 and not inner:
            return
        names = {task.id for task in self.opened.tasks}
        for name in names:
            task, _, number = name.rpartition("#")
            if number.isdecimal() and 2 <= int(number) <= self.repeats and task in names:
                raise ConfigurationError(f"task '{name}': has the key of repeat {number} of '{task}'; rename the task")
            if any(name.startswith(f"{suffix}/") for suffix in inner):
                raise ConfigurationError(
                    f"task '{name}': its key may equal that of another model's task, because one model's label starts "
                    "with another's; add ?label=NAME to a model's name"
                )

    def add_tasks(self, count: int) -> int:
        """Add the next `count` items in the seed's order; return the number of tasks that they make.

        Their conversations are numbered after all others. A run with added items has the items of a run with a larger
        `n`.

        Raises:
            ConfigurationError: The run uses all items, is a shard, or its tasks depend on the number of items.
        """
        if self.is_adaptive:
            raise ConfigurationError("add: this run cannot get more items: adaptive exams choose them")
        if not self._items or self.shard is not None or self.replacements is not None:
            reason = (
                "it replaces dropped items by later ones"
                if self.replacements is not None
                else "it is a shard"
                if self.shard is not None
                else "it has no -n: all items are used already"
            )
            raise ConfigurationError(f"add: this run cannot get more items: {reason}")
        known = {task.id: task.to_record() for task in (*self.opened.tasks, *self._added)}
        more = self._items + count
        opened = self.scenario.prepare(self.settings.model_copy(update={"n": more}))
        tasks = {task.id: task for task in opened.tasks}
        if any(name not in tasks or tasks[name].to_record() != record for name, record in known.items()):
            raise ConfigurationError("add: this run cannot get more items: its tasks depend on their number")
        new = [task for name, task in tasks.items() if name not in known]
        if not new:
            raise ConfigurationError(f"add: all {len(known):,} tasks of this dataset are used already")
        self._items = more
        self._added += new
        self.run_total += len(new) * len(self.lineups) * self.repeats
        self.total = self.run_total
        return len(new)

    def check_openings(self, backends: Mapping[str, Backend]) -> None:
        """Check that the context of each open model is large enough for its first prompt about the longest task.

        Raises:
            ConfigurationError: A context is too small; nothing has been paid for yet.
        """
        scenario, settings = self.scenario, self.settings
        known = {name for name in self.models if backends[name].prompt_size([Message("user", "")]) is not None}
        if not known or not isinstance(scenario, SupportsOpenings):
            return
        longest: dict[str, tuple[int, str, list[Message]]] = {}
        for task in self.opened.tasks:
            for role_name, messages in scenario.openings(settings, task, self.pack).items():
                characters = sum(len(message.content) for message in messages)
                if characters > longest.get(role_name, (-1,))[0]:
                    longest[role_name] = (characters, task.id, messages)
        for role in self.roles:
            for name in role.models(settings) if role.name in longest else ():
                _, task_id, messages = longest[role.name]
                size = backends[name].prompt_size(messages)
                if size is not None and size.tokens >= size.context:
                    answer = settings.sampling_of(role.name).max_tokens
                    raise ConfigurationError(
                        f"{role.name} {name}: its first prompt has {size.tokens:,} tokens (item {task_id}), and its "
                        f"context holds {size.context:,}; {size.advice} to at least {size.tokens + answer:,}, plus "
                        "what later turns add"
                    )

    def manifest(self) -> dict[str, Any]:
        """Return the run's manifest as plain data without secrets.

        Raises:
            ConfigurationError: The settings demand byte-identical transcripts, and a model cannot provide them.
        """
        files = self._file_records()
        reasons = breaks_identity(self.models)
        if self.settings.strict and reasons:
            raise ConfigurationError(f"strict: transcripts would not be byte-identical: {'; '.join(reasons)}")
        pack = self.pack
        records = dict(self.opened.records)
        return {
            "scenario": self.scenario.name,
            "seed": self.settings.seed,
            "tier": "A" if reasons else "C",
            "not_identical": reasons,
            "files": files,
            **self._attention_records(),
            **self._invariance_records(),
            "versions": installed_versions(),
            "settings": self.settings.model_dump(mode="json"),
            "models": self._models_by_role,
            "prices": {model: token_prices(model) for model in self.models},
            "pack": None if pack is None else {"name": pack.name, "version": pack.version, "digest": pack.digest},
            "dataset": records.pop("dataset"),
            **records,
            "prompts": None if pack is None else pack.text,
            **({} if self.shard is None else {"shard": self.shard.to_record()}),
        }

    def _file_records(self) -> dict[str, str]:
        """Return the identities of the models' files; a resumed run looks for the recorded files."""
        files: dict[str, str] = {}
        for name in self.models:
            files |= file_records(name, self._recorded_files.get(name, ""))
        return files

    def _attention_records(self) -> dict[str, dict[str, str]]:
        """Return the manifest's field `flash_attention`, if there is a choice to record."""
        choices = {name: flash_attention_record(name, self._recorded_attention.get(name)) for name in self.models}
        made = {name: choice for name, choice in choices.items() if choice is not None}
        return {"flash_attention": made} if made else {}

    def _invariance_records(self) -> dict[str, dict[str, Any]]:
        """Return the manifest's field `invariance`, if a model was tested; a resumed run keeps the recorded field."""
        if self._resumes:
            return {}
        tests = {name: known_invariance(name) for name in self.models}
        known = {name: record for name, record in tests.items() if record is not None}
        return {"invariance": known} if known else {}

    def plans(self, backends: dict[str, Backend]) -> Iterator[Plan]:
        """Return the plans of the run or its shard, always in the same order; without tasks added later."""
        return self._plans(self._models_by_lineup(backends), self._enumerate())

    def _plans(self, models: Mapping[str, dict[str, Backend]], conversations: Iterator[Any]) -> Iterator[Plan]:
        for number, key, label, task, record, repeat in conversations:
            if self.shard is None or self.shard.holds(number):
                yield Plan(number, key, models[label], task, record, label, repeat)

    def numbered_keys(self) -> Iterator[tuple[int, str]]:
        """Yield number and key of every conversation of the whole run."""
        for number, key, *_ in self._enumerate():
            yield number, key

    def _enumerate(self) -> Iterator[tuple[int, str, str, Any, Any, int]]:
        """Return number, key, label, task, its record, and repeat of every conversation of the whole run.

        All models get one task before the next task, so that an interrupted run compares models on the same tasks. A
        scenario can request all tasks of one model before the next model instead.
        """
        later = [] if self.replacements is None else self.replacements.conversations()  # as of now
        yield from self._enumerate_tasks((self.opened.tasks, *([task] for task in self._added)))
        yield from later

    def replacement(self, number: int, backends: Mapping[str, Backend]) -> Plan | None:
        """Return the plan of the conversation in place of one that has dropped its task; None as for `drop`."""
        assert self.replacements is not None
        conversation = self.replacements.drop(number)
        if conversation is None:
            return None
        self.total += 1
        return next(self._plans(self._models_by_lineup(backends), iter([conversation])))

    def _enumerate_tasks(self, batches: Sequence[Iterable[Any]]) -> Iterator[tuple[int, str, str, Any, Any, int]]:
        number = self.first
        for tasks in batches:
            for labels in [[label] for label in self.lineups] if self._by_model else [list(self.lineups)]:
                for task in tasks:
                    record = task.to_record()
                    for label in labels:
                        for repeat in range(1, self.repeats + 1):
                            key = f"{label}/{task.id}" + (f"#{repeat}" if repeat > 1 else "")
                            yield number, key, label, task, record, repeat
                            number += 1

    def _models_by_lineup(self, backends: Mapping[str, Backend]) -> dict[str, dict[str, Backend]]:
        """Return the backends by role for each lineup of compared models."""
        models_by_label: dict[str, dict[str, Backend]] = {}
        for label, lineup in self.lineups.items():
            names = {role: models[lineup[role]] if isinstance(models, dict) else models
                     for role, models in self._models_by_role.items()}  # fmt: skip
            models_by_label[label] = {role: backends[name] for role, name in names.items() if name is not None}
        return models_by_label


def _named_models(role: Role, settings: RunSettings) -> dict[str, str] | str | None:
    models = role.models(settings)
    return model_labels(models) if role.many else next(iter(models), None)


def breaks_identity(models: Iterable[str]) -> list[str]:
    """Return reasons why a model's output may depend on concurrency or order (docs/architecture.md)."""
    return [f"{text}: {reason}" for text in models if (reason := variation_reason(text)) is not None]
