"""Baselines beside a judge: text metrics against references, BERTScore, single-answer grading.

Source: Yu et al. 2024, section 4.3 and Appendix A: METEOR, ROUGE, BERTScore and MT-Bench's single-answer grading on the
    turns of interviews.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from viva.agents.assistants.text_metrics import METRICS, require_package
from viva.engine.errors import ConfigurationError, DatasetError, did_you_mean
from viva.scenarios.contract import RecordedReply

from .rating_sheet import Sheet

_FAMILIES = {"rouge": ("rouge-1", "rouge-2", "rouge-l")}
BERTSCORE, SINGLE = "bertscore", "single"
_EXTRA = "metrics"
_REFERENCES = ("reference", "references", "reference_text", "ref")
_OUTPUTS = ("system_output", "output", "response", "answer", "reply")
QUESTION, OUTPUT = "question", "output"  # fields of a run's turns

Scorer = Callable[[Sequence[str], Sequence[str]], list[float | None]]


def metric_names(texts: Iterable[str]) -> list[str]:
    """Parse lists of baselines such as `rouge,meteor`; families are expanded.

    Raises:
        ConfigurationError: if a baseline is unknown, or its package is not installed.
    """
    names: list[str] = []
    for name in (part.strip() for text in texts for part in text.split(",")):
        members = [*_FAMILIES.get(name, (name,))]
        if not all(
            member in METRICS or member == SINGLE or member.partition("=")[0] == BERTSCORE for member in members
        ):
            near = did_you_mean(name, [*_FAMILIES, *METRICS, f"{BERTSCORE}=MODEL", SINGLE], "known")
            raise ConfigurationError(f"--baselines: unknown baseline '{name}'{near}")
        names += members
    for name in dict.fromkeys(names):
        if name in METRICS:
            require_package(name, METRICS[name][2], _EXTRA)
        elif name.startswith(BERTSCORE):
            if not name.partition("=")[2]:
                raise ConfigurationError(f"--baselines {name}: name its model, a local folder: {BERTSCORE}=MODEL")
            require_package(BERTSCORE, "bert_score", BERTSCORE)
    return list(dict.fromkeys(names))


def attach_replies(sheet: Sheet, replies: Iterable[RecordedReply]) -> None:
    """Give the rows of a run's sheet their questions and answers.

    A turn gets its own reply. A whole conversation gets all replies except the first one, which precedes the turns; if
    there is only one reply, it gets that one.
    """
    by_conversation: dict[tuple[str, str], dict[int, RecordedReply]] = {}
    for reply in replies:
        by_conversation.setdefault((reply.item, reply.label), {})[reply.number] = reply
    for row in sheet.rows:
        by_number = by_conversation.get((row.item, row.system or ""), {})
        if row.turn is not None:
            chosen = [by_number[int(row.turn)]] if row.turn.isdecimal() and int(row.turn) in by_number else []
        else:
            chosen = [by_number[number] for number in sorted(by_number) if number] or list(by_number.values())
        if chosen:
            row.texts |= {QUESTION: chosen[0].question, OUTPUT: "\n".join(reply.reply for reply in chosen)}


def add_metrics(sheet: Sheet, names: Iterable[str], output: str | None = None, reference: str | None = None) -> None:
    """Add each metric as a separate judge, which scores all criteria at once.

    A row whose text cannot be scored stays unscored; a note counts such rows.

    Args:
        sheet: Rows to score.
        names: Names of baselines.
        output: Field of the text to score; default: found by its name.
        reference: Field of the reference; default: found by its name.

    Raises:
        ConfigurationError: if a field is missing; the message names it.
        DatasetError: if a row has no reference; the error names its line.
    """
    metrics = [name for name in names if name != SINGLE]
    if not metrics:
        return
    outputs, references = (
        _field_texts(sheet, output, _OUTPUTS, "output"),
        _field_texts(sheet, reference, _REFERENCES, "reference"),
    )
    for name in metrics:
        values = open_scorer(name)(outputs, references)
        for row, value in zip(sheet.rows, values, strict=True):
            row.scores[name.partition("=")[0], ""] = value
        if gaps := sum(value is None for value in values):
            sheet.notes.append(f"{name}: {gaps:,} of {len(values):,} texts could not be scored")
    if "meteor" in metrics:
        from viva.agents.assistants.text_metrics import has_wordnet

        if not has_wordnet():
            sheet.notes.append(
                "meteor: nltk has no WordNet here, so synonyms do not match and its figures are somewhat lower; "
                "`python -m nltk.downloader wordnet` downloads it"
            )


def open_scorer(name: str) -> Scorer:
    """Return the function of a baseline: scores of texts against references, None if one cannot be scored."""
    if name.startswith(BERTSCORE):
        return _bertscore(name.partition("=")[2])
    function = METRICS[name][1]

    def score(outputs: Sequence[str], references: Sequence[str]) -> list[float | None]:
        scores: list[float | None] = []
        for text, reference in zip(outputs, references, strict=True):
            try:
                scores.append(function(text, reference) if reference.strip() else None)
            except ValueError:  # no usable word in the reference
                scores.append(None)
        return scores

    return score


@cache
def _bertscore(model: str) -> Scorer:
    """Return BERTScore's F1 without idf weights or rescaling.

    The layer is bert-score's own choice for a model that it knows, else the last one.

    Source: Zhang et al. 2019.
    """
    from importlib import import_module

    library = import_module("bert_score")
    layer_counts = import_module("bert_score.utils").model2layers
    layers = layer_counts.get(model)
    if layers is None:
        layers = import_module("transformers").AutoConfig.from_pretrained(model).num_hidden_layers

    def score(outputs: Sequence[str], references: Sequence[str]) -> list[float | None]:
        usable = [
            at for at, pair in enumerate(zip(outputs, references, strict=True)) if all(text.strip() for text in pair)
        ]
        scores: list[float | None] = [None] * len(outputs)
        if usable:
            texts = [[texts[at] for at in usable] for texts in (outputs, references)]
            _, _, f1 = library.score(*texts, model_type=model, num_layers=layers, verbose=False)
            for at, value in zip(usable, f1.tolist(), strict=True):
                scores[at] = float(value)
        return scores

    return score


def grading_tasks(sheet: Sheet, output: str | None = None, question: str | None = None) -> list[dict[str, Any]]:
    """Return the rows with a question as tasks of single-answer grading; ids are the rows' numbers, from 0.

    Raises:
        ConfigurationError: if a field is missing; the message names it.
    """
    outputs = _field_texts(sheet, output, _OUTPUTS, "output")
    questions = _field_texts(sheet, question, (QUESTION, "source", "prompt", "instruction", "context"), QUESTION)
    return [
        {"id": str(at), "question": prompt, "answer": answer}
        for at, (prompt, answer) in enumerate(zip(questions, outputs, strict=True))
        if prompt.strip()
    ]


def add_grades(sheet: Sheet, grades: Mapping[str, Mapping[str, float | None]]) -> None:
    """Add the grades of single-answer grading, given by judge and by id of `grading_tasks`."""
    for label, by_task in grades.items():
        for at, row in enumerate(sheet.rows):
            row.scores[f"{SINGLE}: {label}", ""] = by_task.get(str(at))


def _field_texts(sheet: Sheet, field: str | None, candidates: Sequence[str], kind: str) -> list[str]:
    names = dict.fromkeys(name for row in sheet.rows for name in row.texts)
    name = field or next((candidate for candidate in candidates if candidate in names), None)
    if name is None or name not in names:
        problem = f"no field '{field}'" if field else f"no field with the {kind}s"
        add = f"add a field '{candidates[0]}' to the ratings"
        fields = ", ".join(list(names)[:20]) or "no texts at all"
        raise ConfigurationError(
            f"{sheet.source}: {problem} for --baselines; there are: {fields}; name it with --{kind}, or {add}"
        )
    for row in sheet.rows:
        if kind == "reference" and name not in row.texts:
            raise DatasetError("is missing", path=sheet.source, line=row.line, field=name)
    return [row.texts.get(name, "") for row in sheet.rows]
