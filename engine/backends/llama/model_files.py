"""GGUF files by name, without llama.cpp: paths, installed packages, and the stores of Ollama and LM Studio.

A location is a path or `STORE/NAME`:

- `hf/OWNER/REPO[:QUANT]`: the Hugging Face hub (`hub_files`)
- `package/NAME[/FILE]`: an installed Python package, none of whose code runs
- `ollama/NAME[:TAG]`
- `lmstudio/PUBLISHER/REPO/FILE`, or consecutive parts of this path if they are unambiguous

Neither a name nor a store's own files can point outside of the store. A checksum that a store knows is verified before
a file is used, and again when the file has changed; `viva/models` in the user's cache remembers verified files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus

from ...errors import ChecksumMismatch, ConfigurationError
from ...files import user_cache, write_atomically
from ...permissions import permissions

STORES = ("hf", "package", "ollama", "lmstudio")
_SPLIT = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4|BF16|FP?16|FP?32))(?=[-./]|$)", re.IGNORECASE
)
_DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
_BLOCK = 1 << 20
_LARGE = 2_000_000_000  # bytes; reading more is announced, because it takes long
_MAX_JSON = 1 << 20  # bytes of a store's own JSON files


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model: one, or all parts of a split file in order. llama.cpp opens the first and finds the others.

    `sums` are the SHA-256 of the files, "" if the store does not know the sum. `revision` is a commit of the hub.
    """

    paths: tuple[Path, ...]
    sums: tuple[str, ...] = ()
    revision: str = ""

    @property
    def path(self) -> Path:
        """The file to open."""
        return self.paths[0]

    def verify(self) -> None:
        """Check the files against their known sums; a file that was verified before and is unchanged is not read.

        Raises:
            ChecksumMismatch: A file does not have the checksum of its store.
        """
        for path, expected in zip(self.paths, self.sums, strict=False):
            if expected and (actual := file_sum(path)) != expected:
                raise ChecksumMismatch(
                    f"{path}: its SHA-256 is {actual}, expected {expected}: the file is damaged or was changed; "
                    f"delete {path.resolve()} and get the model again"
                )

    def records(self, text: str) -> dict[str, str]:
        """Return what identifies the files: the first under the model's name `text`, further parts under their own."""
        records = {}
        for index, path in enumerate(self.paths):
            revision = f"@{self.revision}" if self.revision else ""
            known = self.sums[index] if self.sums else ""
            digest = f"sha256:{known}" if known else ends_hash(path)
            if digest is not None:
                records[f"{text} {path.name}" if index else text] = f"{path.name}{revision} {digest}"
        return records


# -- names -------------------------------------------------------------------------------------------------------------


def store_name(location: str, folder: Path = Path()) -> tuple[str, str] | None:
    """Return store and name of a location, or None for a path. An existing file is a path."""
    store, slash, name = location.partition("/")
    if store not in STORES or not slash or _is_file(folder / location):
        return None
    return store, name


def locate(location: str, revision: str = "", recorded: str = "") -> ModelFiles:
    """Return the files of a location. A model of the hub may be downloaded; `recorded` is its record in a manifest.

    Raises:
        ConfigurationError: There are no such files, or the name is ambiguous.
        ChecksumMismatch: A file does not have the checksum of its store.
    """
    stored = store_name(location)
    if stored is None:
        return ModelFiles(all_parts(Path(os.path.abspath(Path(location).expanduser()))))
    store, name = stored
    if store == "hf":
        from .hub_files import locate_on_hub

        files = locate_on_hub(name, revision, recorded)
    else:
        find = {"package": _locate_in_package, "ollama": _locate_in_ollama, "lmstudio": _locate_in_lmstudio}[store]
        files = find(name)
    files.verify()
    return files


def check_name(location: str, revision: str) -> None:
    """Check everything about a location that needs neither a store nor the network; a path must exist.

    Raises:
        ConfigurationError: The name has the wrong form, or a file is missing.
    """
    stored = store_name(location)
    if stored is None:
        path = Path(location).expanduser()
        if not _is_file(path):
            raise ConfigurationError(f"no file {path}{permissions().similar_name(path)}")
        all_parts(path)
    elif stored[0] == "hf":
        from .hub_files import HubName

        HubName.parse(stored[1])
    elif ".." in stored[1].split("/") or not stored[1].strip("/"):
        raise ConfigurationError(f"'{location}' is not a name; for a local path, write ./{location}")
    if revision and (stored is None or stored[0] != "hf"):
        raise ConfigurationError(f"revision={revision}: is for models of the hub (llama:hf/OWNER/REPO)")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


# -- adapters ----------------------------------------------------------------------------------------------------------

_SCALE = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_MAX_SCALE = 1000.0


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its GGUF file, and the factor by which its effect is multiplied."""

    path: Path
    scale: float = 1.0


def parse_adapters(name: str) -> tuple[Adapter, ...]:
    """Return the adapters of a model's name: `lora=FILE[,SCALE][,FILE[,SCALE]]…`. A comma in a path is written `%2C`.

    Raises:
        ConfigurationError: The option has another form, or a file is missing.
    """
    adapters: list[Adapter] = []
    for field in name.partition("?")[2].split("&"):
        pieces = field.removeprefix("lora=").split(",") if field.startswith("lora=") else []
        for before, piece in zip([None, *pieces], pieces, strict=False):
            text = unquote_plus(piece)
            if _SCALE.fullmatch(text):
                if before is None or _SCALE.fullmatch(before) or abs(float(text)) > _MAX_SCALE:
                    raise ConfigurationError(
                        f"{field}: expected lora=FILE[,SCALE], several of them separated by commas, and scales up to "
                        f"{_MAX_SCALE:g}; if a file's name is a number, write ./{text}"
                    )
                adapters[-1] = Adapter(adapters[-1].path, float(text))
            elif not _is_file(Path(text).expanduser()):
                raise ConfigurationError(f"{field}: no file {text or '(empty)'}; a comma in a path is written %2C")
            else:
                adapters.append(Adapter(Path(os.path.abspath(Path(text).expanduser()))))
    return tuple(adapters)


def with_absolute_adapters(options: str, folder: Path) -> str:
    """Return the options of a model's name with the paths of adapters made absolute."""
    fields = options.split("&")
    for index, field in enumerate(fields):
        if field.startswith("lora="):
            pieces = [
                piece
                if _SCALE.fullmatch(piece) or not piece
                else quote(str((folder / Path(unquote_plus(piece)).expanduser()).resolve()), safe="/")
                for piece in field.removeprefix("lora=").split(",")
            ]
            fields[index] = f"lora={','.join(pieces)}"
    return "&".join(fields)


# -- split files and quantisations -------------------------------------------------------------------------------------


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the file `name`, or only `name` if the file is not split.

    Raises:
        ConfigurationError: `name` is a part other than the first.
    """
    match = _SPLIT.fullmatch(name)
    if match is None:
        return [name]
    total = int(match["total"])
    names = [f"{match['stem']}-{number:05}-of-{match['total']}{name[-5:]}" for number in range(1, total + 1)]
    if int(match["number"]) != 1 or not names:
        first = f"{match['stem']}-00001-of-{match['total']}{name[-5:]}"
        raise ConfigurationError(f"{name} is not the first part of a split model; name {first}")
    return names


def all_parts(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts of a model, or raise ConfigurationError if one is missing."""
    parts = tuple(path.with_name(name) for name in part_names(path.name))
    missing = [part.name for part in parts if not _is_file(part)]
    if missing:
        count = f" (of {len(parts)} parts)" if len(parts) > 1 else ""
        raise ConfigurationError(f"{path.parent}: no file {', '.join(missing)}{count}; put it next to the other parts")
    return parts


def model_names(names: Iterable[str]) -> list[str]:
    """Return the names of files that are models, sorted: no projectors or calibration data, only first parts."""
    return sorted(
        name
        for name in names
        if name.lower().endswith(".gguf")
        and not re.search(r"(^|[-_./])(mmproj|imatrix)", name, re.IGNORECASE)
        and ((match := _SPLIT.fullmatch(name)) is None or int(match["number"]) == 1)
    )


def quant_of(name: str) -> str:
    """Return the quantisation in a file's name, as `Q4_K_M`; "" if there is none."""
    match = _SPLIT.fullmatch(name)
    tags = _QUANT.findall(match["stem"] if match else name[: -len(".gguf")])
    return str(tags[-1]).upper() if tags else ""


def choose_quant(names: Sequence[str], quant: str, repository: str) -> str:
    """Return the one file of a repository that `quant` names, whatever its letter case; "" chooses a usual one.

    Raises:
        ConfigurationError: No file or several files are meant; the message lists the quantisations.
    """
    names = model_names(names)
    if not names:
        raise ConfigurationError(f"{repository}: has no GGUF file; look for a repository whose name ends in GGUF")
    for tag in (quant,) if quant else _DEFAULT_QUANTS:
        chosen = [name for name in names if quant_of(name) == tag.upper()]
        chosen = chosen or [name for name in names if quant and tag.lower() in name.lower()]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise ConfigurationError(
                f"{repository}: '{tag}' is in the names of several files: {_shortened(chosen)}; "
                "write more of the name after ':'"
            )
    if not quant and len(names) == 1:
        return names[0]
    tags = list(dict.fromkeys(quant_of(name) or Path(name).stem for name in names))
    problem = f"no file of quantisation '{quant}'" if quant else f"no file of {' or '.join(_DEFAULT_QUANTS)}"
    raise ConfigurationError(f"{repository}: {problem}; there are: {_shortened(tags)}; write one after ':'")


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


# -- checksums ---------------------------------------------------------------------------------------------------------


def ends_hash(path: Path) -> str | None:
    """Return a file's size and a hash of both ends, to distinguish files of the same name; None if it is unreadable."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            digest = hashlib.sha256(file.read(_BLOCK))
            file.seek(max(0, size - _BLOCK))
            digest.update(file.read())
    except OSError:
        return None
    return f"{size}-{digest.hexdigest()[:16]}"


def file_sum(path: Path) -> str:
    """Return the SHA-256 of a file's content; it is computed again only after the file has changed.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    try:
        real = path.resolve()
        status = real.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        remembered = _read_sums().get(str(real))
        if isinstance(remembered, list) and remembered[:-1] == state:
            return str(remembered[-1])
        if status.st_size > _LARGE:
            size = f"{status.st_size / 1e9:,.1f} GB"
            logging.getLogger("viva").warning("%s: reading all %s once to check the SHA-256", path, size)
        with real.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    sums = {name: value for name, value in _read_sums().items() if Path(name).exists()} | {str(real): [*state, digest]}
    with suppress(OSError):  # without a cache the next process computes it again
        user_cache("models").mkdir(parents=True, exist_ok=True)
        write_atomically(user_cache("models", "sums.json"), json.dumps(sums).encode())
    return digest


def _read_sums() -> dict[str, Any]:
    sums = _read_json(user_cache("models", "sums.json"))
    return sums if isinstance(sums, dict) else {}


def _read_json(path: Path) -> Any:
    """Return the content of a small JSON file, or None."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_JSON + 1)
        return json.loads(data) if len(data) <= _MAX_JSON else None
    except (OSError, ValueError, RecursionError):
        return None


def _inside(path: Path, root: Path, name: str) -> Path:
    """Return a path of a store, or raise ConfigurationError if links lead out of the store."""
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigurationError(
            f"{name}: {path} links to {path.resolve()}, outside of {root}; if you trust that file, give its path"
        )
    return path


# -- packages ----------------------------------------------------------------------------------------------------------

_PART_OF_FILE = re.compile(r"(.+\.gguf)\.part(\d+)", re.IGNORECASE)


def _locate_in_package(name: str) -> ModelFiles:
    """Return the GGUF file of an installed package: its only one, or the one that is named after the package."""
    package, _, file = name.partition("/")
    folders = _package_folders(package)
    if not folders:
        raise ConfigurationError(
            f"package/{name}: no package '{package}' is installed in this environment ({sys.prefix}); "
            f"install it, as in: pip install {package.replace('_', '-')}"
        )
    files = {str(path.relative_to(folder)): (folder, path) for folder in folders for path in _walk(folder, ".gguf")}
    names = [path for path in files if path == file] if file else model_names(files)
    if len(names) == 1:
        folder, path = files[names[0]]
        return ModelFiles(tuple(_inside(part, folder, f"package/{name}") for part in all_parts(path)))
    if not files and not file and (joined := _join_parts(package, folders)) is not None:
        return joined
    listed = f"its GGUF files: {_shortened(model_names(files))}" if files else "it contains no GGUF file"
    advice = f"; write package/{package}/FILE" if files else ""
    raise ConfigurationError(f"package/{name}: {listed}{advice}")


def _package_folders(package: str) -> list[Path]:
    """Return the folders of an installed package, found without importing it."""
    module = package.replace("-", "_")
    if not module.isidentifier():  # the parent of a dotted name would be imported
        return []
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return []
    return [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ()) if Path(folder).is_dir()]


def _join_parts(package: str, folders: Sequence[Path]) -> ModelFiles | None:
    """Return a file that comes in pieces, `FILE.gguf.part00` and so on, in packages `NAME_part1` and so on.

    Return None if there are no pieces. The file is joined in the user's cache. The package must have its sum in a file
    `SHA256SUMS`, because otherwise a missing last piece would not be noticed.
    """
    module, every = package.replace("-", "_"), list(folders)
    while more := _package_folders(f"{module}_part{len(every) - len(folders) + 1}"):
        every += more[:1]
    pieces: dict[str, dict[int, Path]] = {}
    for folder in every:
        for path in _walk(folder, ""):
            if match := _PART_OF_FILE.fullmatch(path.name):
                pieces.setdefault(match[1], {})[int(match[2])] = _inside(path, folder, f"package/{package}")
    if len(pieces) != 1:
        return None
    file, numbered = next(iter(pieces.items()))
    expected = next((digest for folder in folders for digest, name in _listed_sums(folder) if name == file), "")
    if not expected:
        raise ConfigurationError(f"package/{package}: has pieces of {file} but no SHA256SUMS that names it")
    target = user_cache("models", expected[:16], file)
    if not target.is_file():
        logging.getLogger("viva").warning("joining the %d pieces of %s into %s", len(numbered), file, target)
        actual = _concatenate([numbered[number] for number in sorted(numbered)], target, expected)
        if actual != expected:
            raise ChecksumMismatch(
                f"package/{package}: the {len(numbered)} installed pieces of {file} have the SHA-256 {actual}, "
                f"expected {expected}: a package is missing or damaged; install all of them again, as in: "
                f"pip install --force-reinstall {package.replace('_', '-')}"
            )
    return ModelFiles((target,), (expected,))


def _listed_sums(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield sum and file name of the lines of a package's `SHA256SUMS`."""
    for path in _walk(folder, "SHA256SUMS"):
        with suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if match := re.fullmatch(r"([0-9a-fA-F]{64}) [ *](\S+)", line.strip()):
                    yield match[1].lower(), match[2].rpartition("/")[2]


def _concatenate(pieces: Sequence[Path], target: Path, expected: str) -> str:
    """Join pieces into a file if their sum is the expected one; return their sum."""
    digest = hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as out:
                for piece in pieces:
                    with piece.open("rb") as file:
                        while block := file.read(_BLOCK):
                            digest.update(block)
                            out.write(block)
            if digest.hexdigest() == expected:
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{target}: cannot be written: {error.strerror}") from None
    return digest.hexdigest()


def _walk(folder: Path, ending: str, depth: int = 4) -> list[Path]:
    """Return the files with this ending in a folder and below it; links to folders are not followed."""
    files: list[Path] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return files
    for entry in entries:
        if entry.name.lower().endswith(ending.lower()) and entry.is_file():
            files.append(Path(entry.path))
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            files += _walk(Path(entry.path), ending, depth - 1)
    return files


# -- Ollama ------------------------------------------------------------------------------------------------------------

_SEGMENT = re.compile(r"[A-Za-z0-9_][\w.-]*(?::\d{1,5})?", re.ASCII)  # a registry's host may have a port
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_REGISTRY, _LIBRARY, _TAG = "registry.ollama.ai", "library", "latest"
_LAYER = "application/vnd.ollama.image."


def _ollama_folders() -> list[Path]:
    configured = os.environ.get("OLLAMA_MODELS")
    if configured:
        return [Path(configured).expanduser()]
    return [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def _locate_in_ollama(name: str) -> ModelFiles:
    """Return the file of a model that Ollama has pulled: `NAME[:TAG]`, `USER/NAME[:TAG]` or `HOST/USER/NAME[:TAG]`."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", _TAG)
    segments = path.split("/")
    segments = [*(_REGISTRY, _LIBRARY)[: max(0, 3 - len(segments))], *segments, tag]
    if len(segments) != 4 or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise ConfigurationError(f"ollama/{name}: expected ollama/NAME[:TAG] or ollama/USER/NAME[:TAG]")
    for folder in _ollama_folders():
        manifest = folder / "manifests" / Path(*segments)
        if manifest.is_file():
            return _ollama_files(folder, _inside(manifest, folder, f"ollama/{name}"), f"ollama/{name}")
    there = [model.name.removeprefix("llama:") for model in _list_ollama()]
    listed = f"there are: {_shortened(there)}" if there else "none is there"
    raise ConfigurationError(
        f"ollama/{name}: no such model in {_ollama_folders()[0]}; {listed}; get it with: ollama pull {name}"
    )


def _ollama_files(folder: Path, manifest: Path, name: str) -> ModelFiles:
    data = _read_json(manifest)
    layers = data.get("layers") if isinstance(data, dict) else None
    kinds: dict[str, list[str]] = {}
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and str(layer.get("mediaType")).startswith(_LAYER):
            kinds.setdefault(str(layer["mediaType"]).removeprefix(_LAYER), []).append(str(layer.get("digest")))
    digests = [_DIGEST.fullmatch(digest) for digest in kinds.get("model", ())]
    if len(digests) != 1 or digests[0] is None:
        raise ConfigurationError(f"{name}: {manifest} does not name one model by its SHA-256; pull it again")
    if "adapter" in kinds:
        raise ConfigurationError(f"{name}: is a model with an adapter; name the base and add ?lora=FILE")
    blob = folder / "blobs" / f"sha256-{digests[0][1]}"
    if not blob.is_file():
        raise ConfigurationError(f"{name}: its file {blob} is missing; pull it again")
    return ModelFiles((_inside(blob, folder, name),), (digests[0][1],))


# -- LM Studio ---------------------------------------------------------------------------------------------------------


def _lmstudio_folders() -> list[Path]:
    return [Path.home() / ".lmstudio" / "models", Path.home() / ".cache" / "lm-studio" / "models"]


def _lmstudio_names() -> Iterator[tuple[str, Path, Path]]:
    """Yield each model of LM Studio: its path below the folder of models, that folder, and its file."""
    for root in _lmstudio_folders():
        files = {str(path.relative_to(root)): path for path in _walk(root, ".gguf")}
        for name in model_names(files):
            yield name, root, files[name]


def _locate_in_lmstudio(name: str) -> ModelFiles:
    """Return the file of a model of LM Studio: `PUBLISHER/REPO/FILE`, or unambiguous parts of this path."""

    def key(text: str) -> str:
        return f"/{text.strip('/').lower().removesuffix('.gguf')}/"

    models = list(_lmstudio_names())
    chosen = [model for model in models if key(model[0]) == key(name)] or [
        model for model in models if key(name) in key(model[0])
    ]
    if len(chosen) == 1:
        _, root, path = chosen[0]
        return ModelFiles(tuple(_inside(part, root, f"lmstudio/{name}") for part in all_parts(path)))
    there = [model[0] for model in chosen or models]
    problem = "several models have that name" if chosen else f"no such model in {_lmstudio_folders()[0]}"
    listed = f"there are: {_shortened(there)}" if there else "none is there"
    raise ConfigurationError(f"lmstudio/{name}: {problem}; {listed}")


# -- what is on this machine -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A GGUF model on this machine: the name to type, and its size in bytes."""

    name: str
    size: int


def list_installed() -> list[InstalledModel]:
    """Return the models that can be named without a download. Nothing is hashed or imported."""
    return [*_list_hub(), *_list_packages(), *_list_ollama(), *_list_lmstudio()]


def _size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _list_hub() -> Iterator[InstalledModel]:
    from .hub_files import HubCache

    for repository, files in HubCache().repositories():
        names = model_names(files)
        for name in names:
            with suppress(ConfigurationError):
                paths = [files[part] for part in part_names(name) if part in files]
                if len(paths) == len(part_names(name)):
                    quants = [quant_of(other) for other in names]
                    short = quant_of(name) if quants.count(quant_of(name)) == 1 else Path(name).stem
                    suffix = f":{short}" if short else ""
                    yield InstalledModel(f"llama:hf/{repository}{suffix}", _size(paths))


def _list_packages() -> Iterator[InstalledModel]:
    for base in _package_bases():
        for package in sorted(_scan(base)):
            files = {str(path.relative_to(package)): path for path in _walk(package, ".gguf", depth=2)}
            names = model_names(files)
            for name in names:
                file = f"/{name}" if len(names) > 1 else ""
                yield InstalledModel(f"llama:package/{package.name}{file}", _size([files[name]]))
            part = package.with_name(f"{package.name}_part1")
            if not names and part.is_dir():
                pieces = [
                    path
                    for number in range(1, 1000)
                    for path in _walk(package.with_name(f"{package.name}_part{number}"), "", depth=2)
                    if _PART_OF_FILE.fullmatch(path.name)
                ]
                if pieces:
                    yield InstalledModel(f"llama:package/{package.name}", _size(pieces))


def _package_bases() -> list[Path]:
    """Return the folders that packages are installed in."""
    folders = map(Path, dict.fromkeys(sys.path))
    return [folder for folder in folders if folder.name in ("site-packages", "dist-packages")]


def _scan(folder: Path) -> list[Path]:
    """Return the packages in a folder of modules."""
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.isidentifier() and entry.is_dir()]
    except OSError:
        return []


def _list_ollama() -> Iterator[InstalledModel]:
    for folder in _ollama_folders():
        root = folder / "manifests"
        for path in _walk(root, "", depth=5):
            segments = path.relative_to(root).parts
            if len(segments) != 4:
                continue
            host, user, name, tag = segments
            prefix = f"{user}/" if host == _REGISTRY else f"{host}/{user}/"
            prefix = prefix.removeprefix(f"{_LIBRARY}/")
            with suppress(ConfigurationError):
                files = _ollama_files(folder, _inside(path, folder, name), name)
                yield InstalledModel(f"llama:ollama/{prefix}{name}:{tag}", _size(files.paths))


def _list_lmstudio() -> Iterator[InstalledModel]:
    for name, _, path in _lmstudio_names():
        with suppress(ConfigurationError):
            yield InstalledModel(f"llama:lmstudio/{name.removesuffix('.gguf')}", _size(all_parts(path)))
