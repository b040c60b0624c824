"""Models of transformers in memory, each once for all backends that ask for it alike, with the thread that computes.

``torch`` and ``transformers`` (extra ``neural``) are imported here, when a model is first loaded. No code that comes
with a model runs: neither scripts of its own nor pickled weights. What never belongs here: prompts, requests.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import ConfigurationError
from .batches import BatchLoop

EXTRA = "neural"
DTYPES = ("auto", "float32", "bfloat16", "float16")
_NO_LIMIT = 1_000_000  # tokenizers that know of no limit give a huge number


@dataclass(slots=True, frozen=True)
class LoadOptions:
    """What tells one loaded model from another. ``place`` is a folder or a name on the hub; ``device`` empty for a GPU
    where there is one; ``context`` 0 for the model's own; ``batch``: requests computed at once.
    """

    place: str
    device: str = ""
    dtype: str = "auto"
    revision: str = ""
    context: int = 0
    batch: int = 8
    threads: int = 0


@dataclass(slots=True)
class LoadedModel:
    """A model on its device. ``context``: tokens of prompt and answer, 0 where no bound is known. ``ends``: the tokens
    that end an answer; ``special``: the texts of all special tokens.
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
        """The text of tokens, without special ones."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


@dataclass(slots=True)
class _Shared:
    model: LoadedModel
    loop: BatchLoop
    users: int = 0


_open: dict[LoadOptions, _Shared] = {}


def acquire(options: LoadOptions) -> tuple[LoadedModel, BatchLoop]:
    """The model and its thread, loaded at first use. Call ``release`` once for each call.

    :raises ConfigurationError: the packages are missing, or there is no such model, or it is none that generates text.
    """
    shared = _open.get(options)
    if shared is None:
        model = _load(options)
        shared = _open[options] = _Shared(model, BatchLoop(model, options.batch))
    shared.users += 1
    return shared.model, shared.loop


def release(options: LoadOptions) -> None:
    """One user less; the last one closes the model."""
    shared = _open[options]
    shared.users -= 1
    if not shared.users:
        del _open[options]
        shared.loop.close()


def fingerprint(folder: Path) -> str | None:
    """What tells a folder's model from another of the same name: its configuration, and the size and beginning of each
    file of weights. None where there is no such folder.
    """
    try:
        digest = hashlib.sha256((folder / "config.json").read_bytes())
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(f"{path.name} {path.stat().st_size}".encode() + file.read(1 << 20))
    except OSError:
        return None
    return digest.hexdigest()[:16]


def _load(options: LoadOptions) -> LoadedModel:
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError:
        raise ConfigurationError(
            f"hf:{options.place}: needs the packages torch and transformers; install them with: "
            f"pip install 'viva-exam[{EXTRA}]'"
        ) from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    given: dict[str, Any] = {"trust_remote_code": False} | ({"revision": options.revision} if options.revision else {})
    dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
    named = "dtype" if int(transformers.__version__.partition(".")[0]) >= 5 else "torch_dtype"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.place, **given)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            options.place, use_safetensors=True, **{named: dtype}, **given
        )
        network = network.to(device).eval()
    except Exception as error:  # the packages raise whatever they meet
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigurationError(
            f"hf:{options.place}: cannot be loaded: {said} (expected a folder that save_pretrained has written, or "
            "owner/name of the hub, with weights as safetensors)"
        ) from None
    ends = network.generation_config.eos_token_id
    ends = frozenset(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    pad = tokenizer.pad_token_id
    pad = pad if pad is not None else tokenizer.eos_token_id if tokenizer.eos_token_id is not None else 0
    # How the model's makers would sample does not count: a run's settings do.
    network.generation_config = transformers.GenerationConfig(pad_token_id=pad)
    return LoadedModel(
        torch,
        tokenizer,
        network,
        device,
        _context(options, tokenizer, network.config),
        ends - {None},
        pad,
        _special(tokenizer),
    )


def _context(options: LoadOptions, tokenizer: Any, config: Any) -> int:
    trained = getattr(config, "max_position_embeddings", 0) or 0
    longest = tokenizer.model_max_length
    known = [length for length in (options.context, trained, longest) if 0 < length < _NO_LIMIT]
    return min(known, default=0)


def _special(tokenizer: Any) -> tuple[str, ...]:
    """The texts that the tokenizer takes for special tokens, the longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {*map(str, tokenizer.all_special_tokens), *(str(one) for one in added.values() if one.special)}
    return tuple(sorted(found, key=lambda text: (-len(text), text)))
