"""Result files of a suite for other programs: SQLite, CSV, Parquet, JSON lines, and JUnit XML."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

import orjson

from viva.engine.errors import ConfigurationError
from viva.engine.files import write_atomically
from viva.engine.journal_reader import History
from viva.engine.run_folder import RunFolder
from viva.reports.tables import escape_controls, spreadsheet_cell

from ..models import label_of_key
from .conversation_files import DialogTasks
from .dialog import Dialog, message_from_record

if TYPE_CHECKING:
    from .suite_report import SuiteAggregate

RESULTS_FILE = "results.sqlite"
TABLE_COLUMNS: dict[str, dict[str, str]] = {
    "conversations": {
        "key": "TEXT",  # CANDIDATE/CONVERSATION, and #REPEAT from the second repeat on
        "conversation": "TEXT",
        "candidate": "TEXT",
        "repeat": "INTEGER",
        "status": "TEXT",  # finished, failed, stopped, untested
        "reason": "TEXT",
        "passed": "INTEGER",  # NULL if no metric has `passes`, or a value is an error
        "messages": "INTEGER",
        "metadata": "TEXT",  # JSON
    },
    "turns": {"key": "TEXT", "turn": "INTEGER", "role": "TEXT", "text": "TEXT", "new": "INTEGER"},
    "messages": {
        "key": "TEXT",
        "message": "INTEGER",
        "turn": "INTEGER",
        "role": "TEXT",
        "content": "TEXT",
        "new": "INTEGER",  # written in this run
        "latency": "REAL",  # seconds
        "prompt_tokens": "INTEGER",
        "completion_tokens": "INTEGER",
        "metadata": "TEXT",
    },
    "tool_calls": {
        "key": "TEXT",
        "tool_call": "INTEGER",
        "message": "INTEGER",
        "name": "TEXT",
        "arguments": "TEXT",
        "result": "TEXT",
    },
    "metrics": {
        "key": "TEXT",
        "metric": "TEXT",
        "level": "TEXT",
        "unit": "INTEGER",  # index of the turn, message or tool call
        "role": "TEXT",
        "value": "REAL",
        "category": "TEXT",
        "reasoning": "TEXT",
        "label": "TEXT",
        "error": "TEXT",
    },
}
_Row = dict[str, Any]
_BATCH_ROWS = 1_000


def write_results(path: Path) -> Path:
    """Write `results.sqlite` into a run folder and return its path.

    Raises:
        ConfigurationError: The folder is not a run of a suite, or the file cannot be written.
        JournalError: The journal cannot be read.
    """
    target = path / RESULTS_FILE
    part = target.with_name(f".{RESULTS_FILE}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(part)) as database:
            database.execute("PRAGMA synchronous=OFF")
            for table, columns in TABLE_COLUMNS.items():
                database.execute(
                    f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns.items())})"
                )
            pending: dict[str, list[list[Any]]] = {table: [] for table in TABLE_COLUMNS}
            for table, row in result_rows(path):
                rows = pending[table]
                rows.append([row.get(name) for name in TABLE_COLUMNS[table]])
                if len(rows) == _BATCH_ROWS:
                    _insert_rows(database, table, rows)
            for table, rows in pending.items():
                _insert_rows(database, table, rows)
                database.execute(f"CREATE INDEX {table}_key ON {table} (key)")
            database.commit()
        part.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"{target}: cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _insert_rows(database: sqlite3.Connection, table: str, rows: list[list[Any]]) -> None:
    database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(TABLE_COLUMNS[table]))})", rows)
    rows.clear()


def result_rows(path: Path) -> Iterator[tuple[str, _Row]]:
    """Yield every row of a run's results with the name of its table, in run order."""
    folder = RunFolder.open(path)
    if "suite" not in folder.manifest:
        raise ConfigurationError(f"{path}: not a run of a suite")
    labels = list(folder.manifest["models"]["candidate"])
    with History(folder.journal) as history:
        for ended in history.ended():
            label = label_of_key(ended.key, labels)
            yield from _conversation_row(ended.key, label, ended.item, ended.result, failed=ended.failed)
    yield from (("conversations", row) for _, row in missing_tests(path))


def missing_tests(path: Path) -> list[tuple[str, _Row]]:
    """Return (key, `conversations` row) of tests that have not run, in order; empty if the run's files are missing."""
    folder = RunFolder.open(path)
    manifest = folder.manifest
    labels, repeats = list(manifest["models"]["candidate"]), manifest["settings"]["repeats"]
    if manifest["settings"].get("watched") is not None:
        return []
    with History(folder.journal) as history:
        if len(history.ended_numbers()) == manifest["dataset"]["chosen"] * len(labels) * repeats:
            return []
        ended = {record.key for record in history.ended()}
    try:
        tasks = DialogTasks([Path(file) for file in manifest["dataset"]["files"]], manifest["settings"]["n"])
    except ConfigurationError:
        return []
    missing = []
    for task in tasks:
        for label in labels:
            for repeat in range(1, repeats + 1):
                key = f"{label}/{task.id}" + (f"#{repeat}" if repeat > 1 else "")
                if key not in ended:
                    row = {"key": key, "conversation": task.id, "candidate": label, "repeat": repeat}
                    missing.append((key, row | {"status": "untested"}))
    return missing


def _conversation_row(
    key: str, label: str, item: Any, result: Mapping[str, Any], *, failed: bool
) -> Iterator[tuple[str, _Row]]:
    name = key.removeprefix(f"{label}/")
    id_ = str((item or {}).get("id", name))
    repeat = name.removeprefix(id_).removeprefix("#")
    row: _Row = {"key": key, "conversation": id_, "candidate": label, "repeat": int(repeat or 1)}
    recorded = None if item is None or "problem" in item else Dialog.from_record(item)
    if failed:
        row |= {"status": "failed", "reason": f"{result['type']}: {result['message']}"}
    elif "stopped" in result:
        row |= {"status": "stopped", "reason": f"{result['stopped']['by']}: {result['stopped']['reason']}"}
    else:
        row |= {"status": "finished", "reason": None, "passed": result.get("passed")}
    dialog = recorded
    if recorded is not None and not failed and "said" in result:
        kept_messages = recorded.messages[: result["kept"]]
        dialog = Dialog.from_messages(
            recorded.id, [*kept_messages, *map(message_from_record, result["said"])], recorded.metadata
        )
    row |= {"messages": 0 if dialog is None else len(dialog.messages)}
    row["metadata"] = None if dialog is None else _json(dialog.metadata)
    yield "conversations", row
    if dialog is not None:
        yield from _dialog_rows(key, dialog)
    if not failed and "metrics" in result:
        yield from _metric_rows(key, result)


def _dialog_rows(key: str, dialog: Dialog) -> Iterator[tuple[str, _Row]]:
    for turn in dialog.turns:
        yield "turns", {"key": key, "turn": turn.index, "role": turn.role, "text": turn.text, "new": int(turn.new)}
    for message in dialog.messages:
        yield (
            "messages",
            {
                "key": key,
                "message": message.index,
                "turn": message.turn,
                "role": message.role,
                "content": message.content,
                "new": int(message.new),
                "latency": message.latency,
                "prompt_tokens": message.tokens.get("prompt"),
                "completion_tokens": message.tokens.get("completion"),
                "metadata": _json(message.metadata) if message.metadata else None,
            },
        )
    for call in dialog.tool_calls:
        call_fields = {"name": call.name, "arguments": call.arguments, "result": call.result}
        yield "tool_calls", {"key": key, "tool_call": call.index, "message": call.message, **call_fields}


def _metric_rows(key: str, result: Mapping[str, Any]) -> Iterator[tuple[str, _Row]]:
    for name, metric in result["metrics"].items():
        roles = result["roles"].get(metric["level"], ())
        labels = dict(result["labels"].get(name, ()))
        for unit, value in metric["values"]:
            row = {
                "key": key,
                "level": metric["level"],
                "unit": unit,
                "role": roles[unit] if unit < len(roles) else None,
            }
            yield from (("metrics", row | part) for part in _value_rows(name, value, labels.get(unit)))
        for unit, kind, message, *_ in metric["errors"]:
            row = {"key": key, "metric": name, "level": metric["level"], "unit": unit}
            yield "metrics", row | {"role": roles[unit] if unit is not None and unit < len(roles) else None,
                                    "error": f"{kind}: {message}"}  # fmt: skip


def _value_rows(name: str, value: Any, label: str | None) -> Iterator[_Row]:
    """Yield a value's rows: one, or one per name of several values."""
    if isinstance(value, Mapping) and "choice" in value:
        row = {"metric": name, "value": value["score"], "category": value["choice"], "label": label}
        yield row | {"reasoning": value["reasoning"]}
        if "expected" in value:
            yield {"metric": f"{name}.expected", "value": value["expected"]}
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _value_rows(f"{name}.{key}", part, None)
    elif isinstance(value, str):
        yield {"metric": name, "category": value, "label": label}
    elif value is not None:
        yield {"metric": name, "value": float(value), "label": label}


def export_tables(path: Path, target: Path, kind: str) -> list[Path]:
    """Write a run's `results.sqlite`, and its tables as files of a `kind`, csv, parquet or json (lines), to `target`.

    Returns:
        The files in `target`.

    Raises:
        ConfigurationError: A file cannot be written, or pyarrow is not installed.
    """
    database = write_results(path)
    files = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(database)) as connection:
            for table, columns in TABLE_COLUMNS.items():
                file = target / f"{table}.{'jsonl' if kind == 'json' else kind}"
                _write_table(connection.execute(f"SELECT * FROM {table}"), list(columns), columns, file, kind)
                files.append(file)
    except OSError as error:
        raise ConfigurationError(f"{target}: cannot be written: {error.strerror}") from None
    return files


def _write_table(rows: sqlite3.Cursor, names: list[str], kinds: Mapping[str, str], file: Path, kind: str) -> None:
    if kind == "csv":
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([_harmless_cell(cell) for cell in row] for row in rows)
    elif kind == "json":
        with file.open("wb") as lines:
            for row in rows:
                lines.write(orjson.dumps(dict(zip(names, row, strict=True))) + b"\n")
    else:
        try:
            arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        except ImportError:
            raise ConfigurationError("Parquet needs the package pyarrow: pip install 'viva-exam[parquet]'") from None
        types = {"TEXT": arrow.string(), "INTEGER": arrow.int64(), "REAL": arrow.float64()}
        schema = arrow.schema([(name, types[kinds[name]]) for name in names])
        with parquet.ParquetWriter(file, schema) as out:
            while part := rows.fetchmany(50_000):
                columns = dict(zip(names, map(list, zip(*part, strict=True)), strict=True))
                out.write_table(arrow.table(columns, schema=schema))


def _harmless_cell(cell: Any) -> Any:
    return spreadsheet_cell(cell, lines=True) if isinstance(cell, str) else cell


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_junit(aggregate: SuiteAggregate, path: Path, run: Path) -> None:
    """Write the gate of a run as JUnit XML to the file `path`; `run` is the run folder.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    report = aggregate.report()
    checks = aggregate.gate()
    suites = Xml.Element("testsuites", name="viva")
    for label, record in report["candidates"].items():
        own = [check for check in checks if check.system == label]
        broken = sum(check.broken for check in own)
        attributes = {
            "name": _xml_text(f"{report['suite']}.{label}"),
            "tests": str(len(own) + 1),
            "failures": str(broken),
            "errors": str(int(record["failed"] > 0)),
        }
        suite = Xml.SubElement(suites, "testsuite", attributes)
        properties = Xml.SubElement(suite, "properties")
        facts = {"run": str(run), "conversations": str(record["conversations"]), "seed": str(report["seed"])}
        for name, value in facts.items():
            Xml.SubElement(properties, "property", name=name, value=_xml_text(value))
        for check in own:
            case = Xml.SubElement(suite, "testcase", classname=attributes["name"], name=_xml_text(check.name), time="0")
            if check.broken:
                Xml.SubElement(
                    case, "failure", message=_xml_text(check.describe()), type="ThresholdBroken"
                ).text = _xml_text(check.describe())
        case = Xml.SubElement(
            suite, "testcase", classname=attributes["name"], name="every conversation finished", time="0"
        )
        if record["failed"]:
            reasons = [f"{count} x {reason}" for reason, count in record["failure_reasons"].items()]
            message = f"{record['failed']} conversations failed"
            Xml.SubElement(case, "error", message=message, type="ConversationFailed").text = _xml_text(
                "\n".join(reasons)
            )
        if report["untested"]:
            Xml.SubElement(case, "system-out").text = f"{report['untested']} tests did not run"
    Xml.indent(suites)
    try:
        write_atomically(path, Xml.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None


def _xml_text(value: str) -> str:
    """Replace characters that XML does not allow."""
    return "".join(
        character if character >= " " or character in "\t\n" else " " for character in escape_controls(value)
    )
