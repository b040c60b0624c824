"""Export to Every Eval Ever: one aggregate per cell, and one line per score of a conversation.

File names follow that project's datastore: `data/SCENARIO_DATASET/DEVELOPER/MODEL/UUID.json` and
`UUID_samples.jsonl`. Files are checked against its published schemas.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from jsonschema import Draft7Validator

from viva.engine.backends.base import ModelSpec
from viva.engine.errors import ConfigurationError
from viva.engine.json_data import to_utf8_data
from viva.engine.messages import Message
from viva.engine.tools import ToolCall

from ..files import TransferResult, json_lines, safe_name, to_json, viva_version, write_json
from .conversations import CONFIDENCE, PERCENT, Conversation, ExportCell, read_arguments, read_conversations

SCHEMA_VERSION = "0.3.0"


@dataclass(slots=True, frozen=True)
class EvaluationIds:
    """Ids in an aggregate that each of its lines repeats: evaluation, model, and the evaluation's name."""

    evaluation: str
    model: str
    name: str


def lines_of(cell: ExportCell, conversation: Conversation, ids: EvaluationIds) -> Iterator[dict[str, Any]]:
    """Yield the lines of a conversation; none if it failed or has no score, because a line needs a number."""
    scores = {name: value for name, value in conversation.scores.items() if value is not None}
    if not scores or conversation.error is not None:
        return
    line = to_utf8_data(_base_line(cell, conversation, ids))
    for name, value in scores.items():
        evaluation = line["evaluation"] | {"score": value}
        metadata = line["metadata"] | to_utf8_data(_judge_details(conversation, name))
        result = {"evaluation_result_id": f"{cell.scenario.name}.{name}"}
        yield line | result | {"evaluation": evaluation, "metadata": metadata}


def _base_line(cell: ExportCell, conversation: Conversation, ids: EvaluationIds) -> dict[str, Any]:
    """Return the fields that all lines of a conversation share."""
    messages = [message for dialog in conversation.dialogs for message in dialog.messages]
    calls = sum(len(message.calls) for message in messages)
    turns = sum(message.role == "assistant" for message in messages)
    kind = "agentic" if calls else "multi_turn" if turns > 1 else "single_turn"
    answer = conversation.answer or next(iter(_likeliest_text(conversation, cell.compared)), "")
    last = max(len(messages) - 1, 0) if kind != "single_turn" else 0
    _, prompt_tokens, completion_tokens = conversation.usage().get(cell.compared, (0, 0, 0))
    digest = sha256((conversation.question + conversation.reference).encode("utf-8", "replace")).hexdigest()
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": ids.evaluation,
        "model_id": ids.model,
        "evaluation_name": ids.name,
        "sample_id": conversation.task if conversation.repeat == 1 else f"{conversation.task}#{conversation.repeat}",
        "sample_hash": digest,
        "interaction_type": kind,
        "input": {
            "raw": conversation.question,
            "reference": [conversation.reference] if conversation.reference else [],
            "choices": conversation.choices,
        },
        "output": {"raw": [answer]} if kind == "single_turn" else None,
        "messages": None if kind == "single_turn" else [_line_message(*pair) for pair in enumerate(messages)],
        "answer_attribution": [
            {
                "turn_idx": last,
                "source": "output.raw" if kind == "single_turn" else f"messages[{last}].content",
                "extracted_value": answer,
                "extraction_method": "custom" if cell.judge is None else "llm_judge",
                "is_terminal": True,
            }
        ],
        "evaluation": {"is_correct": bool(conversation.right), "num_turns": max(turns, 1), "tool_calls_count": calls},
        "token_usage": {
            "input_tokens": prompt_tokens,
            "output_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
        "performance": {"latency_ms": 1000 * conversation.latency(cell.compared)},
        "metadata": {"key": conversation.key, "end": conversation.end}
        | ({"judge": cell.judge_model} if cell.judge_model else {}),
    }


def _judge_details(conversation: Conversation, criterion: str) -> dict[str, str]:
    """Return the judge's comments on a criterion, and its scores per round with their standard deviation."""
    details = {} if (explanation := conversation.explained(criterion)) is None else {"explanation": explanation}
    aspect = criterion if any(criterion in turn.scores for turn in conversation.turns) else "overall"
    rounds = [turn.scores[aspect] for turn in conversation.turns if aspect in turn.scores]
    scored = [score for score in rounds if score is not None]
    if rounds:
        details["turn_scores"] = to_json(rounds).decode()
    if len(scored) > 1:
        details["turn_scores_sd"] = f"{statistics.stdev(scored):.6g}"
    return details


def _likeliest_text(conversation: Conversation, role: str) -> Iterator[str]:
    """Yield the most likely continuation of each rated text."""
    for exchange in conversation.exchanges:
        if exchange.role == role and exchange.reading is not None and exchange.completion is not None:
            likelihoods = exchange.completion.likelihoods or []
            best = max(range(len(likelihoods)), key=lambda index: likelihoods[index].total, default=None)
            if best is not None:
                yield exchange.reading.continuations[best].strip()


def _line_message(index: int, message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"turn_idx": index, "role": message.role, "content": message.content or None}
    if message.calls:
        record["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": _text_arguments(call)} for call in message.calls
        ]
    if message.role == "tool" and message.call_id:
        record["tool_call_id"] = [message.call_id]
    return record


def _text_arguments(call: ToolCall) -> dict[str, str]:
    """Return a call's arguments by name, as strings, because the schema requires this."""
    arguments = read_arguments(call)
    if not isinstance(arguments, dict):
        return {"": call.arguments}
    return {name: _to_text(value) for name, value in arguments.items()}


_CHECKED_LINES = 100  # lines per cell that are checked against the schema; further lines are built in the same way
_ENGINES = {"llama": ("llama.cpp", "llama-cpp-python"), "hf": ("transformers", "transformers")}
_PLATFORMS = ("openai", "anthropic", "gemini")


def export_every_eval(cells: Sequence[ExportCell], out: Path) -> TransferResult:
    """Write two files per cell below `out`, ready to be merged into that project's datastore.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    result = TransferResult()
    for cell in cells:
        model = model_info(cell.model)
        folder = Path("data", safe_name(f"{cell.scenario.name}_{cell.dataset}"), *_folders(model))
        uuid = _uuid(cell)
        lines = folder / f"{uuid}_samples.jsonl"
        now = repr(time.time())
        ids = EvaluationIds(
            f"{cell.dataset}/{model['id']}/{now}", model["id"], f"{cell.scenario.name} on {cell.dataset}"
        )
        rows, left_out = _write_lines(cell, ids, out / lines)
        aggregate = _aggregate(cell, ids, model, now)
        if rows:
            aggregate["detailed_evaluation_results"] = {
                "format": "jsonl",
                "file_path": lines.as_posix(),
                "hash_algorithm": "sha256",
                "checksum": _checksum(out / lines),
                "total_rows": rows,
            }
        else:  # remove a file without lines
            (out / lines).unlink()
        check_schema("eval", aggregate)
        write_json(out / folder / f"{uuid}.json", aggregate)
        result.files += [out / folder / f"{uuid}.json", *([out / lines] if rows else [])]
        result.records += rows
        if left_out:
            result.notes.append(f"{cell.name}: {left_out:,} conversations without a score were skipped")
    return result


def _write_lines(cell: ExportCell, ids: EvaluationIds, file: Path) -> tuple[int, int]:
    """Write the lines of a cell; return the number of lines, and the number of conversations without a line."""
    rows = left_out = 0
    with json_lines(file) as write:
        for conversation in read_conversations(cell):
            lines = list(lines_of(cell, conversation, ids))
            left_out += not lines
            for line in lines:
                if rows < _CHECKED_LINES:
                    check_schema("instance_level_eval", line)
                write(line)
                rows += 1
    return rows, left_out


def check_schema(schema: str, record: dict[str, Any]) -> None:
    """Check a record against a published schema."""
    error = next(_validator(schema).iter_errors(record), None)
    if error is not None:
        field = ".".join(map(str, error.absolute_path))
        raise ConfigurationError(f"{schema}.schema.json {SCHEMA_VERSION}: field '{field}': {error.message[:300]}")


@cache
def _validator(schema: str) -> Any:
    file = files("viva.exchange.exports") / "schemas" / f"{schema}.schema.json"
    return Draft7Validator(orjson.loads(file.read_bytes()))


def _aggregate(cell: ExportCell, ids: EvaluationIds, model: dict[str, Any], now: str) -> dict[str, Any]:
    record = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": ids.evaluation,
        "retrieved_timestamp": now,
        "source_metadata": {
            "source_name": "viva",
            "source_type": "evaluation_run",
            "source_organization_name": "unspecified",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "viva", "version": viva_version()},
        "model_info": model,
        "evaluation_results": list(_results(cell, ids)),
    }
    if cell.began is not None:
        record["evaluation_timestamp"] = repr(cell.began)
    data: dict[str, Any] = to_utf8_data(record)
    return data


def _results(cell: ExportCell, ids: EvaluationIds) -> Iterator[dict[str, Any]]:
    """Yield a result per criterion, then a result per figure of the run's report that has an interval or a count."""
    for criterion in cell.criteria.values():
        if criterion.mean is not None:
            figure: dict[str, Any] = {"value": criterion.mean.mean, "se": criterion.mean.se, "n": criterion.mean.n}
            figure |= {"low": None, "high": None}
            if criterion.interval is not None:
                figure |= {"low": criterion.interval.low, "high": criterion.interval.high}
            result = _result(cell, ids, criterion.name, figure)
            result["metric_config"] |= _judge_of(cell)
            result["score_details"]["details"] = {"unscored": str(criterion.unscored)}
            yield result
    for name, row in cell.uncertain_figures.items():
        yield _result(cell, ids, f"report.{name}", row)


def _result(cell: ExportCell, ids: EvaluationIds, name: str, figure: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "evaluation_description": f"{name}: {cell.scenario.summary}",
        "metric_id": f"{cell.scenario.name}.{name}",
        "metric_name": name,
        "lower_is_better": False,
        "score_type": "continuous",
        "min_score": "-Infinity",  # the scale is unknown
        "max_score": "Infinity",
    }
    if name in cell.ranges:
        low, high = cell.ranges[name]
        config |= {"min_score": low, "max_score": high}
        config |= {"metric_unit": "points"} if (low, high) == PERCENT else {}
    return {
        "evaluation_result_id": f"{cell.scenario.name}.{name}",
        "evaluation_name": ids.name,
        "source_data": _source(cell),
        "metric_config": config,
        "score_details": {"score": figure["value"], "uncertainty": _uncertainty(figure)},
        "generation_config": _generation(cell),
    }


def _uncertainty(figure: dict[str, Any]) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {} if figure["n"] is None else {"num_samples": int(figure["n"])}
    if figure["se"] is not None:
        uncertainty["standard_error"] = {"value": figure["se"], "method": "analytic"}
    if figure["low"] is not None and figure["high"] is not None:
        ends = {"lower": figure["low"], "upper": figure["high"]}
        uncertainty["confidence_interval"] = ends | {"confidence_level": CONFIDENCE, "method": "analytic"}
    return uncertainty


def _judge_of(cell: ExportCell) -> dict[str, Any]:
    """Return the judge of a criterion with its prompts, which are the whole recorded prompt pack."""
    if cell.judge_model is None:
        return {}
    judge: dict[str, Any] = {"model_info": model_info(cell.judge_model)}
    if (temperature := cell.manifest["settings"].get("temperature")) is not None:
        judge["temperature"] = float(temperature)
    return {"llm_scoring": {"judges": [judge], "input_prompt": cell.manifest.get("prompts") or ""}}


def _source(cell: ExportCell) -> dict[str, Any]:
    name = str(cell.manifest["settings"].get(cell.scenario.data) or "")
    dataset = cell.manifest["dataset"]
    details = {"digest": str(dataset["digest"]), "chosen": str(dataset["chosen"])}
    source: dict[str, Any] = {"dataset_name": cell.dataset, "source_type": "other", "additional_details": details}
    if name.startswith("hf:"):
        repository, _, split = name.removeprefix("hf:").partition(":")
        source |= {"source_type": "hf_dataset", "hf_repo": repository, "samples_number": int(dataset["chosen"])}
        source |= {"hf_split": split} if split else {}
    return source


def _generation(cell: ExportCell) -> dict[str, Any]:
    settings = cell.manifest["settings"]
    plan = {
        "name": cell.scenario.name,
        "steps": [],
        "config": {name: _to_text(value) for name, value in settings.items()},
    }
    arguments: dict[str, Any] = {"eval_plan": plan}
    if settings.get("temperature") is not None:
        arguments["temperature"] = settings["temperature"]
    if (limit := settings.get(f"{cell.compared}_tokens")) is not None:
        arguments["max_tokens"] = limit
    details = {"seed": str(cell.seed), "tier": str(cell.manifest["tier"]), "state": cell.state, "cell": cell.name}
    return {"generation_args": arguments, "additional_details": details}


def model_info(name: str) -> dict[str, Any]:
    """Return the schema's description of a model, derived from its name."""
    spec = ModelSpec.parse(name)
    details = {"deployment_type": "unknown", "model_availability": "unknown", "viva_model": name}
    slashed = spec.where if spec.kind == "hf" and "/" in spec.where else f"{spec.kind}/{spec.label}"
    info: dict[str, Any] = {"name": spec.label, "id": slashed, "additional_details": details}
    if spec.kind in _ENGINES:
        engine, package = _ENGINES[spec.kind]
        info["inference_engine"] = {"name": engine, "version": _version(package)}
        details |= {"deployment_type": "self_deployed", "model_availability": "open_weights"}
    elif spec.kind in _PLATFORMS and not spec.where.startswith("http"):
        info["inference_platform"] = spec.kind
        details["deployment_type"] = "externally_managed"
    return info


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _folders(model: dict[str, Any]) -> tuple[str, str]:
    developer, _, name = model["id"].partition("/")
    return _folder_name(safe_name(developer)), _folder_name(safe_name(name))


def _folder_name(name: str) -> str:
    return f"{name}_" if name.lower() == "data" else name


def _uuid(cell: ExportCell) -> UUID:
    """Return the cell's id, which is the same in every export."""
    identity = to_json([cell.manifest["settings"], cell.manifest["dataset"], cell.name, cell.began])
    return UUID(bytes=blake2b(identity, digest_size=16).digest(), version=4)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()


def _checksum(file: Path) -> str:
    digest = sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
