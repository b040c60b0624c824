"""Answers of a recorded run as questions for graders, and the grades back as files for other commands.

A question is a whole conversation, a round, or the judge's verdict on a round. The grades become human grades for
certifying a judge (an adjudicator's decision, else the mean or majority), or ratings with a column per grader.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from viva.engine import seeds
from viva.engine.errors import ConfigurationError
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.grading.human_grades import GradedAnswers, name_cell, read_graded_answers, read_grades
from viva.orchestration.launch import recorded_settings
from viva.orchestration.transcripts import Transcripts
from viva.reports.spreadsheet import write_table
from viva.scenarios.contract import JudgeGrade, grade_reader
from viva.scenarios.models import label_of_key, lineup_labels
from viva.scenarios.rendering import RecordedConversation, RenderedTurn

from .records import Answer, Label, Question, Turn
from .store import GradeStore

Unit = Literal["conversations", "rounds", "verdicts"]
AnswerKey = tuple[str, str, int | None]  # (candidate, key, round)
_HIDDEN_ROLES = ("judging", "step")
_SCALE_STEPS = 5  # number of grades if the judge's scale has too many whole numbers
_MAX_LABELS = 11
_GENERAL_LABELS = [
    Label(0, "wrong"),
    Label(1, "partly right"),
    Label(2, "right"),
    Label(3, "right, and more than was asked"),
]
_PASS_LABELS = [Label(0, "fail"), Label(1, "pass")]
_VERDICT_LABELS = [Label(0, "the verdict is wrong"), Label(1, "the verdict is right")]


@dataclass(slots=True)
class Selection:
    """Answers to be graded, with the selection probability of each answer of the run.

    `probabilities` is empty if all answers are graded. `grades` are people's earlier grades.
    """

    keys: set[AnswerKey]
    probabilities: dict[AnswerKey, float] = field(default_factory=dict)
    grades: dict[AnswerKey, float] = field(default_factory=dict)


def gradable_answers(source: Path, unit: Unit) -> GradedAnswers:
    """Return what can be graded in a run: the answers that its judge was asked about, else every finished conversation.

    Raises:
        ConfigurationError: The folder is not a run, has no rounds, or no readable verdicts.
    """
    folder = RunFolder.open(source)
    scenario, settings = recorded_settings(folder)
    rounds = unit != "conversations"
    if grade_reader(scenario, settings, by_round=rounds) is not None:
        graded = read_graded_answers(
            source, by_round=rounds, purpose="choice of what is graded", need_scores=unit == "verdicts"
        )
        if graded.answers:
            return graded
    if rounds:
        raise ConfigurationError(f"{source}: a run of {scenario.name} has no graded rounds; grade its conversations")
    labels = lineup_labels(scenario.roles_of(settings), folder.manifest)
    answers = []
    with History(folder.journal) as history:
        for ended in history.ended():
            if not ended.failed:
                label = label_of_key(ended.key, labels)
                answers.append(JudgeGrade(ended.key, label, ended.key.removeprefix(f"{label}/"), None))
    if not answers:
        raise ConfigurationError(f"{source}: no conversation of this run has finished")
    return GradedAnswers(source, answers, 0.0, 3.0, False, False)


def sample_answers(answers: GradedAnswers, count: int, seed: int) -> Selection:
    """Select `count` answers with equal probability, by a hash of the seed and their names.

    Raises:
        ConfigurationError: There are fewer answers.
    """
    keys = [answer_key(answer) for answer in answers.answers]
    if not 1 <= count <= len(keys):
        raise ConfigurationError(f"-n {count}: {answers.source} has {len(keys)} answers; ask for 1 to {len(keys)}")
    ranked = sorted(keys, key=lambda key: seeds.uniform(seed, "graded", *key))
    return Selection(set(ranked[:count]), dict.fromkeys(keys, count / len(keys)))


def answer_key(answer: JudgeGrade) -> AnswerKey:
    """Return the identity of an answer within a run."""
    return answer.candidate, answer.key, answer.round


def labels_for(answers: GradedAnswers, unit: Unit) -> list[Label]:
    """Return the permitted grades: the judge's own scale, in whole numbers if these are few, else in five steps.

    Answers without a judge's scale get the general scale from 0 to 3.
    """
    if unit == "verdicts":
        return list(_VERDICT_LABELS)
    if answers.passes:
        return list(_PASS_LABELS)
    low, high = answers.low, answers.high
    if not math.isfinite(high - low) or not any(answer.score is not None for answer in answers.answers):
        return list(_GENERAL_LABELS)
    if low == int(low) and high == int(high) and high - low < _MAX_LABELS:
        values = [float(value) for value in range(int(low), int(high) + 1)]
    else:
        values = [low + (high - low) * step / (_SCALE_STEPS - 1) for step in range(_SCALE_STEPS)]
    words = {values[0]: "worst", values[-1]: "best"}
    return [Label(value, words.get(value, "")) for value in values]


def make_questions(
    source: Path, answers: GradedAnswers, unit: Unit, chosen: Selection | None, *, overlap: int, labels: Sequence[Label]
) -> list[Question]:
    """Return the chosen answers of a run (all of them if `chosen` is None) as questions, in the order of the run.

    Raises:
        ConfigurationError: A chosen answer cannot be shown; the message says why.
    """
    folder = RunFolder.open(source)
    answers_by_key: dict[str, list[JudgeGrade]] = {}
    for grade in answers.answers:
        if chosen is None or answer_key(grade) in chosen.keys:
            answers_by_key.setdefault(grade.key, []).append(grade)
    conversations = _TurnReader(folder)
    to_questions = _round_questions if unit != "conversations" else _conversation_questions
    questions: dict[str, Question] = {}
    answered = False
    with History(folder.journal) as history:
        numbers = history.keys()
        results = {ended.key: ended.result for ended in history.ended() if ended.key in answers_by_key}
        for key, graded in answers_by_key.items():
            turns = conversations.turns(history, numbers[key], results[key])
            answered = answered or has_answer(turns)
            for name, question in to_questions(graded, turns, unit):
                existing = questions.get(name)
                if existing is None:
                    questions[name] = question
                    question.id, question.labels, question.overlap = name, list(labels), overlap
                else:
                    existing.answers += question.answers
    if questions and not answered:
        raise ConfigurationError(
            f"{source}: no answer to grade: in these conversations the models have only read texts, written none"
        )
    for question in questions.values():
        for answer in question.answers:
            answer_id = answer.candidate, answer.key, answer.round
            answer.probability = None if chosen is None else chosen.probabilities.get(answer_id)
    return list(questions.values())


def has_answer(turns: Iterable[RenderedTurn]) -> bool:
    """Return False if all that compared models have done is to read given texts; an empty answer is one, too."""
    compared = [turn for turn in turns if turn.side == "compared"]
    return not compared or any(turn.call is None or turn.call.reading is None for turn in compared)


class _TurnReader:
    """Reader of the turns of a run's conversations as its scenario renders them."""

    def __init__(self, folder: RunFolder) -> None:
        self._scenario, _ = recorded_settings(folder)
        self._transcripts = Transcripts(folder)

    def turns(self, history: History, number: int, result: Any) -> list[RenderedTurn]:
        rerun = asyncio.run(self._transcripts.replay(history, number))
        _, task = history.started(number) or ("", None)
        recorded = RecordedConversation(rerun.lines, rerun.unanswered, task, result)
        return self._scenario.render_conversation(recorded).turns


def _conversation_questions(
    graded: list[JudgeGrade], turns: list[RenderedTurn], unit: Unit
) -> Iterator[tuple[str, Question]]:
    """Yield each conversation as a question: the turns before the candidate's first turn, then its answer."""
    visible = [turn for turn in turns if turn.side not in _HIDDEN_ROLES]
    first = next((index for index, turn in enumerate(visible) if turn.side == "compared"), len(visible))
    before, after = visible[:first], visible[first:]
    while after and after[-1].side == "given":  # the ending reveals the judge's opinion
        after.pop()
    for grade in graded:
        name = grade.key.removeprefix(f"{grade.candidate}/")
        answer = Answer(grade.candidate, _to_turns(after), grade.key, grade.round, grade.score)
        yield name, _make_question(before, grade, answer)


def _round_questions(graded: list[JudgeGrade], turns: list[RenderedTurn], unit: Unit) -> Iterator[tuple[str, Question]]:
    """Yield each round as a question after the earlier conversation; the answer is the reply or the verdict."""
    for grade in graded:
        round_turns = [turn for turn in turns if turn.round == grade.round]
        earlier = (
            [turn for turn in turns[: turns.index(round_turns[0])] if turn.side not in _HIDDEN_ROLES]
            if round_turns
            else []
        )
        replies = [turn for turn in round_turns if turn.side == "compared"]
        question_turns = [turn for turn in round_turns if turn.side not in (*_HIDDEN_ROLES, "compared")]
        if unit == "verdicts":
            answer_turns = _verdict_turns(round_turns)
            question_turns += replies
        else:
            answer_turns = _to_turns(replies)
        answer = Answer(grade.candidate, answer_turns or [Turn("answer", "")], grade.key, grade.round, grade.score)
        # The conversation's key names the candidate, so graders may not see it.
        token = hashlib.blake2b(grade.key.encode(), digest_size=4).hexdigest()
        item = grade.key.removeprefix(f"{grade.candidate}/")
        yield f"{item} round {grade.round} ({token})", _make_question([*earlier, *question_turns], grade, answer)


def _make_question(before: list[RenderedTurn], grade: JudgeGrade, answer: Answer) -> Question:
    context = _to_turns(before)
    text = context.pop().text if context else ""
    return Question("", text, [], [answer], context=context, cluster=grade.cluster)


def _to_turns(turns: Iterable[RenderedTurn]) -> list[Turn]:
    return [Turn(turn.speaker, text) for turn in turns if (text := _turn_text(turn))]


def _turn_text(turn: RenderedTurn) -> str:
    calls = [f"`{tool.name}({tool.arguments})`" for tool in turn.tools]
    return "\n\n".join([*([turn.text] if turn.text else []), *calls])


def _verdict_turns(turns: Iterable[RenderedTurn]) -> list[Turn]:
    """Return the judge's output for a round: its scores, which are attached to the reply, and its text."""
    verdict: list[Turn] = []
    for turn in turns:
        marks = [f"{mark.name}: {mark.value}" + (f" – {mark.comment}" if mark.comment else "") for mark in turn.marks]
        if turn.side == "compared" and marks:
            verdict.append(Turn("scores", "\n".join(f"- {mark}" for mark in marks)))
        elif turn.side == "judging" and turn.text:
            verdict.append(Turn("judge", turn.text))
    return verdict


_META_ROWS = "rows"


def read_selection(path: Path, answers: GradedAnswers) -> Selection:
    """Return the answers in a list of `viva judge certify --select`, with all probabilities.

    Raises:
        DatasetError: A line of the list is wrong; the message names it.
        ConfigurationError: Every chosen answer has a grade.
    """
    grades = read_grades(path, answers, unfinished=True)
    keys = {index: answer_key(answer) for index, answer in enumerate(answers.answers)}
    selected = {keys[index] for index in grades.chosen if index not in grades.grades}
    if not selected:
        raise ConfigurationError(
            f"{path}: no answers remain to be graded; select more with viva judge certify --select"
        )
    return Selection(
        selected,
        {keys[index]: probability for index, probability in grades.probabilities.items()},
        {keys[index]: grade for index, grade in grades.grades.items()},
    )


def answer_texts(answers: GradedAnswers, positions: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Return (question, answer) as graders may see them, by position of a run's answer; empty for a file of scores.

    Raises:
        ConfigurationError: A conversation cannot be shown; the message says why.
    """
    if not answers.source.is_dir():
        return {}
    indices = {answer_key(answers.answers[index]): index for index in positions}
    unit: Unit = "rounds" if answers.rounds else "conversations"
    texts: dict[int, tuple[str, str]] = {}
    for question in make_questions(answers.source, answers, unit, Selection(set(indices)), overlap=1, labels=()):
        question_text = "\n\n".join([*(f"{turn.role}: {turn.text}" for turn in question.context), question.text])
        for answer in question.answers:
            turns = [turn.text if len(answer.turns) == 1 else f"{turn.role}: {turn.text}" for turn in answer.turns]
            texts[indices[answer.candidate, answer.key, answer.round]] = question_text, "\n\n".join(turns)
    return texts


def store_run_rows(store: GradeStore, answers: GradedAnswers, chosen: Selection | None) -> None:
    """Store in a grading folder the data with which its grades can later be written for the run."""
    rows = []
    for answer in answers.answers:
        key = answer_key(answer)
        is_selected = chosen is None or key in chosen.keys
        probability = None if chosen is None else chosen.probabilities.get(key)
        rows.append([*key, answer.score, probability, is_selected, None if chosen is None else chosen.grades.get(key)])
    store.set_meta(_META_ROWS, {"passes": answers.passes, "rounds": answers.rounds, "rows": rows})


def write_labels(store: GradeStore, path: Path) -> tuple[int, int]:
    """Write people's grades for `viva judge certify`; return the numbers of graded and waiting answers.

    An answer's grade is its earlier one (`Selection.grades`), else the adjudicator's, else the mean of the graders'
    grades; for pass and fail, the majority's grade, and no grade if there is a tie.

    Raises:
        ConfigurationError: The folder's questions do not come from a run, or the file cannot be written.
    """
    recorded = store.meta(_META_ROWS)
    if recorded is None:
        raise ConfigurationError(
            f"{store.folder}: its questions do not come from a run, so there is nothing to certify"
        )
    grades = _grades_by_answer(store)
    columns = [
        "key",
        *(["round"] if recorded["rounds"] else []),
        "candidate",
        "score",
        "probability",
        "chosen",
        "grade",
    ]
    lines: list[list[str]] = []
    graded_count = waiting_count = 0
    for candidate, key, round_, score, probability, is_selected, before in recorded["rows"]:
        grade = (
            before
            if before is not None
            else _combine_grades(grades.get((candidate, key, round_), []), recorded["passes"])
        )
        graded_count += grade is not None
        waiting_count += is_selected and grade is None
        if probability is None and grade is None:
            continue
        cells = [
            name_cell(key),
            *([str(round_)] if recorded["rounds"] else []),
            name_cell(candidate),
            _grade_cell(score, recorded["passes"]),
        ]
        is_chosen = "yes" if is_selected or before is not None else "no"
        lines.append(
            [
                *cells,
                "" if probability is None else repr(probability),
                is_chosen,
                _grade_cell(grade, recorded["passes"]),
            ]
        )
    write_table(path, columns, lines)
    return graded_count, waiting_count


def write_ratings(store: GradeStore, path: Path) -> int:
    """Write each grader's grades as a column for `viva judge compare`; return the number of rows.

    Raises:
        ConfigurationError: Nobody has graded, or the file cannot be written.
    """
    recorded = store.meta(_META_ROWS)
    people = [grader for grader in store.graders() if grader.kind == "person"]
    values: dict[tuple[str, int], float] = {
        (grade.answer, grade.grader): grade.value
        for grade in store.grades()
        if grade.value is not None and not grade.invalid
    }
    voices = [person for person in people if any(number == person.number for _, number in values)]
    if not voices:
        raise ConfigurationError(f"{store.folder}: nobody has graded yet")
    rounds = recorded is not None and recorded["rounds"]
    columns = ["item", "system", *(["turn"] if rounds else []), *(f"grader {person.number}" for person in voices)]
    lines: list[list[str]] = []
    for question, answer in _valid_answers(store):
        cells = [_format_number(values.get((answer.id, person.number))) for person in voices]
        if any(cells):
            item = answer.key.removeprefix(f"{answer.candidate}/") if answer.key else question.id
            lines.append(
                [name_cell(item), name_cell(answer.candidate), *([str(answer.round)] if rounds else []), *cells]
            )
    write_table(path, columns, lines)
    return len(lines)


def _valid_answers(store: GradeStore) -> Sequence[tuple[Question, Answer]]:
    return [(question, answer) for question in store.questions() if not question.invalid for answer in question.answers]


def _grades_by_answer(store: GradeStore) -> dict[AnswerKey, list[float]]:
    """Return people's grades of each answer; if an adjudicator has decided, only the adjudicator's grade."""
    people = {grader.number for grader in store.graders() if grader.kind == "person"}
    by_answer: dict[str, list[float]] = {}
    for grade in store.grades():
        if grade.grader in people and grade.value is not None and not grade.invalid:
            by_answer.setdefault(grade.answer, []).append(grade.value)
    by_answer |= {name: [decision.value] for name, decision in store.decisions().items()}
    return {
        (answer.candidate, answer.key, answer.round): by_answer.get(answer.id, [])
        for _, answer in _valid_answers(store)
    }


def _combine_grades(values: Sequence[float], passes: bool) -> float | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    if not passes:
        return mean
    return None if mean == 0.5 else float(mean > 0.5)


def _grade_cell(value: Any, passes: bool) -> str:
    if value is None:
        return ""
    return ("pass" if value else "fail") if passes else _format_number(value)


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return repr(int(value)) if value == int(value) else repr(value)
