"""Transformers models in this process, for models without a GGUF file: `hf:FOLDER` or `hf:owner/name`.

Options: `device` (default: a GPU if there is one), `dtype` (auto, float32, bfloat16, float16), `batch` (requests
computed at once), `ctx` (tokens of prompt and answer), `threads`, `template` (plain, chatml or a file), `revision` (of
a name on the hub).

`torch` and `transformers` (extra `neural`) are imported when a model is first loaded; backends with identical options
share the loaded model. Code that comes with a model never runs, neither scripts nor pickled weights. Special tokens
that a message spells out are escaped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ..cancellation import RunStopping
from ..clock import Clock
from ..errors import BackendError, ConfigurationError, ContextTooLong, Rejected
from ..likelihood import Reading
from ..messages import Completion, Message, Request, fold_system_messages
from .base import Backend, ModelSpec
from .hf_generation import BatchLoop, HfGeneration, LikelihoodRequest
from .llama.chat_template import NAMED_TEMPLATES, read_template
from .llama.lanes import ThreadAnswer
from .llama.sampler import SamplerSettings
from .llama.tokenizer import opened_marker, prepend_marker

EXTRA = "neural"
DTYPES = ("auto", "float32", "bfloat16", "float16")
_NO_LIMIT = 1_000_000  # tokenizers without a limit report a huge number


@dataclass(slots=True, frozen=True)
class LoadOptions:
    """Identity of a loaded model.

    `source` is a folder or a name on the hub; an empty `device` means a GPU if there is one; `context` 0 means the
    model's own; `batch` is the number of requests computed at once.
    """

    source: str
    device: str = ""
    dtype: str = "auto"
    revision: str = ""
    context: int = 0
    batch: int = 8
    threads: int = 0


@dataclass(slots=True)
class LoadedModel:
    """A model on its device.

    `context` is the maximum number of tokens of prompt and answer, 0 if unknown. `ends` are the tokens that end an
    answer. `special` are the texts of all special tokens.
    """

    torch: Any
    tokenizer: Any
    network: Any
    device: str
    context: int
    ends: frozenset[int]
    pad: int
    special: tuple[str, ...]

    def decoded(self, tokens: list[int]) -> str:
        """Return the text of tokens, without special tokens."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


@dataclass(slots=True)
class _SharedModel:
    model: LoadedModel
    loop: BatchLoop
    users: int = 0


_shared_models: dict[LoadOptions, _SharedModel] = {}


def acquire_model(options: LoadOptions) -> tuple[LoadedModel, BatchLoop]:
    """Return the model and its thread, loading it on first use. Call `release_model` once for each use.

    Raises:
        ConfigurationError: The packages are missing, the model does not exist, or the model does not generate text.
    """
    shared = _shared_models.get(options)
    if shared is None:
        model = _load_model(options)
        shared = _shared_models[options] = _SharedModel(model, BatchLoop(model, options.batch))
    shared.users += 1
    return shared.model, shared.loop


def release_model(options: LoadOptions) -> None:
    """Release one use of a model; the last one closes it."""
    shared = _shared_models[options]
    shared.users -= 1
    if not shared.users:
        del _shared_models[options]
        shared.loop.close()


def fingerprint(folder: Path) -> str | None:
    """Return a hash that distinguishes models of the same name; None if the folder has no readable model.

    It covers the configuration, and the size and beginning of each weights file.
    """
    try:
        digest = hashlib.sha256((folder / "config.json").read_bytes())
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(1 << 20))
    except OSError:
        return None
    return digest.hexdigest()[:16]


def _load_model(options: LoadOptions) -> LoadedModel:
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError:
        raise ConfigurationError(
            f"hf:{options.source}: needs the packages torch and transformers; install them with: "
            f"pip install 'viva-exam[{EXTRA}]'"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    arguments: dict[str, Any] = {"trust_remote_code": False} | (
        {"revision": options.revision} if options.revision else {}
    )
    dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
    named = "dtype" if int(transformers.__version__.partition(".")[0]) >= 5 else "torch_dtype"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.source, **arguments)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            options.source, use_safetensors=True, **{named: dtype}, **arguments
        )
        network = network.to(device).eval()
    except Exception as error:  # the packages may raise anything
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigurationError(
            f"hf:{options.source}: cannot be loaded: {message} (expected a folder that save_pretrained has written, or "
            "owner/name of the hub, with weights as safetensors)"
        ) from None
    ends = network.generation_config.eos_token_id
    ends = frozenset(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    pad = tokenizer.pad_token_id
    pad = pad if pad is not None else tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0
    # The default sampling of the model's authors is ignored: the run's settings apply.
    network.generation_config = transformers.GenerationConfig(pad_token_id=pad)
    return LoadedModel(
        torch,
        tokenizer,
        network,
        device,
        _context_length(options, tokenizer, network.config),
        ends - {None},
        pad,
        _special_texts(tokenizer),
    )


def _context_length(options: LoadOptions, tokenizer: Any, config: Any) -> int:
    trained = getattr(config, "max_position_embeddings", 0) or 0
    longest = tokenizer.model_max_length
    known = [length for length in (options.context, trained, longest) if 0 < length < _NO_LIMIT]
    return min(known, default=0)


def _special_texts(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that the tokenizer treats as special tokens, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    names = {*map(str, tokenizer.all_special_tokens), *(str(token) for token in added.values() if token.special)}
    return tuple(sorted(names, key=lambda text: (-len(text), text)))


_ZERO_WIDTH_SPACE = "\u200b"  # invisible; breaks up the text of a special token
_TEMPLATE_DATE = datetime(2024, 1, 1)  # a fixed date, so that prompts do not change from day to day


def render_chat(model: LoadedModel, messages: Sequence[Message], template: str | None, label: str) -> str:
    """Render the conversation by the chat template, up to the beginning of the answer.

    If the template refuses the messages, it is tried again after `fold_system_messages`. `template` None: the model's.

    Raises:
        ConfigurationError: The conversation has tool calls, which these models do not support.
        Rejected: The template refuses this sequence of roles.
    """
    if any(message.calls or message.role == "tool" for message in messages):
        raise ConfigurationError(
            f"{label}: models of kind hf support no tools; use a GGUF file (llama:) or an endpoint"
        )
    for variant in (messages, fold_system_messages(messages)):
        turns = [{"role": message.role, "content": _escape_special(model, message.content)} for message in variant]
        try:
            return _render_template(model, turns, template)
        except Exception as error:  # a template's code may raise anything
            problem = error
    raise Rejected(f"its chat template refuses these messages: {problem}", model=label) from None


def tokenise(model: LoadedModel, text: str, *, opened: bool) -> list[int]:
    """Return the tokens of a text; `opened` adds the tokens that open every text."""
    tokens: list[int] = model.tokenizer(text, add_special_tokens=opened)["input_ids"]
    return tokens


def max_answer_tokens(model: LoadedModel, prompt: list[int], asked_for: int, label: str) -> int:
    """Return the maximum number of tokens of an answer: `asked_for`, or what is left of the context if that is less.

    Raises:
        ContextTooLong: There is no room for an answer.
    """
    if not model.context:
        return asked_for
    if len(prompt) >= model.context:
        raise ContextTooLong(
            f"the prompt has {len(prompt)} tokens, the context {model.context} (option ctx, and the model's limit)",
            model=label,
        )
    return min(asked_for, model.context - len(prompt))


def tokenise_continuations(model: LoadedModel, reading: Reading, label: str) -> list[tuple[list[int], int]]:
    """Return, for each continuation, all tokens of the text and how many leading tokens are not scored.

    Tokens that end before the continuation begins are not scored, nor is the first token of a text, which has no
    likelihood.

    Raises:
        Rejected: A continuation is empty.
        ContextTooLong: A text does not fit.
    """
    before = _escape_special(model, reading.shared + reading.context)
    tokenised = []
    for continuation in reading.continuations:
        tokens, skipped = _tokens_with_context_length(model, before, _escape_special(model, continuation))
        if len(tokens) <= skipped:
            raise Rejected("nothing to score: a text is empty, or has one token and no context", model=label)
        if model.context and len(tokens) > model.context:
            raise ContextTooLong(f"a text has {len(tokens)} tokens, the model's context {model.context}", model=label)
        tokenised.append((tokens, skipped))
    return tokenised


def _tokens_with_context_length(model: LoadedModel, before: str, continuation: str) -> tuple[list[int], int]:
    """Return a text's tokens, and how many of them end before `continuation` begins."""
    if not model.tokenizer.is_fast:  # slow tokenizers cannot report token offsets
        context = tokenise(model, before, opened=True)
        return tokenise(model, before + continuation, opened=True), max(1, len(context))
    encoding = model.tokenizer(before + continuation, return_offsets_mapping=True)
    places = zip(encoding["offset_mapping"], encoding["input_ids"], strict=True)
    skipped = sum(1 for (start, end), _ in places if end <= len(before) or start == end)
    return encoding["input_ids"], max(1, skipped)


def _render_template(model: LoadedModel, turns: list[dict[str, str]], template: str | None) -> str:
    used = template or model.tokenizer.chat_template or NAMED_TEMPLATES["plain"]
    text: str = model.tokenizer.apply_chat_template(
        turns, chat_template=used, tokenize=False, add_generation_prompt=True, strftime_now=_TEMPLATE_DATE.strftime
    )
    return text


def _escape_special(model: LoadedModel, text: str) -> str:
    """Return the content with all special token texts escaped."""
    for special in model.special:
        if special in text:
            text = re.sub(re.escape(special), special[:1] + _ZERO_WIDTH_SPACE + special[1:], text)
    return text


class HfBackend(Backend):
    """A transformers model, loaded when the backend is entered."""

    continues_text = True

    def __init__(self, clock: Clock, options: LoadOptions, template: str | None = None) -> None:
        self._clock, self._options, self._template = clock, options, template
        self._open: tuple[LoadedModel, BatchLoop] | None = None

    async def __aenter__(self) -> Backend:
        self._open = acquire_model(self._options)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._open is not None:
            self._open = None
            release_model(self._options)

    async def generate(self, request: Request) -> Completion:
        """Answer one request. A schema is not enforced: only the prompt describes it.

        Raises:
            ConfigurationError: The request offers tools.
        """
        model, loop = self._loaded
        if request.tools is not None:
            raise ConfigurationError(f"{self.label}: models of kind hf support no tools; use llama: or an endpoint")
        if request.prompt is None:
            text = render_chat(model, request.messages, self._template, self.label)
            prompt, opened = tokenise(model, text, opened=False), opened_marker(text)
        else:
            prompt, opened = tokenise(model, request.prompt, opened=True), ""
        sampling = request.sampling
        answer = HfGeneration(
            prompt or [model.pad],
            SamplerSettings.from_sampling(request.seed, sampling),
            max_answer_tokens(model, prompt, sampling.max_tokens, self.label),
            model.decoded,
            sampling.stop,
        )
        began = self._clock.now()
        first = await self._computed(loop, answer, prepend_marker(request.on_text, opened))
        return Completion(
            opened + answer.text,
            answer.finish,
            len(prompt),
            len(answer.tokens),
            self._clock.now() - began,
            None if first is None else first - began,
            logprobs=answer.logprobs,
            pieces=[(True, answer.tokens)] if answer.tokens else None,
        )

    async def read(self, reading: Reading) -> Completion:
        """Compute the likelihoods of all continuations together.

        Raises:
            Rejected: A text is empty.
            ContextTooLong: A text does not fit.
        """
        model, loop = self._loaded
        texts = tokenise_continuations(model, reading, self.label)
        work = LikelihoodRequest(texts, reading.moments)
        began = self._clock.now()
        await self._computed(loop, work, None)
        count = sum(len(tokens) for tokens, _ in texts)
        return Completion("", "stop", count, 0, self._clock.now() - began, likelihoods=work.results)

    def statistics(self) -> dict[str, Any]:
        if self._open is None:
            return {}
        loop = self._open[1]
        return {"batches": loop.batches, "requests": loop.computed, "device": self._open[0].device}

    @property
    def _loaded(self) -> tuple[LoadedModel, BatchLoop]:
        if self._open is None:
            raise ConfigurationError(f"{self.label}: the backend is used outside its `async with`")
        return self._open

    async def _computed(
        self, loop: BatchLoop, work: HfGeneration | LikelihoodRequest, on_text: Callable[[str], None] | None
    ) -> float | None:
        """Compute a request, passing on its text in this task; return the clock's time of the first piece."""
        answer = ThreadAnswer(self._clock)
        work.on_done = answer.end
        if isinstance(work, HfGeneration) and on_text is not None:
            work.on_text = answer.put
        first = await answer.wait(loop, work, on_text)
        if isinstance(work.error, RunStopping):
            raise work.error
        if isinstance(work.error, BackendError):
            message = str(work.error).removeprefix(f"{work.error.model}: ")
            raise type(work.error)(message, model=self.label)
        return first


def build(spec: ModelSpec, clock: Clock) -> Backend:
    """Build a model from `hf:FOLDER?options` or `hf:owner/name?options`; it is loaded when the backend is entered.

    Raises:
        ConfigurationError: An option is invalid.
    """
    if not spec.where:
        raise ConfigurationError(
            f"model '{spec.text}': name a folder (hf:my-model) or a model of the hub (hf:owner/name)"
        )
    options = LoadOptions(
        spec.where,
        device=spec.take("device", "") or "",
        dtype=spec.one_of("dtype", DTYPES, "auto"),
        revision=spec.take("revision", "") or "",
        context=spec.whole("ctx") or 0,
        batch=spec.whole("batch", high=4096) or 8,
        threads=spec.whole("threads", high=512) or 0,
    )
    return HfBackend(clock, options, read_template(spec.take("template")))
