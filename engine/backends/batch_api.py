"""Life cycles of batches at the providers' batch APIs: create, find again, poll, and read the results.

A request in a batch has the body that would be sent alone. Its identifier is `NAME-NUMBER`, the call's name and the
number of its batch, so it also tells whether a batch is ours. Identifiers and URLs from the endpoint are never opened
as such: only the documented paths below the endpoint's own address are requested.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar, cast
from urllib.parse import quote

import orjson

from ..errors import AnswerTooLarge, BackendError, Forbidden, Rejected, Throttled, TimedOut, Unauthorized, Unavailable
from .endpoint import AnswerBody, Endpoint
from .endpoint_answer import FORMAT_ERRORS, answer_error, parse_json
from .sse import status_of_error

T = TypeVar("T")
Outcome = bytes | BackendError  # the body of an answer, or why there is none

_ID = re.compile(r"[A-Za-z0-9][\w.:-]{0,199}", re.ASCII)
_PAGES = 200  # of a list of batches, each of 100
_PAGE_SIZE = 100
_CLOCK_SKEW = 3600.0  # seconds by which the endpoint's clock may be behind
_MAX_RESULT_BYTES = 4 << 30  # of one batch
# HTTP statuses of google.rpc codes.
_RPC_STATUSES = {1: 499, 3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 9: 400, 11: 400, 14: 503, 16: 401}


def is_batch_id(value: Any) -> bool:
    """Return True if this is an id that can be part of a request's path."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


@dataclass(slots=True)
class Batch:
    """A batch of ours: `number` in the record, `key` at the endpoint, the calls' names, and when it was recorded.

    `id` is the endpoint's name for it, "" until it is known.
    """

    number: int
    key: str
    names: Sequence[str]
    began: float
    id: str = ""

    def request_id(self, name: str) -> str:
        """Return the identifier of a call's request."""
        return f"{name}-{self.number}"

    def name_of(self, request_id: Any) -> str:
        """Return the call's name in a request's identifier; "" if the identifier is not of this batch."""
        suffix = f"-{self.number}"
        is_own = isinstance(request_id, str) and request_id.endswith(suffix)
        return request_id.removesuffix(suffix) if is_own else ""


@dataclass(slots=True)
class BatchStatus:
    """State of a batch. Once it has `ended`, `missing` is the error of calls without a result.

    `failure` is the error of a batch that was refused as a whole. `files` contain the results, or `answer` does.
    """

    ended: bool
    missing: BackendError | None = None
    failure: BackendError | None = None
    files: Sequence[str] = ()
    answer: Any = field(default=None, repr=False)


class BatchUndecided(Exception):
    """A batch that may be ours shows its requests only when it has ended."""


class BatchApi(ABC):
    """A provider's batch API.

    Args:
        endpoint: The endpoint.
        url: The address below which the API's paths are.
        model: The model's name in requests.
        guard: Returns the context of a request, which judges refused keys.
        longest: Maximum size of one answer in bytes.
    """

    max_calls = 10_000
    max_bytes = 180_000_000

    def __init__(
        self, endpoint: Endpoint, url: str, model: str, guard: Callable[[], Any], longest: int, label: str = "model"
    ) -> None:
        self._endpoint, self._url, self._model, self._guard = endpoint, url, model, guard
        self._longest, self.label = longest, label

    @abstractmethod
    async def create(self, batch: Batch, bodies: Mapping[str, bytes]) -> str:
        """Create a batch of these bodies by name, and return its id."""

    @abstractmethod
    async def find(self, batch: Batch, known: set[str]) -> str | None:
        """Return the id of a batch that may have been created; None if it certainly was not. `known` are other ids.

        Raises:
            BatchUndecided: A batch that may be the one is still running.
        """

    @abstractmethod
    async def poll(self, batch: Batch) -> BatchStatus:
        """Return the state of a batch."""

    @abstractmethod
    async def read_results(self, batch: Batch, status: BatchStatus, take: Callable[[str, Outcome], None]) -> bool:
        """Pass each result of an ended batch with its call's name to `take`; return True if one was too large."""

    def error(self, status: int, answer: Any) -> BackendError:
        """Return the typed error of one request in a batch; other requests show that the key is accepted."""
        error = self._endpoint.error(self.label, status, orjson.dumps(answer))
        if isinstance(error, Unauthorized):
            return Forbidden(str(error).removeprefix(f"{error.model}: "), model=error.model, status=error.status)
        return error

    async def _ask(
        self,
        path: str,
        receive: Callable[[AnswerBody], Awaitable[T]],
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        async with self._guard():
            return await self._endpoint.ask(self.label, f"{self._url}{path}", data, receive, headers=headers)

    async def _record(self, path: str, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """Return the object that the endpoint answers; raise Unavailable for anything else."""

        async def receive(body: AnswerBody) -> Any:
            content = await body.read_all()
            try:
                record = parse_json(content, self.label)
                if not isinstance(record, dict):
                    raise TypeError("it is no object")
                return record
            except FORMAT_ERRORS as error:
                subject = f"the answer of {path.partition('?')[0]} cannot be read"
                raise answer_error(subject, self.label, self._endpoint.redact, content, error) from None

        return await self._ask(path, receive, data, headers)

    async def _read_lines(self, path: str, read: Callable[[Any], None]) -> bool:
        """Pass each JSON object of a file of lines to `read`, which may raise; return True if a line was too large.

        Lines that cannot be read are skipped: the calls that they belong to have no result.
        """

        async def receive(body: AnswerBody) -> bool:
            is_cut = False
            async for line in body.lines(self._longest, _MAX_RESULT_BYTES):
                if line is None:
                    is_cut = True
                    continue
                try:
                    read(parse_json(line, self.label))
                except AnswerTooLarge:
                    is_cut = True
                except FORMAT_ERRORS:
                    continue
            return is_cut

        return await self._ask(path, receive)

    def _id(self, record: Any, name: str = "id") -> str:
        """Return an id in an answer of the endpoint; raise Unavailable if it has no usable one."""
        value = record.get(name) if isinstance(record, dict) else None
        if is_batch_id(value):
            return cast(str, value)
        raise Unavailable(f"the answer has no valid {name}", model=self.label)

    def _unavailable(self, text: str) -> Unavailable:
        return Unavailable(text, model=self.label)

    def _without_result(self, state: str) -> BackendError:
        """Return the error of a call that has no result, by how its batch, or the call itself, ended."""
        if "expire" in state:
            return TimedOut("the batch expired before this call was answered", model=self.label)
        if "cancel" in state:
            return self._unavailable("the batch was cancelled at the provider before this call was answered")
        return self._unavailable("the batch has no readable result of this call")


def _dump(value: Any) -> bytes:
    return orjson.dumps(value)


def _timestamp(value: Any) -> float | None:
    """Return seconds since 1970 for a number or an RFC 3339 text; None if it is neither."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


def _is_older(value: Any, batch: Batch) -> bool:
    """Return True if something was certainly created before this batch was recorded."""
    at = _timestamp(value)
    return at is not None and at < batch.began - _CLOCK_SKEW


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class OpenAIBatches(BatchApi):
    """OpenAI's API: an uploaded file of requests, and two files of results. Metadata hold the batch's key."""

    _PATH = "/v1/chat/completions"

    async def create(self, batch: Batch, bodies: Mapping[str, bytes]) -> str:
        lines = (
            b'{"custom_id":%b,"method":"POST","url":"%b","body":%b}\n'
            % (_dump(batch.request_id(name)), self._PATH.encode(), body)
            for name, body in bodies.items()
        )
        kind, form = _upload(b"".join(lines), f"{batch.key}.jsonl")
        file = self._id(await self._record("/files", form, {"Content-Type": kind}))
        request = {
            "input_file_id": file,
            "endpoint": self._PATH,
            "completion_window": "24h",
            "metadata": {"viva": batch.key},
        }
        return self._id(await self._record("/batches", _dump(request)))

    async def find(self, batch: Batch, known: set[str]) -> str | None:
        after = ""
        for _ in range(_PAGES):
            page = await self._record(f"/batches?limit={_PAGE_SIZE}{f'&after={after}' if after else ''}")
            entries = _objects(page.get("data"))
            for entry in entries:
                if isinstance(metadata := entry.get("metadata"), dict) and metadata.get("viva") == batch.key:
                    return self._id(entry)
            if not entries or not page.get("has_more") or _is_older(entries[-1].get("created_at"), batch):
                return None
            after = self._id(entries[-1])
        return None

    async def poll(self, batch: Batch) -> BatchStatus:
        record = await self._record(f"/batches/{batch.id}")
        state = record.get("status")
        if state == "failed":
            return BatchStatus(True, failure=self._failure(record.get("errors")))
        if state not in ("completed", "expired", "cancelled"):
            return BatchStatus(False)
        names = [name for name in ("output_file_id", "error_file_id") if record.get(name) is not None]
        return BatchStatus(True, self._without_result(state), files=[self._id(record, name) for name in names])

    def _failure(self, errors: Any) -> BackendError:
        """Return the error of a batch that was not accepted."""
        problems = _objects(errors.get("data")) if isinstance(errors, dict) else []
        codes = [str(problem.get("code")) for problem in problems]
        if any("limit" in code or "quota" in code for code in codes):  # too many tokens in batches of this account
            error = self.error(429, {"error": problems[0]})
            return error if not isinstance(error, Rejected) else Throttled(str(error), model=self.label, status=429)
        return self.error(400, {"error": problems[0]} if problems else {"error": {"message": "the batch failed"}})

    async def read_results(self, batch: Batch, status: BatchStatus, take: Callable[[str, Outcome], None]) -> bool:
        def read(line: Any) -> None:
            name = batch.name_of(line["custom_id"])
            response, error = line.get("response"), line.get("error")
            if response and response.get("status_code") == 200:
                take(name, _dump(response["body"]))
            elif response:
                take(name, self.error(int(response["status_code"]), response.get("body")))
            elif error:
                take(name, self._request_error(error))

        return any([await self._read_lines(f"/files/{file}/content", read) for file in status.files])

    def _request_error(self, error: Any) -> BackendError:
        code = str(error.get("code"))
        if "expire" in code or "cancel" in code:
            return self._without_result(code)
        return self.error(status_of_error({"error": error}), {"error": error})


def _upload(content: bytes, name: str) -> tuple[str, bytes]:
    """Return the content type and the form of an upload."""
    boundary = secrets.token_hex(16)
    form = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    return f"multipart/form-data; boundary={boundary}", b"%b%b\r\n--%b--\r\n" % (
        form.encode(),
        content,
        boundary.encode(),
    )


class AnthropicBatches(BatchApi):
    """Anthropic's Message Batches API.

    It has no metadata. A batch that may be ours has the same number of requests, and its results name the requests.
    """

    _PATH = "/v1/messages/batches"
    _COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")

    async def create(self, batch: Batch, bodies: Mapping[str, bytes]) -> str:
        requests = (
            b'{"custom_id":%b,"params":%b}' % (_dump(batch.request_id(name)), body) for name, body in bodies.items()
        )
        return self._id(await self._record(self._PATH, b'{"requests":[%b]}' % b",".join(requests)))

    async def find(self, batch: Batch, known: set[str]) -> str | None:
        after, undecided = "", False
        for _ in range(_PAGES):
            page = await self._record(f"{self._PATH}?limit={_PAGE_SIZE}{f'&after_id={after}' if after else ''}")
            entries = _objects(page.get("data"))
            for entry in entries:
                if _is_older(entry.get("created_at"), batch) or not self._has_size(entry, len(batch.names)):
                    continue
                identifier = self._id(entry)
                if identifier in known:
                    continue
                if entry.get("processing_status") != "ended":
                    undecided = True
                elif await self._is_own(identifier, batch):
                    return identifier
            if not entries or not page.get("has_more") or _is_older(entries[-1].get("created_at"), batch):
                break
            after = self._id(entries[-1])
        if undecided:
            raise BatchUndecided
        return None

    def _has_size(self, entry: Mapping[str, Any], count: int) -> bool:
        counts = entry.get("request_counts")
        values = [counts.get(name) for name in self._COUNTS] if isinstance(counts, dict) else []
        return sum(value for value in values if isinstance(value, int)) == count

    async def _is_own(self, identifier: str, batch: Batch) -> bool:
        names = set(batch.names)
        own: list[str] = []

        def read(line: Any) -> None:
            own.extend({batch.name_of(line["custom_id"])} & names)

        await self._read_lines(f"{self._PATH}/{identifier}/results", read)
        return bool(own)

    async def poll(self, batch: Batch) -> BatchStatus:
        record = await self._record(f"{self._PATH}/{batch.id}")
        return BatchStatus(record.get("processing_status") == "ended", self._without_result("ended"))

    async def read_results(self, batch: Batch, status: BatchStatus, take: Callable[[str, Outcome], None]) -> bool:
        def read(line: Any) -> None:
            name, result = batch.name_of(line["custom_id"]), line["result"]
            match result["type"]:
                case "succeeded":
                    take(name, _dump(result["message"]))
                case "errored":
                    take(name, self.error(status_of_error(result["error"]), result["error"]))
                case "canceled" | "expired":
                    take(name, self._without_result(result["type"]))

        return await self._read_lines(f"{self._PATH}/{batch.id}/results", read)


class GeminiBatches(BatchApi):
    """Google's Batch API with requests and results inside of its own. The display name holds the batch's key."""

    max_bytes = 18_000_000

    async def create(self, batch: Batch, bodies: Mapping[str, bytes]) -> str:
        requests = (
            b'{"request":%b,"metadata":{"key":%b}}' % (body, _dump(batch.request_id(name)))
            for name, body in bodies.items()
        )
        form = b'{"batch":{"display_name":%b,"input_config":{"requests":{"requests":[%b]}}}}'
        data = form % (_dump(batch.key), b",".join(requests))
        return self._id_of(await self._record(f"/{quote(self._model)}:batchGenerateContent", data))

    def _id_of(self, operation: Any) -> str:
        """Return the id of `batches/ID`."""
        name = operation.get("name")
        return self._id({"name": name.removeprefix("batches/") if isinstance(name, str) else None}, "name")

    async def find(self, batch: Batch, known: set[str]) -> str | None:
        token = ""
        for _ in range(_PAGES):
            query = f"&pageToken={token}" if token else ""
            page = await self._record(f"/batches?pageSize={_PAGE_SIZE}{query}")
            operations = _objects(page.get("operations"))
            metadata = [entry.get("metadata") or {} for entry in operations]
            for operation, details in zip(operations, metadata, strict=True):
                if details.get("displayName") == batch.key:
                    return self._id_of(operation)
            if not operations or not page.get("nextPageToken") or _is_older(metadata[-1].get("createTime"), batch):
                return None
            token = quote(str(page["nextPageToken"]), safe="")
        return None

    async def poll(self, batch: Batch) -> BatchStatus:
        operation = await self._record(f"/batches/{batch.id}")
        state = str((operation.get("metadata") or {}).get("state")).lower()
        if not (operation.get("done") or state.endswith(("succeeded", "failed", "cancelled", "expired"))):
            return BatchStatus(False)
        if state.endswith("failed"):
            return BatchStatus(True, failure=self._error(operation.get("error") or {"message": "the batch failed"}))
        return BatchStatus(True, self._without_result(state), answer=operation)

    def _error(self, error: Any) -> BackendError:
        code = error.get("code")
        status = code if isinstance(code, int) and code >= 400 else _RPC_STATUSES.get(code, 500)
        return self.error(status, {"error": {**error, "code": status}})

    async def read_results(self, batch: Batch, status: BatchStatus, take: Callable[[str, Outcome], None]) -> bool:
        for result in self._results(status.answer):
            try:
                name = batch.name_of(result["metadata"]["key"])
                if result.get("error"):
                    take(name, self._error(result["error"]))
                elif result.get("response"):
                    take(name, _dump(result["response"]))
            except FORMAT_ERRORS:
                continue
        return False

    @staticmethod
    def _results(operation: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
        metadata = operation.get("metadata")
        for output in (operation.get("response"), metadata.get("output") if isinstance(metadata, dict) else None):
            inside = output.get("inlinedResponses") if isinstance(output, dict) else None
            if isinstance(inside, dict):
                inside = inside.get("inlinedResponses")
            if isinstance(inside, list):
                return _objects(inside)
        return []
