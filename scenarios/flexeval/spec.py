"""Pydantic models of a suite file: conversations, the system under test, metrics, thresholds, budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from .dialog import Level

Scalar: TypeAlias = bool | float | str
Name = Annotated[str, StringConstraints(pattern=r"^\w[\w .()=,@-]*$", max_length=80)]


def _file_name(name: str) -> str:
    if "\0" in name or any(len(part.encode("utf-8", "replace")) > 255 for part in name.split("/")):
        raise ValueError("is no name that a file can have")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]


class _SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Bounds(_SpecModel):
    """What a value must be. All that is given must hold; a value that is no number keeps no ``at_least``."""

    at_least: float | None = Field(default=None, description="The value is a number and not below this.")
    at_most: float | None = Field(default=None, description="The value is a number and not above this.")
    equals: Scalar | None = Field(default=None, description="The value is this number, text or truth value.")
    among: list[Scalar] | None = Field(default=None, description="The value is one of these.")

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if all(value is None for value in (self.at_least, self.at_most, self.equals, self.among)):
            raise ValueError("says nothing; give at_least, at_most, equals or among")
        return self

    def allow(self, value: Any) -> bool:
        """Whether a value keeps them."""
        number = isinstance(value, int | float)
        if self.at_least is not None and not (number and value >= self.at_least):
            return False
        if self.at_most is not None and not (number and value <= self.at_most):
            return False
        if self.equals is not None and not _equal_values(value, self.equals):
            return False
        return self.among is None or any(_equal_values(value, option) for option in self.among)


def _equal_values(value: Any, expected: Scalar) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        # A function may say yes by 1, and a suite ask for it by true.
        return bool(value == expected) and not isinstance(value, str) and not isinstance(expected, str)
    return bool(value == expected)


class Condition(Bounds):
    """Another metric's value on which a metric depends: it is computed where that value keeps the bounds."""

    metric: str = Field(description="The other metric's name.")
    value: str | None = Field(default=None, description="Which value, where the other metric returns several by name.")
    position: int = Field(
        default=0, le=0, description="0: of the same turn, message or call; -1: of the one before it; and so on."
    )


class Metric(_SpecModel):
    """Something that is computed of each conversation, turn, message or tool call: by a function, or by a rubric."""

    name: Name = Field(
        default="", description="What it is called in results; the function's or rubric's name if absent."
    )
    function: str | None = Field(
        default=None, description="A built-in metric, a function of `functions`, FILE.py#NAME or module:NAME."
    )
    rubric: str | None = Field(default=None, description="A rubric of `rubrics`, or a shipped one.")
    level: Level | None = Field(
        default=None, description="On what it is computed; from the function's annotation or the rubric if absent."
    )
    role: Literal["user", "assistant", "system", "tool"] | None = Field(
        default=None, description="Only on what this role said."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="More arguments of the function, by name.")
    when: list[Condition] = Field(default_factory=list, description="Only where these all hold.")
    grader: str | None = Field(
        default=None, description="The label of the grader that grades the rubric; all of them if absent."
    )
    votes: int = Field(default=1, ge=1, le=99, description="How often the grader is asked about each.")
    expected: bool = Field(
        default=False, description="Also the score as the grader weighs its choices, where it reports probabilities."
    )
    seconds: float = Field(default=10.0, gt=0, le=3600, description="Time limit of the function for each.")
    passes: Bounds | None = Field(default=None, description="What a value must be for the test to pass.")
    label: str | None = Field(
        default=None, description="The key of the metadata that holds the right answer: gives F1 for each class."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Metric:
        if (self.function is None) == (self.rubric is None):
            raise ValueError("give `function: …` or `rubric: …`, one of the two")
        for field, kind in (("arguments", "function"), ("grader", "rubric")):
            if getattr(self, field) and getattr(self, kind) is None:
                raise ValueError(f"`{field}` belongs to a {kind}")
        if (self.votes > 1 or self.expected) and self.rubric is None:
            raise ValueError("`votes` and `expected` belong to a rubric")
        if not self.name:
            # A name from `FILE.py#NAME`, `module:NAME` or `NAME`.
            self.name = (self.rubric or self.function or "").rpartition("#")[2].rpartition(":")[2]
        return self


class Rubric(_SpecModel):
    """A question to the grader, and what each of its answers counts."""

    prompt: str = Field(
        min_length=1,
        description="May hold {conversation}, {context}, {completion}, {content}, {turn}, {input}, {system}, {user}, "
        "{tool_calls}.",
    )
    choice_scores: dict[Annotated[str, StringConstraints(min_length=1, max_length=80)], float] = Field(
        min_length=2, description="The answers that the grader may give, and the number that each counts."
    )
    level: Level = Field(default="turn", description="What one question is about.")
    answer: Literal["json", "line"] = Field(
        default="json", description="json: reasons and choice are asked for as fields; line: the prompt says how."
    )
    notes: str = Field(default="", description="For readers; not part of the prompt.")


class Threshold(_SpecModel):
    """What must hold for the gate to be green: a figure between bounds, or no fall against the baseline."""

    metric: str = Field(description="The metric's name; NAME.KEY where it returns several values by name.")
    statistic: str = Field(
        default="mean",
        pattern=r"^(mean|median|min|max|sum|count|errors|p\d{1,2}(\.\d+)?|pass_rate|pass\^[1-9]\d*|f1|share:.+|f1:.+)$",
        description="mean, median, min, max, sum, p98 (any percentile), pass_rate, pass^5, share:CATEGORY, f1, "
        "f1:CLASS, errors (their share), count.",
    )
    role: str | None = Field(default=None, description="Only what this role said.")
    where: dict[str, Scalar] = Field(default_factory=dict, description="Only conversations with this metadata.")
    at_least: float | None = Field(default=None, description="The figure must not be below this.")
    at_most: float | None = Field(default=None, description="The figure must not be above this.")
    fall: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="The mean may fall by this much against the baseline; 0: not at all."
    )
    rise: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="The mean may rise by this much against the baseline; 0: not at all."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Threshold:
        if all(value is None for value in (self.at_least, self.at_most, self.fall, self.rise)):
            raise ValueError("says nothing; give at_least, at_most, fall or rise")
        if (self.fall is not None or self.rise is not None) and self.statistic not in ("mean", "pass_rate"):
            raise ValueError("fall and rise compare means or pass rates; leave `statistic` out or write pass_rate")
        return self

    @property
    def name(self) -> str:
        """What it is called in reports and test results."""
        figure = f"{self.statistic}({self.metric})"
        filters = [f"role {self.role}"] if self.role else []
        filters += [f"{key} {value}" for key, value in self.where.items()]
        bounds = [
            f"{word} {getattr(self, field):g}"
            for field, word in _BOUND_WORDS.items()
            if getattr(self, field) is not None
        ]
        return " ".join([figure, *([f"[{', '.join(filters)}]"] if filters else []), ", ".join(bounds)])


_BOUND_WORDS = {"at_least": ">=", "at_most": "<=", "fall": "falls by at most", "rise": "rises by at most"}


class SuiteBudget(_SpecModel):
    """What may be spent. Where it is used up nothing more is begun; what is begun is finished."""

    cost: float | None = Field(default=None, gt=0, description="Money, by the prices in the models' names.")
    calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)


class DialogPlay(_SpecModel):
    """How a dialog is held anew (``complete: dialog``)."""

    exchanges: int | None = Field(
        default=None, ge=1, description="At most so many answers of the system; as many as were recorded if absent."
    )
    persona: str = Field(default="", description="What the interactor is told of the user it plays.")


class Suite(_SpecModel):
    """A suite file."""

    name: Name = Field(default="suite", description="What the suite is called in reports and test results.")
    conversations: list[FileName] = Field(
        min_length=1, description="Files of conversations; * and ** stand for any names."
    )
    complete: Literal["last", "dialog", "none"] = Field(
        default="last",
        description="last: the system answers the last user turn anew; dialog: the whole dialog is held anew; none: "
        "the conversations are scored as they stand.",
    )
    system: str | dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="The system under test: a model's name, {url: …} of an HTTP application, or several by label.",
    )
    interactor: str | None = Field(
        default=None, description="The model that plays the user (complete: dialog); the recorded user turns if absent."
    )
    play: DialogPlay = Field(default_factory=DialogPlay)
    grader: str | dict[Name, str] | None = Field(
        default=None, description="The model that grades rubrics, or several by label: each grades every rubric."
    )
    scored: Literal["new", "all"] | None = Field(
        default=None, description="new: only what was said in this run (the default where a system answers); all."
    )
    repeats: int = Field(default=1, ge=1, le=1000, description="How often each conversation is tested.")
    functions: list[FileName] = Field(
        default_factory=list, description="Python files whose functions metrics may name."
    )
    rubrics: dict[Name, Rubric] | list[FileName] = Field(
        default_factory=dict, description="Rubrics by name, or YAML files of them."
    )
    metrics: list[Metric] = Field(min_length=1)
    thresholds: list[Threshold] = Field(default_factory=list)
    baseline: FileName | None = Field(default=None, description="The run folder that `fall` and `rise` compare with.")
    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="The chance of any false alarm among all comparisons with the baseline."
    )
    budget: SuiteBudget = Field(default_factory=SuiteBudget)
    temperature: float = Field(default=0.0, ge=0, description="The system's, where it takes one.")
    max_tokens: int = Field(default=1024, ge=1, description="Of each of the system's answers.")
    grader_tokens: int = Field(default=1024, ge=1, description="Of each of the graders' answers.")
    grader_temperature: float | None = Field(
        default=None, ge=0, description="The graders'; 0 if absent, and 1 where there are several votes."
    )
    seed: int = 7
    concurrency: int = Field(default=100, ge=1, description="Conversations in flight at most.")

    @property
    def scores_all(self) -> bool:
        """Whether what was said before this run is scored too."""
        return self.scored == "all" or (self.scored is None and self.complete == "none")
