"""Resolve a model name to a running backend. Each name has one backend, however many roles it plays.

A kind is a module with `build(spec, clock) -> Backend`, imported only when a model of that kind is used. The engine's
own kinds are in `KINDS`; higher layers and other packages register theirs under the entry-point group `viva.backends`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import anyio

from ..adaptive_limit import FIRST_WINDOW, AdaptiveLimit
from ..clock import Clock
from ..errors import BackendError, ConfigurationError, Unavailable, did_you_mean
from ..events import EndpointBack, EndpointLost
from ..imports import load_entry_points
from ..limits import DEFAULT_PATIENCE, CircuitBreaker, Limits, Rate
from ..permissions import bound_permissions, permissions
from ..thoughts import ThoughtMarks
from .base import Backend, EventSink, ModelSpec
from .fault_injection import FaultInjector, FaultPlan
from .llama import model_files
from .llama.model_files import file_sum, parse_adapters, store_name, with_absolute_adapters
from .model_name import find_inline_mapping, refuse_credentials
from .retry import RetryingBackend, RetryPolicy
from .wrappers import ThoughtSplittingBackend, ValidatingBackend

KINDS: dict[str, str] = {
    "openai": "viva.engine.backends.openai",
    "anthropic": "viva.engine.backends.anthropic",
    "gemini": "viva.engine.backends.gemini",
    "http": "viva.engine.backends.http_application",
    "simulated": "viva.engine.backends.simulated",
    "llama": "viva.engine.backends.llama.backend",
    "hf": "viva.engine.backends.hf",
    "replay": "viva.engine.backends.replay",
    "python": "viva.engine.backends.python_model",
    "human": "viva.engine.backends.human",
    "pool": "viva.engine.backends.pool",
}
ENTRY_POINT_GROUP = "viva.backends"
OBJECT_KIND = "object"  # kind of a backend object created by a program
_CHECK_SECONDS = 10.0
Factory = Callable[[ModelSpec, Clock], Backend]


@dataclass(slots=True, frozen=True)
class KindFacts:
    """Facts about the models of a kind that are known without building one.

    `is_path` is True if the location is a file or folder; `#NAME` may follow if `has_fragment`. If `is_hashed`, files
    of the same name are distinguished by a hash. `varies` says why answers depend on concurrent requests; "" if they do
    not.
    """

    is_path: bool = False
    has_fragment: bool = False
    is_hashed: bool = False
    varies: str = ""


_ENDPOINT = KindFacts(varies="an endpoint does not promise the same answer twice")
KIND_FACTS: dict[str, KindFacts] = {
    "openai": _ENDPOINT,
    "anthropic": _ENDPOINT,
    "gemini": _ENDPOINT,
    "http": replace(_ENDPOINT, is_path=True, has_fragment=True, is_hashed=True),
    "simulated": KindFacts(),
    "llama": KindFacts(is_path=True, is_hashed=True),
    "hf": KindFacts(is_path=True, is_hashed=True, varies="computes requests of several conversations together"),
    "replay": KindFacts(is_path=True),
    "python": KindFacts(is_path=True, has_fragment=True, varies="nothing is known of models of kind python"),
    "human": KindFacts(is_path=True, varies="a person may answer the same question differently"),
    "pool": KindFacts(is_path=True, is_hashed=True, varies="nothing is known of models of kind pool"),
    # Registered by scenarios.
    "oracle": KindFacts(),
    "recorded": KindFacts(),
}


BATCHED_LIMITS = (
    "batch=on excludes concurrency, rpm, rps and tpm; --concurrency of the run limits how many calls wait for one batch"
)


def build(
    text: str,
    clock: Clock,
    publish: EventSink | None = None,
    patience: float = DEFAULT_PATIENCE,
    chaos: FaultPlan | None = None,
    folder: Path | None = None,
) -> Backend:
    """Build the backend for a model name, wrapped in the limits and retries that its options specify.

    Options of every kind: `label`, `concurrency`, `rpm`, `rps`, `tpm`, `adaptive`, `retries`, `price_in`, `price_out`,
    `price_cached` (per million tokens), `thoughts` (the model's own thought mark).

    Args:
        text: The model name.
        clock: The clock for pauses and times.
        publish: Receives events about retries.
        patience: Seconds for which calls wait for an unreachable endpoint.
        chaos: Faults to inject.
        folder: The run's folder, for records of backends.

    Raises:
        ConfigurationError: Unknown kind or option, a value out of range, or a model that is not allowed here.
    """
    spec = ModelSpec.parse(text)
    permissions().check_model(text)
    with bound_permissions(permissions().for_model(text)):
        inner = _factory(spec)(spec, clock)
    inner.label = spec.label
    factor = spec.price_factor
    inner.price_in, inner.price_out = factor * spec.number("price_in", 0.0), factor * spec.number("price_out", 0.0)
    inner.price_cached = factor * spec.number("price_cached", inner.price_in / factor)
    inner.join_run(text, folder, publish, patience)
    if spec.kind == "python":
        inner = ValidatingBackend(inner)
    marks = spec.take("thoughts")
    if marks is not None:
        try:
            inner = ThoughtSplittingBackend(inner, ThoughtMarks.from_option(marks))
        except ValueError as error:
            raise ConfigurationError(f"model '{text}': thoughts={marks}: {error}") from None
    per_minute, per_second = spec.whole("rpm"), spec.whole("rps")
    tokens, concurrency = spec.whole("tpm"), spec.whole("concurrency")
    attempts = spec.whole("retries", low=0)
    adaptive = spec.one_of("adaptive", ("on", "off"), "on") == "on"
    spec.finish()
    if per_minute and per_second:
        raise ConfigurationError(f"model '{text}': give rpm or rps, not both")
    if spec.is_batched and (per_minute or per_second or tokens or concurrency):
        raise ConfigurationError(f"model '{text}': {BATCHED_LIMITS}")
    if chaos is not None:
        inner = FaultInjector(inner, chaos, clock)
    if not (per_minute or per_second or tokens or concurrency or attempts) and not inner.fallible:
        return inner  # nothing to limit: no wrapper on the hot path
    rate = Rate(per_minute, 60.0) if per_minute else Rate(per_second, 1.0) if per_second else None
    learning = None
    if adaptive and inner.fallible and not spec.is_batched:
        known = concurrency is not None or inner.nearby
        learning = AdaptiveLimit(clock.now(), None if known else FIRST_WINDOW)
    limits = Limits(
        clock,
        concurrency=concurrency,
        requests=rate,
        tokens=Rate(tokens) if tokens else None,
        adaptive=learning,
        breaker=None if spec.is_batched else _breaker(inner, clock, publish, patience),
    )
    return RetryingBackend(inner, limits, clock, _policy(patience, attempts), publish)


def _policy(patience: float, retries: int | None = None) -> RetryPolicy:
    """Return the policy for a number of retries. Without patience, accept pauses of the usual length."""
    usual = RetryPolicy(longest_retry_after=patience or DEFAULT_PATIENCE)
    return usual if retries is None else replace(usual, attempts=retries + 1)


def _breaker(backend: Backend, clock: Clock, publish: EventSink | None, patience: float) -> CircuitBreaker | None:
    """Return the circuit breaker that makes calls wait for an unreachable endpoint; None without patience."""

    def changed(error: BackendError | None) -> None:
        if publish is not None and error is not None:
            message = str(error).removeprefix(f"{error.model}: ")
            publish(EndpointLost(clock.wall(), "", backend.label, message))
        elif publish is not None:
            publish(EndpointBack(clock.wall(), "", backend.label))

    return CircuitBreaker(patience, changed) if patience > 0.0 and backend.fallible else None


def _factory(spec: ModelSpec) -> Factory:
    """Return the factory of this kind; a registered kind cannot replace one of the engine's own."""
    if spec.kind in KINDS:
        factory: Factory = import_module(KINDS[spec.kind]).build
        return factory
    points = load_entry_points(ENTRY_POINT_GROUP)
    if spec.kind == OBJECT_KIND:
        raise ConfigurationError(
            f"model '{spec.text}': was a Python object; resume from Python and pass models={{…}} again"
        )
    if spec.kind not in points:
        near = did_you_mean(spec.kind, sorted({*KINDS, *points}), "known kinds")
        raise ConfigurationError(f"model '{spec.text}': unknown kind '{spec.kind}'{near}")
    loaded: Factory = points[spec.kind].load()
    return loaded


def with_absolute_path(text: str, folder: Path = Path()) -> str:
    """Return the model name with the path of a local file made absolute.

    Relative paths begin at `folder`. All names pass here on their way into settings, so names that must not be recorded
    are refused here.

    Raises:
        ConfigurationError: The name contains a credential.
    """
    refuse_credentials(text)
    kind, _, rest = text.partition(":")
    path, mark, options = rest.partition("?")
    facts = _facts(kind)
    path, hash_, fragment = path.partition("#") if facts.has_fragment else (path, "", "")
    if not facts.is_path or not path or find_inline_mapping(text) is not None:
        return text
    if kind == "llama":
        options = with_absolute_adapters(options, folder)
        if store_name(path, folder) is not None:
            return f"{kind}:{path}{mark}{options}"
    if kind == "hf" and not (folder / Path(path).expanduser()).is_dir():  # a name on the hub
        return text
    if kind == "http" and path.startswith("//"):  # a URL, which is refused later
        return text
    return f"{kind}:{(folder / Path(path).expanduser()).resolve()}{hash_}{fragment}{mark}{options}"


def _facts(kind: str) -> KindFacts:
    return KIND_FACTS.get(kind) or KindFacts(varies=f"nothing is known of models of kind {kind}")


def file_records(text: str, recorded: str = "") -> dict[str, str]:
    """Return what distinguishes a model's files from other files of the same name: hashes and, for the hub, the commit.

    The main file is under the model's name, others under names of their own. The result is empty for a model without
    files, and for a path without a file. A model of the hub that is missing is downloaded; `recorded` is the main
    file's record in the manifest of a resumed run, which gets the same commit.

    Raises:
        ConfigurationError: A model that is named by its store is unavailable, or must not be opened here.
    """
    spec = ModelSpec.parse(text)
    digest: str | None = None
    if spec.kind == "hf":
        digest = import_module("viva.engine.backends.hf").fingerprint(Path(spec.where))
    elif spec.kind == "llama":
        permissions().check_model(text)
        try:
            records = model_files.locate(spec.where, spec.take("revision") or "", recorded).records(text)
            adapters = {str(adapter.path): f"sha256:{file_sum(adapter.path)}" for adapter in parse_adapters(text)}
            return records | adapters
        except ConfigurationError:
            if store_name(spec.where) is not None:
                raise
    elif _facts(spec.kind).is_hashed:
        digest = model_files.ends_hash(Path(spec.where))
    return {} if digest is None else {text: digest}


def flash_attention_record(text: str, recorded: str | None = None) -> str | None:
    """Return the choice of flash attention (`on`, `off`) that a run with this model makes; None if it makes none.

    It is measured if it is not known, which loads the model. A `recorded` choice, of a resumed run, is kept.

    Raises:
        ConfigurationError: The model is unavailable or cannot be loaded.
    """
    if ModelSpec.parse(text).kind != "llama":
        return None
    permissions().check_model(text)
    record: str | None = import_module(KINDS["llama"]).flash_attention_record(text, recorded)
    return record


def machine_record(text: str) -> dict[str, str] | None:
    """Return what the answers of a model in this process depend on, besides its name and files (build, devices, …).

    None if that is unknown, as for an endpoint.

    Raises:
        ConfigurationError: The model requests a device that does not exist, or must not be opened here.
    """
    if ModelSpec.parse(text).kind != "llama":
        return None
    permissions().check_model(text)
    record: dict[str, str] = import_module(KINDS["llama"]).machine_record(text)
    return record


def variation_reason(text: str) -> str | None:
    """Return why a model's answers depend on concurrent requests; None if they do not (docs/architecture.md)."""
    spec = ModelSpec.parse(text)
    if spec.kind != "llama":
        return _facts(spec.kind).varies or None
    if spec.take("strict") == "off":
        return "strict=off computes prompts of several conversations together"
    permissions().check_model(text)
    native = import_module("viva.engine.backends.llama.native")
    if import_module("viva.engine.backends.llama.placement").parse_placement(spec).chosen_devices():
        return "on a GPU a row's result may depend on the other rows of its batch"
    try:
        files = model_files.locate(spec.where, spec.take("revision") or "")
    except ConfigurationError:
        if store_name(spec.where) is not None:
            raise
        return None
    reason: str | None = native.nondeterminism_reason(files.path)
    return reason


class BackendPool:
    """The open backends of one run, or of concurrent runs; one per name. Use `async with`, and `open` inside it.

    `publish` receives events about retries; `backends` are ready-made ones, by name. `patience`, `chaos` and `folder`
    are as for `build`.
    """

    def __init__(
        self,
        clock: Clock,
        publish: EventSink | None = None,
        backends: Mapping[str, Backend] | None = None,
        patience: float = DEFAULT_PATIENCE,
        chaos: FaultPlan | None = None,
        folder: Path | None = None,
    ) -> None:
        self._folder = folder
        self._clock, self._publish, self._patience, self._chaos = clock, publish, patience, chaos
        self._prepared = backends or {}
        self._open: dict[str, Backend] = {}
        self._reached: set[str] = set()
        self._closed: dict[str, dict[str, object]] = {}  # counters of closed backends
        self._opening = anyio.Lock()

    async def __aenter__(self) -> BackendPool:
        return self

    async def __aexit__(self, *exc: object) -> None:
        async with AsyncExitStack() as stack:  # a backend that fails to close does not keep another one open
            for text in self._open:
                stack.push_async_callback(self.close, text)

    async def open(self, text: str) -> Backend:
        """Return the backend for this name, built and entered on first use."""
        async with self._opening:
            if text not in self._open:
                made = self._prepared.get(text)
                made = (
                    build(text, self._clock, self._publish, self._patience, self._chaos, self._folder)
                    if made is None
                    else self._governed(made)
                )
                with bound_permissions(permissions().for_model(text)):
                    self._open[text] = await made.__aenter__()
        return self._open[text]

    def _governed(self, backend: Backend) -> Backend:
        """Wrap a ready-made backend in the usual retries if its calls can fail temporarily."""
        backend = ValidatingBackend(backend)
        if self._chaos is not None:
            backend = FaultInjector(backend, self._chaos, self._clock)
        if not backend.fallible:
            return backend
        breaker = _breaker(backend, self._clock, self._publish, self._patience)
        limits = Limits(self._clock, adaptive=AdaptiveLimit(self._clock.now(), None), breaker=breaker)
        return RetryingBackend(backend, limits, self._clock, _policy(self._patience), self._publish)

    async def close(self, text: str) -> None:
        """Close the backend of this name, if there is an open one."""
        self._reached.discard(text)
        backend = self._open.pop(text, None)
        if backend is not None:
            self._closed[text] = backend.statistics()
            await backend.__aexit__(None, None, None)

    async def check(self, names: Iterable[str]) -> None:
        """Check the open backends of these names concurrently, each only until it succeeds; raise the first failure."""
        failures: list[Exception] = []

        async def check_one(name: str, backend: Backend) -> None:
            try:
                with anyio.fail_after(_CHECK_SECONDS):
                    await backend.check()
                self._reached.add(name)
            except TimeoutError:
                failures.append(Unavailable(f"no answer within {_CHECK_SECONDS:g} s ({name})", model=backend.label))
            except Exception as error:  # not as an exception group
                failures.append(error)

        async with anyio.create_task_group() as group:
            for name in dict.fromkeys(names):
                if name not in self._reached:
                    group.start_soon(check_one, name, self._open[name])
        if failures:
            raise failures[0]

    def statistics(self) -> dict[str, dict[str, object]]:
        """Return each model's counters; for closed backends those at closing time."""
        return self._closed | {name: backend.statistics() for name, backend in self._open.items()}


Options = dict[str, tuple[str, str]]  # by name: default and meaning, for `viva list KIND` and the reference

_ENDPOINTS = ("openai", "anthropic", "gemini")
_SHARED = ("every", "endpoint")


def described_kinds() -> list[str]:
    """Return the kinds of models whose options are described in `options.yaml`."""
    return [kind for kind in _read_options() if kind not in _SHARED]


def describe_options(kind: str) -> Options:
    """Return all options of a kind of model, its own first."""
    options = _read_options()
    shared = [*(["endpoint"] if kind in _ENDPOINTS else []), "every"]
    return options[kind] | {
        name: text for group in shared for name, text in options[group].items() if name not in options[kind]
    }


@cache
def _read_options() -> dict[str, Options]:
    import yaml

    text = Path(__file__).with_name("options.yaml").read_text(encoding="utf-8")
    return {
        kind: {name: (str(default), meaning) for name, (default, meaning) in options.items()}
        for kind, options in yaml.safe_load(text).items()
    }
