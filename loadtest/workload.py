"""The workload of a load test: requests from a run, a sweep, a file or drawn lengths, in sending order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from viva.data.record_files import read_records
from viva.engine import seeds
from viva.engine.errors import ConfigurationError, DatasetError
from viva.scenarios.contract import SupportsTaskDetection
from viva.scenarios.registry import get_scenario, installed_scenarios, is_scenario_file

from .load_log import LOAD_FILE
from .load_records import LoadRequest
from .recorded_requests import recorded_requests, task_requests
from .request_files import chat_requests, judgment_requests
from .synthetic_requests import SYNTHETIC_PREFIX, synthetic_requests
from .verdict_readers import check_reader, score_scales

_SYSTEM_FILE = re.compile(r"(?P<system>[\w-]+|.+\.py(?:#\w+)?):(?P<file>.+)")


@dataclass(slots=True)
class WorkloadOptions:
    """User options for the requests of a workload.

    `role`: role that received the requests in a run (None: the judge). `reader`: how answers are read (None: chosen
    automatically). `limit`: maximum number of requests, sampled with the seed. `settings`: settings of the scenario
    that reads a file of tasks. `prompts`: a file with the system prompts of judgments. `max_tokens` and `temperature`
    override the values in all requests.
    """

    role: str | None = None
    reader: str | None = None
    limit: int | None = None
    seed: int = 7
    settings: Mapping[str, Any] = field(default_factory=dict)
    prompts: Path | None = None
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(slots=True)
class Workload:
    """Requests in sending order, with `notes` for the user.

    If all requests have a recorded time, they keep that order; otherwise they are shuffled by the seed, so that the
    first ones are representative.
    """

    source: str
    kind: str
    requests: list[LoadRequest]
    notes: list[str] = field(default_factory=list)

    @property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Ends of scales by aspect, for scales that are known in advance."""
        scales: dict[str, tuple[float, float]] = {}
        for request in self.requests:
            for aspect, (low, high) in score_scales(request).items():
                before = scales.get(aspect, (low, high))
                scales[aspect] = min(low, before[0]), max(high, before[1])
        return scales

    def to_record(self) -> dict[str, Any]:
        """Return plain data for the report."""
        with_reference = [request for request in self.requests if request.reference is not None]
        return {
            "source": self.source,
            "kind": self.kind,
            "requests": len(self.requests),
            "items": len({request.item or request.id for request in self.requests}),
            "pairs": sum(request.pair != "" for request in self.requests) // 2,
            "with_reference": len(with_reference),
            "characters": sum(len(message.content) for request in self.requests for message in request.messages),
            "readers": sorted({request.reader for request in self.requests}),
            "scales": {aspect: list(ends) for aspect, ends in self.scales.items()},
            "notes": self.notes,
        }


def open_workload(source: str, options: WorkloadOptions | None = None) -> Workload:
    """Open the requests of a source: a run, a sweep, a file, `SCENARIO:FILE` (tasks of a scenario), or `synthetic:…`.

    The kind of a file follows from the fields of its first record: `messages` or `body` (requests in OpenAI's form),
    `user_prompt` (judgments), else the tasks of the scenario that accepts such records.

    Raises:
        ConfigurationError: There is no such source, or it has no requests for a judge.
        DatasetError: A record is wrong; the message names file, line and field.
    """
    options = options or WorkloadOptions()
    if options.reader is not None:
        check_reader(options.reader)
    workload = _read_source(source, options)
    if not workload.requests:
        raise ConfigurationError(f"{source}: contains no request for a judge")
    requests = _draw_requests(workload.requests, options.limit, options.seed)
    workload.requests = [_with_options(request, options) for request in requests]
    return workload


def absolute_source(source: str) -> str:
    """Return the source with absolute paths, so that it is found from any folder."""
    if source.startswith(SYNTHETIC_PREFIX):
        return source
    match = _SYSTEM_FILE.fullmatch(source)
    if match is None or Path(source).exists():
        return str(Path(source).resolve())
    file, hash_, name = match["system"].partition("#")
    system = f"{Path(file).resolve()}{hash_}{name}" if is_scenario_file(file) else file
    return f"{system}:{Path(match['file']).resolve()}"


def _read_source(source: str, options: WorkloadOptions) -> Workload:
    if source.startswith(SYNTHETIC_PREFIX):
        return Workload(source, "lengths", synthetic_requests(source, options.seed))
    path = Path(source)
    if (path / LOAD_FILE).exists():
        raise ConfigurationError(
            f"{source} is a load test, not a run; `viva judge load --resume {source}` resumes it or prints its "
            "report again"
        )
    if path.is_dir():
        return Workload(source, "transcripts", *recorded_requests(path, options.role))
    match = _SYSTEM_FILE.fullmatch(source)
    if match is not None and not path.exists():
        scenario = get_scenario(match["system"])
        return Workload(source, "tasks", *task_requests(scenario, Path(match["file"]), options.settings, options.role))
    if not path.is_file() or is_scenario_file(source):
        raise ConfigurationError(
            f"{source}: no such run folder or file; give a folder, a file, SCENARIO:FILE, or {SYNTHETIC_PREFIX}…"
        )
    first = _first_record(path)
    if "messages" in first or "body" in first:
        return Workload(source, "requests", *chat_requests(path))
    if "user_prompt" in first or "g1_user_prompt" in first:
        return Workload(source, "judgments", *judgment_requests(path, options.prompts))
    takers = [scenario for scenario in installed_scenarios()
              if isinstance(scenario, SupportsTaskDetection) and scenario.accepts_record(first)]  # fmt: skip
    if not takers:
        fields = ", ".join(list(first)[:12])
        raise DatasetError(
            "unknown kind of record: requests have the field 'messages', judgments 'user_prompt', and no installed "
            f"scenario takes these as tasks (fields: {fields}); if they are tasks, name their scenario: "
            f"SCENARIO:{source}",
            path=source,
            line=1,
        )
    return Workload(source, "tasks", *task_requests(takers[0], path, options.settings, options.role))


def _first_record(path: Path) -> Mapping[str, Any]:
    for _, raw in read_records(path):
        if isinstance(raw, DatasetError):
            raise raw
        return raw
    raise DatasetError("contains no record", path=str(path))


def _draw_requests(requests: Sequence[LoadRequest], limit: int | None, seed: int) -> list[LoadRequest]:
    """Return up to `limit` random requests, pairs together; in recorded order if all have times, else shuffled."""

    def order_key(request: LoadRequest) -> tuple[float, str]:
        key = min(request.id, request.pair) if request.pair else request.id
        return seeds.uniform(seed, key, "work"), request.id

    ordered = sorted(requests, key=order_key)
    if limit is not None:
        ordered = ordered[:limit]
    if all(request.at is not None for request in requests):
        ordered.sort(key=lambda request: request.at or 0.0)
    return ordered


def _with_options(request: LoadRequest, options: WorkloadOptions) -> LoadRequest:
    changes: dict[str, Any] = {}
    if options.max_tokens is not None:
        changes["max_tokens"] = options.max_tokens
    if options.temperature is not None:
        changes["temperature"] = options.temperature
    if changes:
        request = replace(request, sampling=replace(request.sampling, **changes))
    return request if options.reader is None else replace(request, reader=options.reader)
