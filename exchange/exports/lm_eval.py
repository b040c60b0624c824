"""Export to lm-evaluation-harness: `results_DATE.json` and `samples_TASK_DATE.jsonl` per model.

Each criterion becomes a metric with the standard error over tasks. Figures of the run's report are added as
`report.NAME`, in their original units.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from viva.engine.backends.base import ModelSpec
from viva.engine.conversation_replay import Exchange
from viva.scenarios.contract import SCORE

from ..files import TransferResult, json_lines, safe_name, to_json, viva_version, write_json
from .conversations import Conversation, ExportCell, read_conversations

_NOT_IN_NAMES = re.compile(r"[\"<>:/|\\?*\[\]]+")  # characters that the harness replaces in model names
_FILTER = "none"  # the harness's name for an unfiltered answer


def export_lm_eval(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write a folder per model below `out`, with two files per cell."""
    result = TransferResult()
    for cell in cells:
        folder = out / _folder_name(cell.label)
        task = safe_name(f"{cell.scenario.name}_{cell.dataset}")
        date = _date(cell, folder)
        samples = folder / f"samples_{task}_{date}.jsonl"
        failed = 0
        with json_lines(samples) as write:
            for conversation in read_conversations(cell):
                if conversation.error is None:
                    write(_sample(cell, conversation))
                    result.records += 1
                else:
                    failed += 1
        results = folder / f"results_{date}.json"
        write_json(results, _results(cell, task))
        result.files += [results, samples]
        if failed:
            result.notes.append(f"{cell.name}: {failed:,} conversations failed and were skipped")
    return result


def _folder_name(label: str) -> str:
    """Return the harness's folder name for a model; never `..`, the parent folder."""
    name = _NOT_IN_NAMES.sub("__", label)
    return name if name.strip(".") else safe_name(name)


def _date(cell: ExportCell, folder: Path) -> str:
    """Return the run's start for file names, shifted if another cell of this model already has that time."""
    began = datetime.fromtimestamp(cell.began or 0, UTC).replace(tzinfo=None)
    while (folder / f"results_{(date := began.isoformat(timespec='microseconds').replace(':', '-'))}.json").exists():
        began += timedelta(microseconds=1)
    return date


def _results(cell: ExportCell, task: str) -> dict[str, Any]:
    figures: dict[str, Any] = {"alias": task, "name": task, "sample_len": cell.ended - cell.failed}
    for criterion in cell.criteria.values():
        if criterion.mean is not None:
            figures |= _metric(criterion.name, criterion.mean.mean, criterion.mean.se)
    only_reads = _only_reads(cell)
    if only_reads and (score := cell.criteria.get(SCORE)) is not None and score.mean is not None:
        error = None if score.mean.se is None else score.mean.se / 100
        figures |= _metric("acc", score.mean.mean / 100, error)  # a fraction, as in the harness's own tasks
    for name, row in cell.uncertain_figures.items():
        figures |= _metric(f"report.{name}", row["value"], row["se"])
    settings, spec = cell.manifest["settings"], ModelSpec.parse(cell.model)
    shots = settings.get("shots", 0)
    config = {
        "task": task,
        "dataset_path": cell.dataset,
        "output_type": "multiple_choice" if only_reads else "generate_until",
        "num_fewshot": shots,
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in cell.criteria],
        "metadata": {
            "version": viva_version(),
            "scenario": cell.scenario.name,
            "cell": cell.name,
            "judge": cell.judge_model,
        },
    }
    return {
        "results": {task: figures},
        "group_subtasks": {task: []},
        "configs": {task: config},
        "versions": {task: viva_version()},
        "n-shot": {task: shots},
        "higher_is_better": {task: dict.fromkeys(cell.criteria, True)},
        "n-samples": {task: {"original": cell.planned, "effective": cell.ended - cell.failed}},
        "config": {"model": spec.kind, "model_args": cell.model, "random_seed": cell.seed, "limit": None,
                   "gen_kwargs": {}, "viva": settings},
        "git_hash": None,
        "date": cell.began,
        "pretty_env_info": cell.manifest["versions"].get("platform"),
        "transformers_version": None,
        "lm_eval_version": f"none; exported by viva {viva_version()}",
        "upper_git_hash": None,
        "task_hashes": {},
        "model_source": spec.kind,
        "model_name": cell.label,
        "model_name_sanitized": _folder_name(cell.label),
        "system_instruction": None,
        "system_instruction_sha": None,
        "fewshot_as_multiturn": None,
        "chat_template": None,
        "chat_template_sha": None,
        "start_time": cell.began,
        "end_time": cell.finished,
        "total_evaluation_time_seconds": str((cell.finished or 0) - (cell.began or 0)),
    }  # fmt: skip


def _metric(name: str, value: float, error: float | None) -> dict[str, float | str]:
    return {f"{name},{_FILTER}": value, f"{name}_stderr,{_FILTER}": "N/A" if error is None else error}


def _only_reads(cell: ExportCell) -> bool:
    """Return True if the model only returned log-likelihoods, so that its conversations have no dialogs."""
    with closing(read_conversations(cell)) as conversations:
        first = next(conversations, None)
        return first is not None and not first.dialogs


def _sample(cell: ExportCell, conversation: Conversation) -> dict[str, Any]:
    arguments, answers = _requests_and_answers(conversation, cell.compared)
    target = conversation.reference
    values = {name: value for name, value in conversation.scores.items() if value is not None}
    if conversation.right is not None:  # the harness's names for generated answers and for likelihoods
        values["exact_match" if conversation.dialogs else "acc"] = float(conversation.right)
    doc = conversation.item if isinstance(conversation.item, dict) else {"task": conversation.item}
    transcript = [[message.to_openai() for message in dialog.messages] for dialog in conversation.dialogs]
    sample: dict[str, Any] = {
        "doc_id": conversation.number,
        "doc": {**doc, "viva_key": conversation.key, "viva_repeat": conversation.repeat},
        "target": target,
        "arguments": {f"gen_args_{request_index}": {f"arg_{index}": text for index, text in enumerate(texts)}
                      for request_index, texts in enumerate(arguments)},
        "resps": [[answer] for answer in answers],
        "filtered_resps": answers,
        "filter": _FILTER,
        "metrics": list(values),
        "doc_hash": _hash(to_json(doc, orjson.OPT_INDENT_2)),
        "prompt_hash": _hash((arguments[0][0] if arguments else "").encode("utf-8", "replace")),
        "target_hash": _hash(target.encode("utf-8", "replace")),
        "viva": {"end": conversation.end, "explanations": conversation.explanations, "transcript": transcript,
                 "turns": [{"turn": turn.turn, **turn.scores} for turn in conversation.turns]},
    }  # fmt: skip
    return sample | values


def _requests_and_answers(conversation: Conversation, role: str) -> tuple[list[list[str]], list[Any]]:
    """Return requests and answers of the compared model.

    For a rated text, these are each continuation and its log-probability; for a dialog, its messages as JSON and its
    last answer.
    """
    arguments: list[list[str]] = []
    answers: list[Any] = []
    for exchange in conversation.exchanges:
        if exchange.role == role and exchange.reading is not None:
            _reading_arguments(exchange, arguments, answers)
    for dialog in conversation.dialogs:
        request = to_json([message.to_openai() for message in dialog.messages[:-1]]).decode()
        arguments.append([request, "{}"])
        answers.append(dialog.messages[-1].content)
    return arguments, answers


def _reading_arguments(exchange: Exchange, arguments: list[list[str]], answers: list[Any]) -> None:
    reading, completion = exchange.reading, exchange.completion
    assert reading is not None
    assert completion is not None
    for text, likelihood in zip(reading.continuations, completion.likelihoods or [], strict=False):
        arguments.append([reading.shared + reading.context, text])
        answers.append([str(likelihood.total), str(likelihood.greedy)])


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()
