"""Probes of one model with one item: the settings, the calls, their record, and its rendering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from viva.agents.written_numbers import final_reference
from viva.data.items import Item, choice_letter, format_item
from viva.engine.conversation import Conversation, ConversationStopped
from viva.engine.conversation_replay import Exchange
from viva.engine.errors import MalformedOutput
from viva.engine.likelihood import Reading
from viva.engine.messages import Sampling
from viva.scoring.accuracy import choose_letter, choose_normalized, choose_raw, choose_unconditional
from viva.scoring.contamination import Signals, loss

from ..choice_questions import ask_choice, ask_free
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
    ExamSettings,
    FilePath,
    ModelNames,
    count_option,
    pack_option,
    skip_option,
    tokens_option,
)
from .few_shot import Shots
from .probe_prompts import MASK, ProbeHint, Questions
from .witness_calls import WitnessCalls, permuted_items

Method = Literal[
    "letter",
    "text",
    "generate",
    "loss",
    "free",
    "unconditional",
    "lower",
    "order",
    "options",
    "permute",
    "context",
    "guess",
    "samples",
    "court",
]
CHOOSING: tuple[Method, ...] = ("letter", "text", "generate")  # methods that choose an option
ANSWERING: tuple[Method, ...] = (*CHOOSING, "free")  # methods that give an accuracy
COMPARED: tuple[Method, ...] = ("loss", "lower", "context", "guess", "samples")  # methods that compare the two sets
_RELATIVE: dict[Method, Method] = {"unconditional": "text", "lower": "loss"}  # methods that need another one's result
READING: tuple[Method, ...] = (
    "letter",
    "text",
    "unconditional",
    "loss",
    "lower",
    "order",
    "options",
    "context",
)  # these use likelihoods
# All evidence that a model with likelihoods can give. `text` and not `letter`: the model need not know letters.
_COURT: tuple[Method, ...] = ("text", "loss", "order", "options", "context", "guess", "samples")


class ProbeSettings(ExamSettings):
    """Static probes: what a model recalls (KIEval, section 4.2, Table 3)."""

    dataset: DataSource = Field(
        description="Benchmark: NAME (viva list datasets), FILE, form:PATH[:split] or hf:owner/name[:split]."
    )
    candidate: ModelNames = Field(min_length=1, description="Model to probe.")
    method: list[Method] = Field(
        default=["letter"],
        min_length=1,
        description="letter or text: likelihood of each option's letter or words; generate: a written answer; free: a "
        "written answer to a question without choices; loss: the loss of the item's text; unconditional: text, less "
        "the options' likelihood without the question; lower: loss, relative to the text in lower case. Evidence "
        "for `viva court`: order, options, context, guess, samples; court: all of these, with text and loss; permute: "
        "options without likelihoods.",
    )
    against_method: list[Method] | None = Field(
        default=None,
        description="Methods for the second set (default: those of loss, context, guess and samples that are used; "
        "with court, text too).",
    )
    n: int | None = count_option("Items")
    ids: FilePath | None = Field(default=None, description="File of item ids: use only these items.")
    shots: int = Field(default=5, ge=0, le=100, description="Examples before each question, sampled with the seed.")
    shots_from: DataSource | None = Field(
        default=None, description="Source of the examples (default: the dataset's dev split)."
    )
    against: DataSource | None = Field(
        default=None,
        description="Second dataset, which no model has seen: a comparison for losses, detectors and evidence.",
    )
    against_n: int | None = Field(
        default=None, ge=1, description="Items to sample from the second set (default: as many as -n)."
    )
    members: Literal["dataset", "against"] = Field(
        default="dataset", description="Which of the two sets counts as seen in training."
    )
    reference: str | None = Field(
        default=None, description="Label of a candidate: divide the others' losses by its loss, text by text."
    )
    answer_tokens: int = tokens_option("answer of method generate", 32)
    free_tokens: int = tokens_option("answer of method free", 512)
    pack: FilePath = pack_option("probe")
    skip_bad_items: bool = skip_option("are not items")

    @model_validator(mode="before")
    @classmethod
    def _expand_court(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or not isinstance(values.get("method"), list | tuple | str):
            return values
        methods = [values["method"]] if isinstance(values["method"], str) else list(values["method"])
        if "court" not in methods:
            return values
        index = methods.index("court")
        second = [method for method in _COURT if method in COMPARED or method in CHOOSING]
        own = values.get("against_method") or (second if values.get("against") is not None else None)
        if own is not None and "court" in own:
            own = second
        return {**values, "method": [*methods[:index], *_COURT, *methods[index + 1 :]], "against_method": own}

    @field_validator("method", "against_method")
    @classmethod
    def _each_once(cls, methods: list[Method] | None) -> list[Method] | None:
        if methods is None:
            return None
        # What is relative to another method's result comes after it.
        return sorted(dict.fromkeys(methods), key=lambda method: method in _RELATIVE)

    @property
    def second_methods(self) -> list[Method]:
        """Return the methods for the second set; none without one."""
        if self.against is None:
            return []
        if self.against_method is not None:
            return self.against_method
        return [method for method in self.method if method in COMPARED]

    @model_validator(mode="after")
    def _exams_choose_the_items(self) -> ProbeSettings:
        if self.adaptive is None:
            return self
        for name in ("ids", "against"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: an adaptive run chooses its items by the bank; remove {name} or adaptive")
        if len(self.method) != 1 or self.method[0] not in CHOOSING:
            raise ValueError(f"method: an adaptive run scores one method; choose one of {', '.join(CHOOSING)}")
        return self

    @model_validator(mode="after")
    def _second_set_has_a_use(self) -> ProbeSettings:
        if self.reference is not None and "loss" not in self.method:
            raise ValueError("reference: its losses divide the others'; add --method loss")
        for method, base in _RELATIVE.items():
            if method in self.method and base not in self.method:
                raise ValueError(f"method: {method} is relative to {base}; add --method {base}")
        if self.against is not None and not self.second_methods:
            raise ValueError("against: no method compares two sets; add one, such as --method loss or --method court")
        if self.against is None and self.against_method:
            raise ValueError("against_method: there is no second set; add --against")
        for method in self.second_methods:
            if method not in self.method:
                raise ValueError(f"against_method: {method} is not among the methods; add --method {method}")
            if method in ("order", "options", "permute", "free", "unconditional"):
                raise ValueError(f"against_method: {method} needs no second set")
        if self.against is None and self.members == "against":
            raise ValueError("members: there is no second set that could have been seen in training; add --against")
        return self


CANDIDATE = "candidate"


@dataclass(slots=True)
class ProbeTask:
    """An item; `second` if it comes from the set `against`. `neighbours` are the items of its context."""

    item: Item
    second: bool = False
    neighbours: Sequence[Item] = ()

    @property
    def id(self) -> str:
        """The item's id, so that probes and interviews join by item; the second set is prefixed with `against/`."""
        return f"against/{self.item.id}" if self.second else self.item.id

    def to_record(self) -> dict[str, Any]:
        record = self.item.to_record() | ({"second": True} if self.second else {})
        return record | ({"neighbours": [item.to_record() for item in self.neighbours]} if self.neighbours else {})


@dataclass(slots=True)
class ShardTask:
    """Consecutive items of the benchmark, for method `order`."""

    number: int
    items: Sequence[Item]

    @property
    def id(self) -> str:
        return f"shard/{self.number}"

    def to_record(self) -> dict[str, Any]:
        return {"shard": self.number, "items": [item.to_record() for item in self.items]}


def read_task(record: Mapping[str, Any]) -> ProbeTask | ShardTask:
    """Restore a task from its record."""
    if "shard" in record:
        return ShardTask(record["shard"], [Item(**item) for item in record["items"]])
    fields = dict(record)
    second = bool(fields.pop("second", False))
    neighbours = [Item(**item) for item in fields.pop("neighbours", ())]
    return ProbeTask(Item(**fields), second, neighbours)


@dataclass(slots=True)
class Probe:
    """The shared parts of all conversations of a probe run.

    `second_methods` are for the second set. `shots` is None for questions without examples. `members_are_second` is
    True if the second set counts as seen in training; simulated models use it. `free_sampling` is for method `free`.
    """

    methods: Sequence[Method]
    second_methods: Sequence[Method]
    questions: Questions
    shots: Shots | None
    sampling: Sampling
    calls: WitnessCalls
    free_sampling: Sampling
    members_are_second: bool = False

    async def run(self, conversation: Conversation, task: ProbeTask | ShardTask) -> dict[str, Any]:
        """Run all methods on one item, one after the other, or `order` on a shard."""
        if isinstance(task, ShardTask):
            return await self._run_shard(conversation, task)
        item = task.item
        conversation.tell(lambda: [("benchmark", format_item(item))])
        record: dict[str, Any] = {"candidate": conversation.label, "item": item.id, "second": task.second}
        if (cluster := item.cluster()) != "":
            record["cluster"] = cluster
        shots = self.shots.for_item(item) if self.shots is not None else []
        unseen = task.second != self.members_are_second
        try:
            for method in self.second_methods if task.second else self.methods:
                match method:
                    case "letter":
                        record["letter"] = await self._by_letter(conversation, item, shots)
                    case "text":
                        record["text"] = await self._by_text(conversation, item, shots)
                    case "generate":
                        record["generate"] = await self._by_generation(conversation, item, shots)
                    case "free":
                        record["free"] = await self._by_free_answer(conversation, item, shots)
                    case "loss":
                        record["signals"] = await self._signals(conversation, item, unseen)
                    case "unconditional":
                        record["unconditional"] = await self._by_unconditional(conversation, item, record["text"])
                    case "lower":
                        record["lower"] = await self._lower(conversation, item)
                    case "options":
                        record["options"] = await self.calls.options(conversation, item, unseen)
                    case "permute":
                        record["permute"] = await self._by_permutation(conversation, item)
                    case "context":
                        neighbours = task.neighbours
                        record["context"] = await self.calls.context(conversation, item, neighbours, unseen)
                    case "guess":
                        record["guess"] = await self.calls.guess(conversation, item)
                    case "samples":
                        record["samples"] = await self.calls.samples(conversation, item)
                    case "order" | "court":
                        pass  # order reads shards; court is replaced by its methods
        except ConversationStopped as stop:  # by the conversation's budget: earlier calls count
            record["stopped"] = stop.by
        return record | conversation_costs(conversation)

    async def _run_shard(self, conversation: Conversation, task: ShardTask) -> dict[str, Any]:
        conversation.tell(lambda: [("benchmark", format_item(item)) for item in task.items])
        record: dict[str, Any] = {"candidate": conversation.label, "item": task.id, "second": False}
        record["shard"] = task.number
        try:
            record["order"] = await self.calls.order(conversation, task.items)
        except ConversationStopped as stop:
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
            per_token = choose_normalized(sums, [len(likelihood.logprobs) for likelihood in likelihoods])
        return {
            "choice": raw,
            "right": raw == item.answer,
            "normalised": normalised,
            "normalised_right": normalised == item.answer,
            "per_token": per_token,
            "per_token_right": per_token == item.answer,
            "logprobs": sums,
        }

    async def _by_unconditional(
        self, conversation: Conversation, item: Item, text: Mapping[str, Any]
    ) -> dict[str, Any]:
        likelihoods = await conversation.read(CANDIDATE, self.questions.by_text_unconditional(item))
        sums = [likelihood.total for likelihood in likelihoods]
        with _errors_as_malformed(item):
            choice = choose_unconditional(text["logprobs"], sums)
        return {"choice": choice, "right": choice == item.answer, "logprobs": sums}

    async def _lower(self, conversation: Conversation, item: Item) -> dict[str, float]:
        text = self.questions.item_text(item).lower()
        hint = ProbeHint(item, unseen=True)  # nobody has seen the text so
        [likelihood] = await conversation.read(CANDIDATE, Reading("", (text,), hint=hint))
        with _errors_as_malformed(item):
            return {"loss": loss(likelihood.logprobs)}

    async def _by_generation(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        view = self.questions.question_view(item, shots)
        return await ask_choice(conversation, CANDIDATE, view, item, self.sampling, ProbeHint(item))

    async def _by_free_answer(self, conversation: Conversation, item: Item, shots: Sequence[Item]) -> dict[str, Any]:
        view = self.questions.question_view(item, shots)
        hint = ProbeHint(replace(item, reference=final_reference(item.reference)))
        return await ask_free(conversation, CANDIDATE, view, item, self.free_sampling, hint)

    async def _by_permutation(self, conversation: Conversation, item: Item) -> dict[str, Any] | None:
        """Return whether a written answer was right, by order of the options; see `WitnessCalls.options`."""
        variants = permuted_items(item, self.calls.seed)
        answers = [await self._by_generation(conversation, variant, ()) for variant in variants]
        if not answers:
            return None
        choices = [
            None if answer["choice"] is None else item.choices.index(variant.choices[answer["choice"]])
            for variant, answer in zip(variants, answers, strict=True)
        ]
        return {"right": [answer["right"] for answer in answers], "choices": choices}

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


_METHOD_TITLES: dict[Method, str] = {
    "letter": "by letter",
    "text": "by text",
    "generate": "generated",
    "free": "free answer",
    "unconditional": "by text, less that without the question",
    "lower": "loss in lower case",
    "loss": "loss of the text",
    "order": "published and shuffled orders",
    "options": "orders of options",
    "permute": "answers by order of options",
    "context": "alone and in context",
    "guess": "masked choice",
    "samples": "sampled answers",
    "court": "",
}
_FIELDS = {"loss": "signals"}  # methods whose field in a record has another name


def render_probe(recorded: RecordedConversation, sides: Mapping[str, Side]) -> RenderedConversation:
    """Return the item, then one turn per call; the method's result is marked at its first call."""
    turns = []
    result = recorded.result or {}
    exchanges = [entry for entry in recorded.entries if isinstance(entry, Exchange)]
    methods = dict(zip(map(id, exchanges), _methods_of(exchanges, result), strict=True))
    marked: set[Method] = set()
    for entry in recorded.entries:
        turn = render_entry(entry, sides)
        if isinstance(entry, Exchange):
            method = methods[id(entry)]
            part = result.get(_FIELDS.get(method, method))
            if part is not None and method not in marked:
                turn.marks.insert(0, _mark(method, part))
            marked.add(method)
            if entry.reading is not None:
                turn.details.insert(0, Detail("text read", entry.reading.shared + entry.reading.context))
        turns.append(turn)
    return RenderedConversation([*turns, *pending_turns(recorded, sides)])


def _methods_of(exchanges: Sequence[Exchange], result: Mapping[str, Any]) -> list[Method]:
    """Return the method of each call, told by what was asked: records do not keep the order of methods."""
    methods: list[Method] = []
    letters = 0  # readings of letters that belong to the orders of options
    permuted = _permuted_calls(exchanges, len((result.get("permute") or {"right": ()})["right"]))
    for index, exchange in enumerate(exchanges):
        reading = exchange.reading
        if reading is not None:
            method = _reading_method(reading, result)
            if method == "text" and any(
                name == "text" and other.reading is not None and other.reading.continuations == reading.continuations
                for name, other in zip(methods, exchanges, strict=False)
            ):
                method = "unconditional"
            if method == "options":
                letters = len(reading.continuations)
            elif method == "letter" and letters:
                method, letters = "options", letters - 1
        elif any(MASK in message.content for message in exchange.messages or ()):
            method = "guess"
        elif index in permuted:
            method = "permute"
        else:
            beside = [exchanges[other] for other in {index - 1, index + 1} - {*permuted} if 0 <= other < len(exchanges)]
            repeated = any(other.messages == exchange.messages for other in beside if other.reading is None)
            method = "samples" if repeated else "free" if "free" in result else "generate"
        methods.append(method)
    return methods


def _permuted_calls(exchanges: Sequence[Exchange], count: int) -> range:
    """Return the indices of consecutive calls that ask one question with its options in `count` orders."""
    words = [
        None if exchange.reading is not None else sorted(" ".join(m.content for m in exchange.messages or ()).split())
        for exchange in exchanges
    ]
    for start in range(len(exchanges) - count + 1 if count else 0):
        alike = words[start] is not None and all(own == words[start] for own in words[start : start + count])
        if alike and exchanges[start].messages != exchanges[start + 1].messages:
            return range(start, start + count)
    return range(0)


def _reading_method(reading: Reading, result: Mapping[str, Any]) -> Method:
    if reading.moments:
        return "loss"
    if len(reading.continuations) == 1:
        alone = not reading.shared and not reading.context
        return "lower" if "lower" in result and alone and reading.continuations[0].islower() else "context"
    if not reading.shared and not reading.context:
        return "order" if "shard" in result else "options"
    letters = [f" {choice_letter(index)}" for index in range(len(reading.continuations))]
    return "letter" if list(reading.continuations) == letters else "text"


def _mark(method: Method, part: Mapping[str, Any]) -> Mark:
    title = _METHOD_TITLES[method]
    match method:
        case "loss":
            return Mark(title, f"{part['loss']:.3f} nats per token")
        case "order" | "options":
            others = part["shuffled" if method == "order" else "permuted"]
            higher = sum(other < part["published"] for other in others)
            return Mark(title, f"published likelier than {higher} of {len(others)}")
        case "permute":
            published, *others = part["right"]
            text = (
                f"{'right' if published else 'wrong'} in the published order, right in {sum(others)} of {len(others)}"
            )
            return Mark(title, f"{text} others")
        case "context":
            return Mark(title, f"{part['within'] - part['alone']:+.3f} nats per token in context")
        case "lower":
            return Mark(title, f"{part['loss']:.3f} nats per token")
        case "free":
            answer = "no clear answer" if part["answer"] is None else f"{part['answer']}, F1 {part['f1']:.2f}"
            return Mark(title, f"{answer}, {'right' if part['right'] else 'wrong'}", float(part["right"]))
        case "guess":
            return Mark(title, f"masked: {part['choice']}")
        case "samples":
            return Mark(title, f"{part['peak']:.0%} near the first")
    return _choice_mark(method, part)


def _choice_mark(name: Method, record: Mapping[str, Any]) -> Mark:
    choice = record["choice"]
    text = "no choice" if choice is None else f"{choice_letter(choice)}, {'right' if record['right'] else 'wrong'}"
    return Mark(_METHOD_TITLES[name], text, float(record["right"]))


def summarize_probe(result: Mapping[str, Any]) -> ResultSummary:
    """Return a probe's summary line: 100 if the first method found the right choice, else 0; loss in nats per token."""
    rights = {_METHOD_TITLES[name]: 100.0 * result[name]["right"] for name in ANSWERING if name in result}
    loss = {"loss": float(result["signals"]["loss"])} if "signals" in result else {}
    score = next(iter(rights.values()), None)
    end = "" if score is None else "right" if score else "wrong"
    if result.get("second"):  # apart from the benchmark's, so that counts of ends do not mix the sets
        end = f"{end}, second set" if end else "of the second set"
    return ResultSummary(score, f"ended by {result['stopped']}" if "stopped" in result else end, rights | loss)


def score_rule(methods: Sequence[str]) -> str:
    """Return how a probe's score comes about; nothing without a method that answers."""
    title = next((_METHOD_TITLES[name] for name in ANSWERING if name in methods), None)
    return "" if title is None else f"The score is 100 if the answer is right ({title}), and 0 if not."
