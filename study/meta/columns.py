"""Which fields of a file say what: ids, groups, systems, human ratings, judges' scores. Named, or found by their names.

What is found is told in the report, so that a wrong guess is seen. What never belongs here: values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from viva.engine.errors import DatasetError

_PLACES = {  # what a row is about, by the names that such fields have, the first found wins
    "item": ("id", "item", "item_id", "idx", "example_id", "question_id", "uid", "key"),
    "group": ("group", "source", "source_id", "doc_id", "document", "question_id", "dialog_id", "dialogue_id",
              "instruction", "prompt", "question", "input"),
    "system": ("system", "system_id", "model", "model_id", "candidate", "generator"),
    "turn": ("turn", "round"),
    "judge": ("judge", "evaluator", "judge_model"),
}  # fmt: skip
_ANNOTATOR = re.compile(r"(?:annotator|rater|human|expert|grader|labell?er|reviewer)s?[ _.-]?\d+", re.IGNORECASE)
_HUMAN = ("human", "humans", "human_score", "human_scores", "human_rating", "human_ratings", "human_label",
          "rating", "ratings", "gold", "label", "expert", "annotation", "annotations", "expert_annotations",
          "annotators")  # fmt: skip
_JUDGED = ("predict_scores", "prediction", "predictions", "predicted", "judge_score", "judge_scores", "judges",
           "metric", "metrics", "verdict", "auto", "evaluators")  # fmt: skip
_JUDGE_PREFIX = re.compile(r"(?:judge|pred|predicted|metric|auto)[_ -].+", re.IGNORECASE)
_BOTH = ("score", "scores")  # of people where there are others of judges, else of a judge
_NUMBERED = re.compile(r"(?P<family>.+?)\.(?P<number>\d+)(?:\.(?P<criterion>.+))?")


@dataclass(slots=True)
class Named:
    """The fields that a user names; None or empty where they are to be found. ``human``, ``score`` and ``annotator``
    may name one field or all fields of an object.
    """

    item: str | None = None
    group: str | None = None
    system: str | None = None
    turn: str | None = None
    judge: str | None = None
    human: Sequence[str] = ()
    annotator: Sequence[str] = ()
    score: Sequence[str] = ()

    def of_scores(self) -> Named:
        """The names for a file of scores whose ratings stand in another one."""
        return replace(self, human=(), annotator=())

    def of_people(self) -> Named:
        """The names for that other file."""
        return replace(self, score=(), judge=None)


@dataclass(slots=True)
class Columns:
    """``human`` has by criterion the fields of its annotators, ``scores`` by judge and criterion its field. The
    criterion is empty where a name tells none.
    """

    item: str | None = None
    group: str | None = None
    system: str | None = None
    turn: str | None = None
    judge: list[str] = field(default_factory=list)
    human: dict[str, list[str]] = field(default_factory=dict)
    scores: dict[tuple[str, str], str] = field(default_factory=dict)

    def told(self) -> str:
        """Which field says what, in one line."""
        parts = [f"{what} {name}" for what in ("item", "group", "system", "turn")
                 if (name := getattr(self, what)) is not None]  # fmt: skip
        parts += [f"judge {', '.join(self.judge)}"] if self.judge else []
        human = [name for names in self.human.values() for name in names]
        parts += [f"human ratings {_some(human)}"] if human else []
        parts += [f"scores {_some(list(self.scores.values()))}"] if self.scores else []
        return "; ".join(parts)


def find_columns(names: Iterable[str], named: Named, path: str, numeric: Collection[str] = ()) -> Columns:
    """The fields of a file that has these, ``numeric`` ones of them holding numbers alone.

    :raises DatasetError: a named field does not exist, or one is named as two things.
    """
    known = list(names)
    found = Columns()
    for what, candidates in _PLACES.items():
        given = getattr(named, what)
        if given is not None and given not in known and not (what == "judge" and _family(given, known)):
            raise _unknown(given, known, path)
        name = given or next((one for one in candidates if one in known), None)
        if what == "judge":
            texts = [one for one in known if one not in numeric]
            found.judge = [given] if given in known else _family(given, known) if given else _judge_field(texts)
        else:
            setattr(found, what, name)
    people = _chosen([*named.human, *named.annotator], known, path)
    judged = _chosen(named.score, known, path)
    places = {found.item, found.group, found.system, found.turn, *found.judge}
    if not named.human and not named.annotator:
        people = [one for one in known if one not in places and one not in judged and _is_human(one)]
        if not people and (judged or any(_is_judged(one) for one in known)):
            people = [one for one in known if _first(one) in _BOTH and one not in judged and one not in places]
    if not named.score:
        judged = [one for one in known if one not in places and one not in people and _is_judged(one)]
        if not judged:
            judged = [one for one in known if one not in places and one not in people
                      and (_first(one) in _BOTH or one in _PLACES["judge"])]  # fmt: skip
    if both := [one for one in judged if one in people]:
        raise DatasetError(
            "is named as a human rating and as a judge's score; name two fields", path=path, field=both[0]
        )
    found.human = _by_criterion(people)
    found.scores = _by_judge(judged, found.human)
    return found


def _chosen(wanted: Sequence[str], known: Sequence[str], path: str) -> list[str]:
    found = []
    for name in wanted:
        fields = [name] if name in known else _family(name, known)
        if not fields:
            raise _unknown(name, known, path)
        found += fields
    return list(dict.fromkeys(found))


def _unknown(name: str, known: Sequence[str], path: str) -> DatasetError:
    return DatasetError(f"no record has this field; there are: {_some(known, 30)}", path=path, field=name)


def _family(name: str, known: Iterable[str]) -> list[str]:
    """The fields of an object or a list."""
    return [one for one in known if one.startswith(f"{name}.")]


def _judge_field(known: Sequence[str]) -> list[str]:
    plain = next((name for name in _PLACES["judge"] if name in known), None)
    if plain is not None:
        return [plain]
    # A list, as MT-Bench has it: the model first, then the prompt that it was given.
    return [f"{family}.1" for family in _PLACES["judge"] if f"{family}.1" in known][:1]


def _first(name: str) -> str:
    return name.partition(".")[0].lower()


def _is_human(name: str) -> bool:
    return _first(name) in _HUMAN or _ANNOTATOR.fullmatch(name) is not None


def _is_judged(name: str) -> bool:
    return _first(name) in _JUDGED or _JUDGE_PREFIX.fullmatch(_first(name)) is not None


def _by_criterion(fields: Iterable[str]) -> dict[str, list[str]]:
    """``annotators.2`` and ``annotator2`` rate the one criterion without a name; ``expert.2.fluency`` and
    ``human.fluency`` rate fluency.
    """
    found: dict[str, list[str]] = {}
    for name in fields:
        numbered = _NUMBERED.fullmatch(name)
        criterion = (numbered["criterion"] or "") if numbered else name.partition(".")[2]
        found.setdefault(criterion, []).append(name)
    if "" in found and not all(_ANNOTATOR.fullmatch(name) or _NUMBERED.fullmatch(name) for name in found[""]):
        plain = found.pop("")  # several plain fields are criteria of their own
        if len(plain) == 1 and not found:
            return {"": plain}
        found |= {name: [name] for name in plain}
    return found


def _by_judge(fields: Iterable[str], human: Mapping[str, list[str]]) -> dict[tuple[str, str], str]:
    found = {}
    for name in fields:
        judge, _, criterion = name.rpartition(".")
        plain = not judge or criterion not in human
        found[(name, name if name in human else "") if plain else (judge, criterion)] = name
    return found


def _some(names: Sequence[str], most: int = 8) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
