"""Pydantic models of a suite file: conversations, the system under test, metrics, thresholds, budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from .dialog import Level

Scalar: TypeAlias = bool | float | str
Name = Annotated[str, StringConstraints(pattern=r"^\w[\w .()=,@-]*$", max_length=80)]


def _file_name(name: str) -> str:
    if "\0" in name or any(len(part.encode("utf-8", "replace")) > 255 for part in name.split("/")):
        raise ValueError("is not a valid file name")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]


class _SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Bounds(_SpecModel):
    """Bounds on a value. All given bounds must hold; a value that is not a number never meets `at_least`."""

    at_least: float | None = Field(default=None, description="The value is a number and not below this.")
    at_most: float | None = Field(default=None, description="The value is a number and not above this.")
    equals: Scalar | None = Field(default=None, description="The value is this number, text or boolean.")
    among: list[Scalar] | None = Field(default=None, description="The value is one of these.")

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if all(value is None for value in (self.at_least, self.at_most, self.equals, self.among)):
            raise ValueError("is empty; give at_least, at_most, equals or among")
        return self

    def allow(self, value: Any) -> bool:
        """Return True if a value is within the bounds."""
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
        # A function may return 1 where the suite says true.
        return bool(value == expected) and not isinstance(value, str) and not isinstance(expected, str)
    return bool(value == expected)


class Condition(Bounds):
    """Condition on another metric: the metric is computed only if that metric's value is within the bounds."""

    metric: str = Field(description="The other metric's name.")
    value: str | None = Field(default=None, description="Name of the value, if the other metric returns several.")
    position: int = Field(
        default=0, le=0, description="0: the same turn, message or call; -1: the one before it; and so on."
    )


class Metric(_SpecModel):
    """A metric of each conversation, turn, message or tool call, computed by a function or graded with a rubric."""

    name: Name = Field(default="", description="Name in results; default: the function's or rubric's name.")
    function: str | None = Field(
        default=None, description="A built-in metric, a function from `functions`, FILE.py#NAME or module:NAME."
    )
    rubric: str | None = Field(default=None, description="A rubric from `rubrics`, or a built-in one.")
    level: Level | None = Field(
        default=None,
        description="Unit that the metric measures; default: from the function's annotation or the rubric.",
    )
    role: Literal["user", "assistant", "system", "tool"] | None = Field(
        default=None, description="Only units of this role."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="More arguments of the function, by name.")
    when: list[Condition] = Field(default_factory=list, description="Compute only if all of these hold.")
    grader: str | None = Field(default=None, description="Label of the grader for the rubric; default: all graders.")
    votes: int = Field(default=1, ge=1, le=99, description="Number of times that the grader is asked about each unit.")
    expected: bool = Field(
        default=False,
        description="Also compute the expected score over the grader's choices, if it reports probabilities.",
    )
    seconds: float = Field(default=10.0, gt=0, le=3600, description="Time limit of the function per unit.")
    passes: Bounds | None = Field(default=None, description="Bounds that a value must meet for the test to pass.")
    label: str | None = Field(
        default=None, description="Metadata key of the right answer; adds precision, recall and F1 per class."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Metric:
        if (self.function is None) == (self.rubric is None):
            raise ValueError("give either `function: …` or `rubric: …`")
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
    """A question to the grader, with a score for each of its answers."""

    prompt: str = Field(
        min_length=1,
        description="May contain {conversation}, {context}, {completion}, {content}, {turn}, {input}, {system}, "
        "{user} and {tool_calls}.",
    )
    choice_scores: dict[Annotated[str, StringConstraints(min_length=1, max_length=80)], float] = Field(
        min_length=2, description="Possible answers of the grader, each with its score."
    )
    level: Level = Field(default="turn", description="Unit that one question is about.")
    answer: Literal["json", "line"] = Field(
        default="json", description="json: reasoning and choice as JSON fields; line: as the prompt asks."
    )
    notes: str = Field(default="", description="Notes for readers; not part of the prompt.")


class Threshold(_SpecModel):
    """A condition for the gate to pass: bounds on a figure, or on its change from the baseline."""

    metric: str = Field(description="Name of the metric, or NAME.KEY if it returns several values by name.")
    statistic: str = Field(
        default="mean",
        pattern=r"^(mean|median|min|max|sum|count|errors|p\d{1,2}(\.\d+)?|pass_rate|pass\^[1-9]\d*|f1|share:.+|f1:.+)$",
        description="mean, median, min, max, sum, p98 (any percentile), pass_rate, pass^5, share:CATEGORY, f1, "
        "f1:CLASS, errors (their share), count.",
    )
    role: str | None = Field(default=None, description="Only units of this role.")
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
            raise ValueError("is empty; give at_least, at_most, fall or rise")
        if (self.fall is not None or self.rise is not None) and self.statistic not in ("mean", "pass_rate"):
            raise ValueError("fall and rise compare means or pass rates; omit `statistic` or set it to pass_rate")
        return self

    @property
    def name(self) -> str:
        """Name in reports and test results."""
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
    """Budget of a run. Once it is used up, no new conversation starts; running ones finish."""

    cost: float | None = Field(default=None, gt=0, description="Cost, by the prices in the models' names.")
    calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)


class DialogPlay(_SpecModel):
    """Options of dialogs that are run again (`complete: dialog`)."""

    exchanges: int | None = Field(
        default=None, ge=1, description="Maximum number of the system's answers; default: as many as were recorded."
    )
    persona: str = Field(default="", description="Description of the user, for the interactor.")


class Suite(_SpecModel):
    """A suite file."""

    name: Name = Field(default="suite", description="Name of the suite in reports and test results.")
    conversations: list[FileName] = Field(min_length=1, description="Files of conversations; * and ** are wildcards.")
    complete: Literal["last", "dialog", "none"] = Field(
        default="last",
        description="last: the system answers the last user turn again; dialog: the whole dialog is run again; none: "
        "the recorded conversations are scored.",
    )
    system: str | dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="System under test: a model's name, {url: …} of an HTTP application, or several by label.",
    )
    interactor: str | None = Field(
        default=None, description="Model that plays the user (complete: dialog); default: the recorded user turns."
    )
    play: DialogPlay = Field(default_factory=DialogPlay)
    grader: str | dict[Name, str] | None = Field(
        default=None, description="Model that grades rubrics, or several by label; each grades every rubric."
    )
    scored: Literal["new", "all"] | None = Field(
        default=None, description="new: only messages of this run (default if a system answers); all: every message."
    )
    repeats: int = Field(default=1, ge=1, le=1000, description="Number of times that each conversation is tested.")
    functions: list[FileName] = Field(default_factory=list, description="Python files with functions for metrics.")
    rubrics: dict[Name, Rubric] | list[FileName] = Field(
        default_factory=dict, description="Rubrics by name, or YAML files of rubrics."
    )
    metrics: list[Metric] = Field(min_length=1)
    thresholds: list[Threshold] = Field(default_factory=list)
    baseline: FileName | None = Field(default=None, description="Baseline run folder for `fall` and `rise`.")
    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="Family-wise false-alarm rate of all comparisons with the baseline."
    )
    budget: SuiteBudget = Field(default_factory=SuiteBudget)
    temperature: float = Field(default=0.0, ge=0, description="Temperature of the system, if it takes one.")
    max_tokens: int = Field(default=1024, ge=1, description="Maximum tokens per answer of the system.")
    grader_tokens: int = Field(default=1024, ge=1, description="Maximum tokens per answer of a grader.")
    grader_temperature: float | None = Field(
        default=None, ge=0, description="Temperature of the graders; default: 0, or 1 with several votes."
    )
    seed: int = 7
    concurrency: int = Field(default=100, ge=1, description="Maximum number of conversations in flight.")

    @property
    def scores_all(self) -> bool:
        """True if messages from before this run are scored too."""
        return self.scored == "all" or (self.scored is None and self.complete == "none")
