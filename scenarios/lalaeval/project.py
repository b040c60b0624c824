"""Grading project: `project.yaml` with domains, dimensions, rubrics, graders and rules, and its folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from viva.engine.errors import ConfigurationError, did_you_mean
from viva.engine.permissions import check_names
from viva.engine.yaml_file import LineOf, parse_with_lines, read_text

from ..yaml_models import YamlModel, validate_yaml

Difficulty = Literal["simple", "intermediate", "difficult"]
DIFFICULTIES: tuple[Difficulty, ...] = ("simple", "intermediate", "difficult")
PER_DIMENSION = "each"  # in quotas: every dimension
Name = Annotated[str, Field(pattern=r"^[^/\s]([^/\n]*[^/\s])?$", description="a name without slashes")]
Counts = dict[Difficulty, Annotated[int, Field(ge=0)]]
T = TypeVar("T", "Domain", "Dimension")


class Domain(YamlModel):
    """Domain with the subdomains inside it. `priority`: None if the domain is not evaluated."""

    priority: str | None = Field(default=None, pattern=r"^P\d$", description="a priority from P0, the highest, to P9")
    about: str = ""
    parts: dict[Name, Domain] = {}  # noqa: RUF012


class Dimension(YamlModel):
    """Capability with its subdimensions, or a graded one with a rubric.

    `weight` is relative to its neighbours. `timely`: the rules on timeliness are shown to graders. `difficulty`
    describes its simple, intermediate and difficult questions.
    """

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    about: str = ""
    rubric: str | None = None
    principle: str | None = None
    timely: bool = True
    difficulty: dict[Difficulty, str] = {}  # noqa: RUF012
    parts: dict[Name, Dimension] = {}  # noqa: RUF012

    @model_validator(mode="after")
    def _graded_or_divided(self) -> Dimension:
        if bool(self.parts) == (self.rubric is not None):
            raise ValueError("rubric: a dimension has either a rubric or parts")
        return self


class ProjectGrader(YamlModel):
    """Grader of a project; an adjudicator also decides disputes, an admin also manages graders."""

    name: str = Field(pattern=r"\S", description="a name")
    role: Literal["grader", "adjudicator", "admin"] = "grader"


class Disputes(YamlModel):
    """Rules for disputes. Grades up to `wrong` count as wrong, others as right.

    `grader`: a grader disputes an answer if they are `alone` on their side, or if their grade is `apart` from the
    median of the others by at least `distance`. `question`: an answer is in dispute if `halves` of its graders are on
    either side, or if its grades `spread` over at least `distance`. `weights`: the weights of both rules in a
    question's dispute level. `models`: True if judge models' grades count like people's; else they open no dispute
    among people. A grader whose level is above `retrain` is listed for retraining; `review` is the number of questions
    listed for review.
    """

    wrong: float = 0.0
    grader: Literal["alone", "apart"] = "alone"
    question: Literal["halves", "spread"] = "halves"
    distance: float = Field(default=2.0, gt=0)
    weights: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.5, 0.5)
    models: bool = False
    retrain: float = Field(default=0.2, ge=0, le=1)
    review: int = Field(default=10, ge=0)

    @field_validator("weights")
    @classmethod
    def _of_one(cls, weights: tuple[float, float]) -> tuple[float, float]:
        if abs(sum(weights) - 1) > 1e-9:
            raise ValueError("expected two weights that sum to 1")
        return weights


class Training(YamlModel):
    """Deployment gate: graders need a consistency of `threshold` in the last trial round to grade in evaluations."""

    threshold: float = Field(default=0.7, ge=0, le=1)


class ProjectFile(YamlModel):
    """Project file.

    `plan`: planned numbers of questions by dimension and difficulty; `quota`: how many of them an evaluation draws, by
    dimension or for `each`. `gold`: gold questions per drawn question. `duplicates`: similarity (0–1) from which two
    questions are reported as near duplicates.
    """

    title: str = Field(pattern=r"\S", description="a title")
    about: str = ""
    domains: dict[Name, Domain] = Field(min_length=1)
    dimensions: dict[Name, Dimension] = Field(min_length=1)
    rubrics: dict[str, Annotated[dict[int, str], AfterValidator(lambda grades: _sorted_grades(grades))]] = Field(
        min_length=1
    )
    principles: dict[str, str] = {}  # noqa: RUF012
    timeliness: str = ""
    graders: list[Annotated[ProjectGrader, BeforeValidator(lambda value: _to_mapping(value))]] = []  # noqa: RUF012
    seed: int = 7
    overlap: int = Field(default=3, ge=1, le=100)
    gold: float = Field(default=0.0, ge=0, le=1)
    duplicates: float = Field(default=0.75, gt=0, le=1)
    disputes: Disputes = Disputes()
    training: Training = Training()
    plan: dict[str, Counts] = {}  # noqa: RUF012
    quota: dict[str, Counts] = {}  # noqa: RUF012

    @field_validator("graders")
    @classmethod
    def _each_once(cls, graders: list[ProjectGrader]) -> list[ProjectGrader]:
        names = [grader.name for grader in graders]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"'{name}' is listed twice")
        return graders


def _sorted_grades(grades: dict[int, str]) -> dict[int, str]:
    if len(grades) < 2 or not all(0 <= grade <= 9 and meaning.strip() for grade, meaning in grades.items()):
        raise ValueError("expected at least two grades, whole numbers from 0 to 9, each with its meaning")
    return dict(sorted(grades.items()))


def _to_mapping(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def read_project_file(path: Path) -> ProjectFile:
    """Return the project in a file.

    Raises:
        ConfigurationError: It cannot be read, or is not a project; the message names file, line and field.
    """
    value, line = parse_with_lines(read_text(path, "a project's file (YAML)"), str(path))
    if value is None:
        raise ConfigurationError(f"{path}:1: is empty; `viva grade init` writes an example")
    check_names(value, str(path), line=line)
    file = validate_yaml(ProjectFile, value, path, line)
    _check_names(file, path, line)
    return file


def walk_tree(tree: Mapping[str, T], before: Sequence[str] = ()) -> Iterator[tuple[tuple[str, ...], T]]:
    """Yield every entry of a tree with its path, parents first, in the file's order."""
    for name, entry in tree.items():
        path = (*before, name)
        yield path, entry
        yield from walk_tree(entry.parts, path)


def suggest(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message with a suggestion and the known names."""
    return did_you_mean(name, names, "there are").removeprefix("; ")


def _check_names(file: ProjectFile, path: Path, line: LineOf) -> None:
    """Check that all rubrics, principles and dimensions that are named exist."""
    for steps, entry in walk_tree(file.dimensions):
        at = _key_path("dimensions", steps)
        for kind, names in (("rubric", list(file.rubrics)), ("principle", list(file.principles))):
            name = getattr(entry, kind)
            if name is not None and name not in names:
                location = f"{path}:{line([*at, kind])}: {'.'.join(at)}.{kind}"
                raise ConfigurationError(f"{location}: there is no {kind} '{name}'; {suggest(name, names)}")
    graded = ["/".join(steps) for steps, entry in walk_tree(file.dimensions) if entry.rubric is not None]
    for kind, counts in (("plan", file.plan), ("quota", file.quota)):
        for name in counts:
            if name not in graded and (kind == "plan" or name != PER_DIMENSION):
                location = f"{path}:{line([kind, name])}: {kind}.{name}"
                raise ConfigurationError(f"{location}: there is no such dimension; {suggest(name, graded)}")
    if not any(entry.priority for _, entry in walk_tree(file.domains)):
        raise ConfigurationError(f"{path}:{line(['domains'])}: domains: none has a priority, so nothing is evaluated")


def _key_path(first: str, steps: Sequence[str]) -> list[str]:
    """Return the keys that lead to an entry of a tree."""
    return [first, *[step for name in steps for step in ("parts", name)][1:]]


PROJECT_FILE = "project.yaml"
BANK_FILE = "bank.sqlite"
ROUNDS_FOLDER = "rounds"


@dataclass(slots=True, frozen=True)
class GradedDimension:
    """Graded dimension.

    `weight` is its share of the whole (the sum is 1). `grades`: meaning of each grade, from the worst. `principle`:
    further instructions to graders, including timeliness.
    """

    path: str
    weight: float
    grades: Mapping[int, str]
    principle: str = ""
    about: str = ""
    difficulty: Mapping[Difficulty, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Project:
    """Project as read. `domains`: the priority of each by its path, empty if it is not evaluated."""

    folder: Path
    file: ProjectFile
    dimensions: Mapping[str, GradedDimension]
    domains: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> Project:
        """Open the project in a folder, or of its file.

        Raises:
            ConfigurationError: There is none, or its file is wrong.
        """
        file = path if path.suffix in (".yaml", ".yml") else path / PROJECT_FILE
        if not file.is_file():
            raise ConfigurationError(
                f"{path}: not a project: there is no {PROJECT_FILE}; `viva grade init {path}` writes one"
            )
        project_file = read_project_file(file)
        domains = {"/".join(steps): domain.priority or "" for steps, domain in walk_tree(project_file.domains)}
        return cls(file.parent, project_file, _graded_dimensions(project_file), domains)

    @property
    def bank(self) -> Path:
        """File of its question bank."""
        return self.folder / BANK_FILE

    def round(self, name: str) -> Path:
        """Return the folder of a round; a name that cannot be a folder's raises ConfigurationError."""
        if not name or name.startswith(".") or any(letter in name for letter in "/\\\0"):
            raise ConfigurationError(f"round '{name}': expected a plain name, such as 2026-06")
        return self.folder / ROUNDS_FOLDER / name

    def rounds(self) -> list[Path]:
        """Return the folders of its rounds, by name."""
        return sorted(path for path in (self.folder / ROUNDS_FOLDER).glob("*") if path.is_dir())

    def quota(self) -> dict[str, Counts]:
        """Return how many questions an evaluation draws, by dimension and difficulty; empty without a quota."""
        each = self.file.quota.get(PER_DIMENSION, {})
        quota = {path: {**each, **self.file.quota.get(path, {})} for path in self.dimensions}
        return {path: counts for path, counts in quota.items() if any(counts.values())}

    def rubric(self) -> dict[str, Any]:
        """Return the instructions to graders as plain data; any change makes a new version of the rubric."""
        return {
            path: {
                "grades": {str(grade): text for grade, text in dimension.grades.items()},
                "principle": dimension.principle,
            }
            for path, dimension in self.dimensions.items()
        }

    def rubric_digest(self) -> str:
        """Return 16 hex digits that identify the instructions to graders."""
        return short_digest(self.rubric())


def short_digest(value: Any) -> str:
    """Return 16 hex digits that identify plain data."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _graded_dimensions(file: ProjectFile) -> dict[str, GradedDimension]:
    dimensions: dict[str, GradedDimension] = {}

    def walk(tree: Mapping[str, Dimension], before: str, parent_weight: float) -> None:
        total = math.fsum(dimension.weight for dimension in tree.values())
        for name, dimension in tree.items():
            path, weight = before + name, parent_weight * dimension.weight / total
            if dimension.rubric is None:
                walk(dimension.parts, f"{path}/", weight)
                continue
            texts = [file.principles.get(dimension.principle or "", ""), file.timeliness if dimension.timely else ""]
            principle = "\n\n".join(text.strip() for text in texts if text.strip())
            dimensions[path] = GradedDimension(
                path, weight, file.rubrics[dimension.rubric], principle, dimension.about, dimension.difficulty
            )

    walk(file.dimensions, "", 1.0)
    return dimensions
