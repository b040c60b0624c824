"""Local models in tests: a backend in use, talks as messages, and prompts as tokens and text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from viva.engine.backends.llama.backend import LlamaBackend
from viva.engine.backends.llama.model_files import locate
from viva.engine.backends.llama.native import NativeModel, Segment
from viva.engine.backends.registry import build
from viva.engine.clock import RealClock
from viva.engine.errors import ConfigurationError
from viva.engine.messages import Message, Party

T = TypeVar("T")


def installed_model(package: str, advice: str) -> Path:
    """Return the GGUF file of an installed package, or skip the test and say how to get it."""
    try:
        return locate(f"package/{package}").path
    except ConfigurationError:
        pytest.skip(f"no {package}: {advice}")


def using(name: str, main: Callable[[LlamaBackend], Awaitable[T]]) -> T:
    """Open a local model, and return what ``main`` makes of it."""

    async def run() -> T:
        async with build(name, RealClock()) as backend:
            assert isinstance(backend, LlamaBackend)
            return await main(backend)

    return anyio.run(run)


async def at_once(count: int, one: Callable[[int], Awaitable[T]]) -> list[T]:
    """Await ``one`` of each number below ``count``, all at the same time; results in order."""
    made: dict[int, T] = {}

    async def note(number: int) -> None:
        made[number] = await one(number)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(note, number)
    return [made[number] for number in range(count)]


def talk_of(*pairs: tuple[Party, str]) -> list[Message]:
    return [Message(role, content) for role, content in pairs]


def flat(segments: list[Segment]) -> list[int]:
    return [int(token) for segment in segments for token in segment.tokens]


def spelled(model: NativeModel, tokens: list[int]) -> str:
    """Tokens as text, control tokens as they are written in templates."""
    pieces = (model.control_text(t).encode() if model.controls[t] else model.pieces[t] for t in tokens)
    return b"".join(pieces).decode()


def template(folder: Path, source: str) -> str:
    """A file with a chat template."""
    path = folder / "template.jinja"
    path.write_text(source, encoding="utf-8")
    return str(path)
