"""The Dockerfile and the job files of docs/scale.md, as far as they can be checked without Docker and a cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command import viva
from doc_pages import Block, blocks_of
from planted_keys import leaks

ROOT = Path(__file__).parents[1]
_GRID = """
candidates: ['simulated:a']
datasets: [{dataset: ITEMS, n: 16}]
interviews: {interactor: 'simulated:i', evaluator: 'simulated:e', rounds: 1}
"""
_KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"}
_PROGRAMS = {"apt-get", "install", "make", "rm", "useradd"}


def _instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: name and arguments, with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, arguments.strip()) for name, _, arguments in pairs]


def _commands() -> Iterator[list[str]]:
    for name, arguments in _instructions():
        if name == "RUN":
            for command in arguments.split("&&"):
                words = shlex.split(command)
                while "=" in words[0]:
                    del words[0]
                yield words


def test_the_dockerfile_is_well_formed_and_small() -> None:
    instructions = _instructions()
    names = [name for name, _ in instructions]
    assert set(names) <= _KNOWN
    first, last = (index for index, name in enumerate(names) if name == "FROM")
    assert set(names[:first]) == {"ARG"}
    assert instructions[first][1] == "${BUILD_BASE} AS build"
    declared = {arguments.partition("=")[0] for name, arguments in instructions if name == "ARG"}
    used = {name for _, arguments in instructions for name in re.findall(r"\$\{(\w+)\}", arguments)}
    assert used <= declared | {"PATH"}
    final = instructions[last:]
    assert ("COPY", "--from=build /opt/viva /opt/viva") in final
    assert [arguments for name, arguments in final if name == "COPY" and "--from" not in arguments] == []
    users = [arguments for name, arguments in final if name == "USER"]
    [number] = re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    assert users == [number], "the kubelet cannot see whether a name is root"
    assert [yaml.safe_load(arguments) for name, arguments in final if name in ("ENTRYPOINT", "CMD")] == [
        ["viva"],
        ["demo"],
    ]
    assert ("VOLUME", "/data") in final
    assert names.index("VOLUME") > names.index("USER"), "the folder belongs to the user before it becomes a volume"


def test_every_source_and_program_of_the_dockerfile_exists() -> None:
    for name, arguments in _instructions():
        if name == "COPY" and "--from" not in arguments:
            assert all((ROOT / source).exists() for source in arguments.split()[:-1])
    commands = list(_commands())
    assert {words[0] for words in commands} <= _PROGRAMS
    [made] = [words for words in commands if words[0] == "make"]
    done = subprocess.run([*made, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "/opt/viva/bin/pip install" in done.stdout
    assert "-DLLAVA_BUILD=OFF" in done.stdout
    assert viva("demo", "--help").returncode == 0
    ignored = (ROOT / ".dockerignore").read_text().split()
    needed = {"Makefile", "README.md", "LICENSE", "lean-llama.cmake", "pyproject.toml", "setup.py", "engine", "viva"}
    assert not needed & set(ignored)


def test_no_secret_is_in_the_dockerfile_or_its_context() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)(key|token|secret|password)\s*=", text)
    assert not leaks(text.encode())
    assert "**/.*" in (ROOT / ".dockerignore").read_text().split(), "neither .git nor .env nor .venv is sent"


def test_the_parser_of_docker_reads_the_same() -> None:
    parser = pytest.importorskip("dockerfile_parse").DockerfileParser(str(ROOT))
    assert parser.is_multistage
    assert [(one["instruction"], one["value"]) for one in parser.structure if one["instruction"] == "USER"] == [
        ("USER", "10001")
    ]
    assert len([one for one in parser.structure if one["instruction"] != "COMMENT"]) == len(_instructions())


def _block(name: str) -> Block:
    return next(block for block in blocks_of(ROOT / "docs" / "scale.md") if block.file == name)


def _arguments(script: str, **variables: str) -> list[str]:
    """The words with which a script calls `viva`."""
    stub = 'viva() { printf "%s\\n" "$@"; }; srun() { "$@"; }\n'
    environment = variables | {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", stub + script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _check_shards(folder: Path, calls: list[list[str]]) -> None:
    """Every call is one that the command accepts, and together they are all shards."""
    items = ROOT / "scenarios" / "kieval" / "items" / "science.jsonl"
    (folder / "grid.yaml").write_text(_GRID.replace("ITEMS", str(items)))
    assert [words[-1] for words in calls] == [f"{number}/8" for number in range(1, 9)]
    for words in calls:
        words[words.index("--out") + 1] = str(folder / "out")
        done = viva(*words, "--dry-run", cwd=folder)
        assert done.returncode == 0, done.stderr


def test_the_job_of_kubernetes_is_indexed_and_runs_every_shard(tmp_path: Path) -> None:
    job = yaml.safe_load(_block("job.yaml").text)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert job["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] == 8
    # Both need `Never`, and rules by index need a limit by index.
    assert (pod["restartPolicy"], spec["backoffLimitPerIndex"]) == ("Never", 5)
    evicted, rule = spec["podFailurePolicy"]["rules"]
    assert evicted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert rule["action"] == "FailIndex"
    assert rule["onExitCodes"] == {"operator": "In", "values": [2, 3]}
    [container] = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    [user] = [arguments for name, arguments in _instructions() if name == "USER"]
    assert pod["securityContext"] == {"fsGroup": int(user), "runAsNonRoot": True}
    claim = yaml.safe_load(_block("shared.yaml").text)
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]] == [claim["metadata"]["name"]]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    merge = yaml.safe_load(_block("merge.yaml").text)["spec"]["template"]["spec"]
    assert (merge["volumes"], merge["securityContext"]) == (pod["volumes"], pod["securityContext"])
    [merging] = merge["containers"]
    assert (merging["image"], merging["volumeMounts"]) == (container["image"], container["volumeMounts"])
    assert merging["command"] == ["viva", "sweep", "merge", "/shared/grid"]
    assert f"--out {merging['command'][-1]} " in container["command"][-1]
    shell, flag, script = container["command"]
    assert (shell, flag) == ("sh", "-c")
    script = script.removeprefix("exec ")
    _check_shards(tmp_path, [_arguments(script, JOB_COMPLETION_INDEX=str(index)) for index in range(8)])


def test_the_script_of_slurm_is_bash_and_runs_every_shard(tmp_path: Path) -> None:
    script = _block("array.sh").text
    (tmp_path / "array.sh").write_text(script)
    subprocess.run(["bash", "-n", tmp_path / "array.sh"], check=True)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", script, re.MULTILINE))
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    first, last = map(int, options["array"].split("-"))
    tasks = range(first, last + 1)
    _check_shards(tmp_path, [_arguments(script, SLURM_ARRAY_TASK_ID=str(number)) for number in tasks])
    # Slurm's signal before the time limit reaches only what `srun` starts.
    submitted = re.findall(r"sbatch .*?--wrap '(.*?)'", (ROOT / "docs" / "scale.md").read_text(), re.DOTALL)
    assert all(words.startswith("srun viva sweep ") for words in submitted if "merge" not in words)
    assert options["signal"] == "INT@120"
