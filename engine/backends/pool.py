"""Several endpoints, or one with several keys, under one name: `pool:FILE`.

Each member has its own limits and health. A conversation stays with one member, where its prefix is cached, and moves
to another while its own member is full, refuses, or is unreachable. Only if all members fail does the pool fail; the
call is then retried as at any endpoint.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..clock import Clock
from ..errors import AccountBlocked, BackendError, ConfigurationError, Throttled
from ..likelihood import Reading
from ..limits import Limits
from ..messages import Completion, Request
from ..yaml_file import read_yaml
from .base import Backend, ModelSpec
from .retry import RetryingBackend, attempt_within, estimated_tokens

_log = logging.getLogger("viva")
_LONG_PAUSE = 60.0  # seconds; a call does not wait longer for a member, but reports that none is available
_POOL_OPTIONS = ("retries", "label", "price_in", "price_out", "price_cached")  # options of the pool's own name


class MemberEntry(BaseModel):
    """A member in the file: a model name and its relative `weight`."""

    model_config = ConfigDict(extra="forbid")

    model: str
    weight: float = Field(default=1.0, gt=0.0)


class PoolFile(BaseModel):
    """The members; a plain name has the weight 1."""

    model_config = ConfigDict(extra="forbid")

    members: list[MemberEntry] = Field(min_length=1)

    @field_validator("members", mode="before")
    @classmethod
    def _names_alone(cls, entries: Any) -> Any:
        if not isinstance(entries, list):
            return entries
        return [{"model": entry} if isinstance(entry, str) else entry for entry in entries]


@dataclass(slots=True)
class PoolMember:
    """An endpoint with its own limits; `blocked` is the reason why its account is refused."""

    name: str
    backend: Backend
    limits: Limits
    weight: float
    blocked: AccountBlocked | None = None


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build the pool that a file describes."""
    from .registry import build as build_member
    from .registry import with_absolute_path

    path = Path(spec.where)
    members = []
    for index, entry in enumerate(read_pool(path).members):
        try:
            name = with_absolute_path(entry.model, path.parent)
            member = ModelSpec.parse(name)
            foreign = sorted(set(_POOL_OPTIONS) & member.options.keys())
            if foreign or member.kind == spec.kind:
                problem = (
                    f"{', '.join(foreign)} belongs in the pool's own name" if foreign else "a pool contains no pools"
                )
                raise ConfigurationError(problem)
            if member.is_batched:
                raise ConfigurationError("batch=on is for a single model; name the model without a pool")
            built = build_member(name, clock)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: members.{index}: {error}") from None
        governed = built if isinstance(built, RetryingBackend) else None
        inner, limits = (governed.inner, governed.limits) if governed else (built, Limits(clock))
        inner.label = spec.label
        members.append(PoolMember(name, inner, limits, entry.weight))
    if len({member.name for member in members}) < len(members):
        raise ConfigurationError(f"{path}: a member is named twice; give it a weight instead")
    return PoolBackend(members)


def read_pool(path: Path) -> PoolFile:
    """Read a pool's file."""
    try:
        return PoolFile.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigurationError(f"{path}: {field}: {first['msg']}; expected members: [MODEL, …]") from None


class PoolBackend(Backend):
    """Several backends that answer for one model."""

    fallible = True
    nearby = True  # each member has limits of its own

    def __init__(self, members: list[PoolMember]) -> None:
        self.members = members
        self.reads_one = any(member.backend.reads_one for member in members)
        self.continues_text = all(member.backend.continues_text for member in members)

    async def __aenter__(self) -> Backend:
        async with AsyncExitStack() as opened:
            for member in self.members:
                await opened.enter_async_context(member.backend)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._opened.aclose()

    async def check(self) -> None:
        failures: dict[str, Exception] = {}

        async def check_member(member: PoolMember) -> None:
            try:
                await member.backend.check()
            except Exception as error:
                failures[member.name] = error

        async with anyio.create_task_group() as group:
            for member in self.members:
                group.start_soon(check_member, member)
        if len(failures) == len(self.members):
            raise next(iter(failures.values()))
        for name, error in failures.items():
            _log.warning("%s: %s is unreachable and is skipped until it answers: %s", self.label, name, error)

    def ended(self, affinity: str) -> None:
        for member in self.members:
            member.backend.ended(affinity)

    def interrupted(self, affinity: str) -> None:
        for member in self.members:
            member.backend.interrupted(affinity)

    async def generate(self, request: Request) -> Completion:
        tokens = estimated_tokens(request)
        return await self._ask(request.affinity, tokens, lambda member: member.generate(request), request.on_restart)

    async def read(self, reading: Reading) -> Completion:
        return await self._ask(reading.context, estimated_tokens(reading), lambda member: member.read(reading), None)

    async def _ask(
        self,
        affinity: str,
        tokens: int,
        attempt: Callable[[Backend], Awaitable[Completion]],
        on_restart: Callable[[], None] | None,
    ) -> Completion:
        """Return the answer of the first member that succeeds; if all fail, raise the last error."""
        left = [member for member in self._in_order(affinity) if member.blocked is None]
        if not left:
            blocked = self.members[0].blocked
            assert blocked is not None
            raise AccountBlocked(str(blocked).removeprefix(f"{blocked.model}: "), model=blocked.model)
        absent = True
        failure: BackendError | None = None  # error of a member that may answer later
        while True:
            member = self._next(left)
            left.remove(member)
            pause = member.limits.paused
            if pause > _LONG_PAUSE:  # no other member is available
                raise failure or Throttled("all members asked for a pause", model=self.label, retry_after=pause)
            try:
                return await attempt_within(member.limits, tokens, partial(attempt, member.backend))
            except BackendError as error:
                if isinstance(error, AccountBlocked):
                    self._block(member, error)
                else:
                    failure, absent = error, absent and error.absent
                if error.retry_after is not None:
                    member.limits.pause(error.retry_after)
                if not left or not (error.retryable or isinstance(error, AccountBlocked)):
                    raise self._common(failure or error, absent) from None
            if on_restart is not None:
                on_restart()

    def _in_order(self, affinity: str) -> list[PoolMember]:
        """Return the members in this conversation's order of preference; losing a member does not reorder the rest.

        Source:
            Weighted rendezvous hashing (Thaler and Ravishankar 1998).
        """

        def rank(member: PoolMember) -> float:
            digest = hashlib.blake2b(f"{affinity}\0{member.name}".encode("utf-8", "replace"), digest_size=8).digest()
            share = (int.from_bytes(digest) + 1) / (2**64 + 1)
            return float(share ** (1.0 / member.weight))

        return sorted(self.members, key=rank, reverse=True)

    def _common(self, error: BackendError, absent: bool) -> BackendError:
        """Return the error of the last member that failed, as the error of the pool."""
        error.absent = absent and not isinstance(error, AccountBlocked)
        if error.retry_after is not None:
            pauses = [member.limits.paused for member in self.members if member.blocked is None]
            error.retry_after = min([error.retry_after, *pauses])
        return error

    def _block(self, member: PoolMember, error: AccountBlocked) -> None:
        """Exclude a member for the rest of the run."""
        if member.blocked is None:
            member.blocked = error
            _log.warning("%s: %s is excluded: %s", self.label, member.name, str(error).removeprefix(f"{error.model}: "))

    @staticmethod
    def _next(left: list[PoolMember]) -> PoolMember:
        """Return the first member that would accept a call now, else the reachable one with the shortest pause."""
        there = [member for member in left if member.limits.breaker is None or not member.limits.breaker.open]
        waiting = min(there or left, key=lambda member: member.limits.paused)
        return next((member for member in left if member.limits.free), waiting)

    def statistics(self) -> dict[str, Any]:
        """Return the totals, and each member's counters under `members`."""
        each = {member.name: member.limits.statistics() | member.backend.statistics() for member in self.members}
        return {"members": each}
