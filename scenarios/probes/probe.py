"""Probes of one model with one item: the settings, the calls, their record, and its rendering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from viva.agents.choices import read_choice
from viva.data.items import Item, choice_letter, format_item
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import MalformedOutput
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling
from viva.scoring.accuracy import choose_letter, choose_normalized, choose_raw
from viva.scoring.contamination import Signals

from ..rendering import (
    Detail,
    Mark,
    RecordedConversation,
    RenderedConversation,
    ResultSummary,
    Side,
    pending_turns,
    render_entry,
)
from ..run_aggregate import conversation_costs
from ..run_settings import (
    DataSource,
    FilePath,
    ModelNames,
    RunSettings,
    count_option,
    pack_option,
    skip_option,
    tokens_option,
)
from .few_shot import Shots
from .probe_prompts import ProbeHint, Questions

Method = Literal["letter", "text", "generate", "loss"]


class ProbeSettings(RunSettings):
    """Static probes: what a model recalls (KIEval, section 4.2, Table 3)."""

    dataset: DataSource = Field(
        description="Benchmark: NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    )
    candidate: ModelNames = Field(min_length=1, description="Model to probe.")
    method: list[Method] = Field(
        default=["letter"],
        min_length=1,
        description="letter or text: likelihood of each option's letter or words; generate: a written answer; loss: "
        "the loss of the item's text.",
    )
    n: int | None = count_option("Items")
    ids: FilePath | None = Field(default=None, description="File of item ids: use only these items.")
    shots: int = Field(default=5, ge=0, le=100, description="Examples before each question, sampled with the seed.")
    shots_from: DataSource | None = Field(
        default=None, description="Source of the examples (default: the dataset's dev split)."
    )
    against: DataSource | None = Field(
        default=None,
        description="Second dataset for method loss: adds the gap between mean losses, and how well detectors tell the "
        "two datasets apart.",
    )
    against_n: int | None = Field(
        default=None, ge=1, description="Items to sample from the second set (default: as many as -n)."
    )
    members: Literal["dataset", "against"] = Field(
        default="dataset", description="Which of the two sets counts as seen in training."
    )
    answer_tokens: int = tokens_option("answer of method generate", 32)
    pack: FilePath = pack_option("probe")
    skip_bad_items: bool = skip_option("are not items")

    @field_validator("method")
    @classmethod
    def _each_once(cls, methods: list[Method]) -> list[Method]:
        return list(dict.fromkeys(methods))

    @model_validator(mode="after")
    def _second_set_has_a_use(self) -> ProbeSettings:
        if self.against is not None and "loss" not in self.method:
            raise ValueError("against: only method loss compares two sets; add --method loss")
        if self.against is None and self.members == "against":
            raise ValueError("members: there is no second set that could have been seen in training; add --against")
        return self


CANDIDATE = "candidate"


@dataclass(slots=True)
class ProbeTask:
    """An item; `second` if it comes from the set `against`."""

    item: Item
    second: bool = False

    @property
    def id(self) -> str:
        """The item's id, so that probes and interviews join by item; the second set is prefixed with `against/`."""
        return f"against/{self.item.id}" if self.second else self.item.id

    def to_record(self) -> dict[str, Any]:
        return self.item.to_record() | ({"second": True} if self.second else {})

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> ProbeTask:
        fields = dict(record)
        second = bool(fields.pop("second", False))
        return cls(Item(**fields), second)


@dataclass(slots=True)
class Probe:
    """The shared parts of all conversations of a probe run.

    `shots` is None for questions without examples. `members_are_second` is True if the second set counts as seen in
    training; simulated models use it.
    """

    methods: Sequence[Method]
    questions: Questions
    shots: Shots | None
    sampling: Sampling
    members_are_second: bool = False

    async def run(self, conversation: Conversation, task: ProbeTask) -> dict[str, Any]:
        """Run all methods on one item, one after the other; the second set is only read for its loss."""
        item = task.item
        conversation.tell(lambda: [("benchmark", format_item(item))])
        record: dict[str, Any] = {"candidate": conversation.label, "item": item.id, "second": task.second}
        if (cluster := item.cluster()) != "":
            record["cluster"] = cluster
        shots = self.shots.for_item(item) if self.shots is not None and not task.second else []
        try:
            for method in ["loss"] if task.second else self.methods:
                match method:
                    case "letter":
                        record["letter"] = await self._by_letter(conversation, item, shots)
                    case "text":
                        record["text"] = await self._by_text(conversation, item, shots)
                    case "generate":
                        record["generate"] = await self._by_generation(conversation, item, shots)
                    case _:
                        unseen = task.second != self.members_are_second
                        record["signals"] = await self._signals(conversation, item, unseen)
        except ConversationStopped as stop:  # by the conversation's budget: earlier calls count
            record["stopped"] = stop.by
        return record | conversation_costs(conversation)

    async def _by_letter(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        likelihoods = await conversation.read(CANDIDATE, self.questions.by_letter(item, shots))
        sums = [likelihood.total for likelihood in likelihoods]
        with _errors_as_malformed(item):
            choice = choose_letter(sums)
        return {"choice": choice, "right": choice == item.answer, "logprobs": sums}

    async def _by_text(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        likelihoods = await conversation.read(CANDIDATE, self.questions.by_text(item, shots))
        sums = [likelihood.total for likelihood in likelihoods]
        with _errors_as_malformed(item):
            raw = choose_raw(sums)
            normalised = choose_normalized(sums, [len(choice.strip()) for choice in item.choices])
        return {
            "choice": raw,
            "right": raw == item.answer,
            "normalised": normalised,
            "normalised_right": normalised == item.answer,
            "logprobs": sums,
        }

    async def _by_generation(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        view = self.questions.question_view(item, shots)
        completion = await conversation.generate(CANDIDATE, view, self.sampling, hint=ProbeHint(item))
        # For a model that only continues text, a blank line precedes the next question.
        choice = read_choice(completion.text.strip().partition("\n\n")[0], item.choices)
        return {"choice": choice, "right": choice == item.answer}

    async def _signals(self, conversation: Conversation, item: Item, unseen: bool) -> dict[str, Any]:
        text = self.questions.item_text(item)
        [likelihood] = await conversation.read(
            CANDIDATE, Reading("", (text,), moments=True, hint=ProbeHint(item, unseen))
        )
        with _errors_as_malformed(item):
            signals = Signals.from_logprobs(text, likelihood.logprobs, likelihood.means, likelihood.deviations)
        return asdict(signals)


@contextmanager
def _errors_as_malformed(item: Item) -> Iterator[None]:
    """Report impossible log-probabilities as a fault of the model."""
    try:
        yield
    except ValueError as error:
        raise MalformedOutput(f"item {item.id}: its log-probabilities cannot be right: {error}") from None


_CHOICE_METHODS: tuple[Method, ...] = ("letter", "text", "generate")
_METHOD_TITLES = {"letter": "by letter", "text": "by text", "generate": "generated", "loss": "loss of the text"}


def render_probe(recorded: RecordedConversation, sides: Mapping[str, Side]) -> RenderedConversation:
    """Return the item, then one turn per method, in the order of the calls."""
    turns = []
    result = recorded.result or {}
    # Calls come in the order of the methods; each completed method has a part of the record.
    methods = [name for name in result if name in _CHOICE_METHODS or name == "signals"]
    for entry in recorded.entries:
        turn = render_entry(entry, sides)
        if isinstance(entry, Exchange):
            name = methods.pop(0) if methods else ""
            if name in _CHOICE_METHODS:
                turn.marks.insert(0, _choice_mark(name, result[name]))
            elif name == "signals":
                turn.marks.insert(0, Mark(_METHOD_TITLES["loss"], f"{result[name]['loss']:.3f} nats per token"))
            if entry.reading is not None:
                turn.details.insert(0, Detail("text read", entry.reading.shared + entry.reading.context))
        turns.append(turn)
    return RenderedConversation([*turns, *pending_turns(recorded, sides)])


def _choice_mark(name: str, record: Mapping[str, Any]) -> Mark:
    choice = record["choice"]
    text = "no choice" if choice is None else f"{choice_letter(choice)}, {'right' if record['right'] else 'wrong'}"
    return Mark(_METHOD_TITLES[name], text, float(record["right"]))


def summarize_probe(result: Mapping[str, Any]) -> ResultSummary:
    """Return a probe's summary line: 100 if the first method found the right choice, else 0; loss in nats per token.

    Probes of the second set have only a loss.
    """
    rights = {_METHOD_TITLES[name]: 100.0 * result[name]["right"] for name in _CHOICE_METHODS if name in result}
    loss = {"loss": float(result["signals"]["loss"])} if "signals" in result else {}
    score = next(iter(rights.values()), None)
    end = "of the second set" if result.get("second") else "" if score is None else "right" if score else "wrong"
    return ResultSummary(score, f"ended by {result['stopped']}" if "stopped" in result else end, rights | loss)
