"""docker/: what can be told from the files, and, with an engine and a base image, images that are built and run.

WDSPACK_DOCKER_BASE=python:3.12-slim-bookworm python -m pytest -m docker tests/test_docker.py
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import wdspack

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
TARGETS = ("runtime", "tools", "test")
if not DOCKER.is_dir():
    pytest.skip("an installed wdspack has no docker/", allow_module_level=True)

# The files ------------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """(instruction, its arguments) of the Dockerfile, in order, continued lines joined."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word.upper(), rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """name → its FROM and all that follows."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            current = found.setdefault(rest.rpartition(" AS ")[2], [])
        if found:
            current.append((word, rest))
    return found


def lineage(name: str) -> list[tuple[str, str]]:
    """All instructions that make up a stage's image, its parents' first."""
    own = stages()[name]
    parent = own[0][1].partition(" ")[0]
    return (lineage(parent) if parent in stages() else []) + own


def test_one_base_several_targets_and_the_last_is_the_one_that_does_all():
    assert list(stages()) == ["base", "lists", "deps", "source", "runtime", "tool-deps", "test", "tools"]
    outside = {own[0][1].partition(" ")[0] for own in stages().values()} - stages().keys()
    assert outside == {"${BASE_IMAGE}"}, "no image but the base is pulled"
    default = next(rest for word, rest in instructions() if word == "ARG")
    assert re.fullmatch(r"BASE_IMAGE=python:3\.\d+-slim-\w+", default)


@pytest.mark.parametrize("target", TARGETS)
def test_nobody_runs_as_root_and_what_is_written_has_one_place(target):
    made = lineage(target)
    users = [rest for word, rest in made if word == "USER"]
    assert users[-1] == "10001:10001", "by number, so that an orchestrator can tell that it is not root"
    assert ("WORKDIR", "/data") in made
    assert any(word == "ENV" and "HOME=/data" in rest for word, rest in made)
    assert [json.loads(rest) for word, rest in made if word == "ENTRYPOINT"], "as a list: signals reach the process"


def test_dependencies_come_before_the_source_and_source_changes_leave_them_alone():
    for name in ("deps", "tool-deps"):
        copied = [rest for word, rest in lineage(name) if word == "COPY"]
        assert copied
        assert not any(
            re.search(r"wdspack /|tools /|tests /|=source", rest.replace("/opt/wdspack", "")) for rest in copied
        )
    for target in TARGETS:
        words = [(word, rest) for word, rest in lineage(target)]
        (source,) = [n for n, (word, rest) in enumerate(words) if word == "COPY" and "--from=source" in rest]
        assert not any(word == "RUN" for word, _ in words[source:])


def test_all_that_is_copied_is_there_and_passes_the_ignore_file():
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "#" or ignored[0] == "*"
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    for word, rest in instructions():
        if word == "COPY" and "--from=" not in rest:
            for path in rest.split()[:-1]:
                assert (ROOT / path).exists(), path
                assert Path(path).parts[0] in allowed, path
    assert os.access(DOCKER / "entrypoint.sh", os.X_OK)


def test_layers_hold_no_secrets_caches_or_unpinned_downloads():
    text = (DOCKER / "Dockerfile").read_text()
    assert not re.search(r"(?i)secret|password|token\b|access_key", text)
    assert "PIP_NO_CACHE_DIR=1" in text
    assert not any(word == "ADD" for word, _ in instructions())
    for word, rest in instructions():
        if word == "RUN":
            assert not re.search(r"\bapt(-get)?\b|curl|wget|sudo", rest)
            if "pip install" in rest and '"$TORCH"' not in rest:
                assert "constraints.txt" in rest
    assert re.search(r"ARG TORCH=torch==\d", text)


def test_every_dependency_is_pinned_but_torch():
    pins = {}
    for line in (DOCKER / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins.setdefault(pin.name.lower(), []).append(str(pin.specifier).removeprefix("=="))
    assert not {name for name in pins if re.fullmatch("torch|triton|nvidia-.*|cuda-.*", name)}
    script = [sys.executable, DOCKER / "requirements.py"]
    listed = {}
    for extra in ("", "convert", "s3-server", "test"):
        with (ROOT / "pyproject.toml").open("rb") as project:
            done = subprocess.run([*script, *filter(None, [extra])], stdin=project, capture_output=True, text=True)
        listed[extra] = [Requirement(line) for line in done.stdout.splitlines()]
        for requirement in listed[extra]:
            if requirement.name != "torch":
                for version in pins[requirement.name.lower()]:
                    assert requirement.specifier.contains(version), requirement
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(listed[""]) == len(project["dependencies"])
    assert {r.name for r in listed["test"]} > {r.name for r in listed["convert"] + listed["s3-server"]}


@pytest.mark.parametrize(
    ("arguments", "run"),
    [
        ([], ["wdspack"]),
        (["demo", "--out", "a b"], ["wdspack", "demo", "--out", "a b"]),
        (["--help"], ["wdspack", "--help"]),
        (["tools/convert_x.py", "a b", "*"], ["python", "/opt/wdspack/tools/convert_x.py", "a b", "*"]),
        (["torchrun", "--standalone", "x y"], ["torchrun", "--standalone", "x y"]),
        (["python", "-c", "print( 1 )"], ["python", "-c", "print( 1 )"]),
    ],
)
def test_the_entrypoint_runs_what_is_asked_for(tmp_path, arguments, run):
    for name in ("wdspack", "python", "torchrun"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [DOCKER / "entrypoint.sh", *arguments],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == run, done.stderr


def compose() -> dict:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def test_services_are_confined_and_wait_for_what_they_need():
    services = compose()["services"]
    assert set(services) == {"s3", "corpus", "convert", "train"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service
        target = service["build"]["target"]
        assert service["image"].endswith(f":{target}")
        assert target in stages()
        assert (DOCKER / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (DOCKER / source).is_file() if source.startswith(".") else source in compose()["volumes"]
        for word in service["command"]:
            if "tools/" in word:
                assert (ROOT / word.removeprefix("/opt/wdspack/")).is_file(), word
    assert services["convert"]["depends_on"] == {
        "s3": {"condition": "service_healthy"},
        "corpus": {"condition": "service_completed_successfully"},
    }
    assert services["train"]["depends_on"] == {"convert": {"condition": "service_completed_successfully"}}
    assert services["train"]["restart"] == "on-failure"


def test_every_variable_has_a_default_and_the_credentials_agree():
    text = (DOCKER / "compose.yaml").read_text()
    assert all(":-" in variable for variable in re.findall(r"\$\{([^}]*)\}", text))
    services = compose()["services"]
    for name in ("convert", "train"):
        assert services[name]["environment"]["AWS_ACCESS_KEY_ID"] == services["s3"]["environment"]["WDSPACK_S3_KEY"]
        assert (
            services[name]["environment"]["AWS_SECRET_ACCESS_KEY"] == services["s3"]["environment"]["WDSPACK_S3_SECRET"]
        )


def test_train_streams_what_convert_writes():
    config = wdspack.load_config(DOCKER / "data.yaml")
    services = compose()["services"]
    output = next(word for word in services["convert"]["command"] if word.startswith("s3://"))
    (source,) = config.source_list
    assert source.urls == f"{output}/*.tar"
    ranks = int(re.search(r"--nproc-per-node (\d+)", shlex.join(services["train"]["command"]))[1])
    assert config.lanes % ranks == 0


def test_what_the_page_shows_can_be_parsed():
    blocks = re.findall(r"```(\w+)\n(.*?)```", (DOCKER / "README.md").read_text(), re.DOTALL)
    assert {kind for kind, _ in blocks} == {"bash", "yaml"}
    kinds = []
    for kind, block in blocks:
        if kind == "yaml":
            kinds += [document.get("kind", "compose") for document in yaml.safe_load_all(block)]
        else:
            checked = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr
        for tool in re.findall(r"\btools/\w+\.py", block):
            assert (ROOT / tool).is_file(), tool
    assert {"Service", "Job", "compose"} <= set(kinds)


# The images -----------------------------------------------------------------------------------------------------------

IMAGE = "wdspack-test"
PROJECT = f"{IMAGE}-{os.getpid()}"
BASE = os.environ.get("WDSPACK_DOCKER_BASE")
STEPS = 40
ENVIRONMENT = {
    **os.environ,
    "BASE_IMAGE": BASE or "", "BUILD_NETWORK": "host", "STEPS": str(STEPS), "SAMPLES": "240",
}  # fmt: skip


def docker(*arguments: str, check: bool = True, timeout: float = 900) -> str:
    """What a command of Docker prints, on both streams."""
    done = subprocess.run(
        ["docker", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def why_not() -> str:
    """Why images cannot be built and run here; empty where they can."""
    if not BASE:
        return "no base image is named; set WDSPACK_DOCKER_BASE, to python:3.12-slim-bookworm for instance"
    if shutil.which("docker") is None:
        return "no docker command; install Docker"
    answer = docker("info", check=False, timeout=60)
    return "" if "Server Version" in answer else f"no Docker engine answers ({answer.strip()[-200:]}); start dockerd"


@pytest.fixture(scope="session")
def images() -> str:
    """The images, built."""
    if reason := why_not():
        pytest.skip(reason)
    for target in ("runtime", "tools"):
        docker(
            "build", "--network", "host", "--build-arg", f"BASE_IMAGE={BASE}", "-f", str(DOCKER / "Dockerfile"),
            "--target", target, "-t", f"{IMAGE}:{target}", str(ROOT), timeout=1800,
        )  # fmt: skip
    return IMAGE


@pytest.fixture(scope="session")
def demo(images) -> Iterator[str]:
    """A volume that holds what `docker run IMAGE demo` leaves, and what it printed in demo.log's stead."""
    volume = f"{PROJECT}-demo"
    docker("volume", "create", volume)
    try:
        said = docker(
            "run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", "-v", f"{volume}:/data",
            f"{images}:runtime", "demo", "--samples", "120",
        )  # fmt: skip
        assert "report.html in a browser" in said
        yield volume
    finally:
        docker("volume", "rm", "-f", volume)


def python(images: str, demo: str, code: str, *options: str, check: bool = True) -> str:
    return docker(
        "run", "--rm", "--read-only", "-v", f"{demo}:/data", *options, f"{images}:runtime", "python", "-W", "ignore",
        "-c", code, check=check,
    )  # fmt: skip


@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_the_demo_runs_as_nobody_on_a_read_only_root(images, demo):
    code = "import os; print(os.getuid(), os.path.getsize('wdspack-demo/report.html') > 10_000)"
    assert python(images, demo, code).split() == ["10001", "True"]
    assert "Read-only file system" in python(images, demo, "open('/opt/x', 'w')", check=False)
    said = docker("run", "--rm", "--user", "4242", "--read-only", "--tmpfs", "/data", f"{images}:runtime", "--help")
    assert "inspect" in said, "any user will do"


@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_the_base_keeps_its_torch_and_dependencies_agree(images):
    code = "import torch; print(torch.__file__, torch.__version__)"
    own = docker("run", "--rm", "--entrypoint", "python3", BASE, "-c", code, check=False)
    ours = docker("run", "--rm", f"{images}:runtime", "python", "-c", code)
    assert "No module" in own or own == ours
    assert "No broken requirements" in docker("run", "--rm", f"{images}:tools", "python", "-m", "pip", "check")
    for target in ("runtime", "tools"):
        inspected = json.loads(docker("image", "inspect", f"{images}:{target}"))[0]["Config"]
        assert inspected["User"] == "10001:10001"
        assert inspected["Labels"]["org.opencontainers.image.title"] == "wdspack"


COUNT = """
import wdspack, shutil
config = wdspack.load_config("wdspack-demo/data.yaml").replace(buffer_size=32, lanes=2)
keys = [key for batch in {loader} for pack in {packs} for key in pack["keys"]]
print(len(keys), len(set(map(tuple, keys))))
"""
LOADER = COUNT.format(loader="wdspack.make_loader(config, num_workers=2, batch_size=None)", packs="[batch]")
DATASET = "from torch.utils.data import DataLoader\n" + COUNT.format(
    loader="DataLoader(wdspack.PackedDataset(config), batch_size=None, num_workers=2)", packs="[batch]"
)


@pytest.mark.docker
@pytest.mark.timeout(2400)
def test_the_loader_does_with_little_shared_memory_and_says_when_it_is_too_little(images, demo):
    enough, tight = (python(images, demo, LOADER, "--shm-size", size).split() for size in ("64m", "1m"))
    assert enough == tight
    assert enough[0] == enough[1]
    assert python(images, demo, DATASET, "--shm-size", "256m").split() == enough
    for code, size in ((LOADER, "24k"), (DATASET, "1m")):
        said = python(images, demo, code, "--shm-size", size, check=False)
        assert "ConfigError" in said
        assert "--shm-size" in said
        assert "Bus error" not in said


@pytest.fixture(scope="session")
def composed(images) -> Iterator[Callable[..., str]]:
    """`docker compose` on a project of its own, which is removed in the end."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("neither `docker compose` nor docker-compose is installed")

    def run(*arguments: str, timeout: float = 900) -> str:
        done = subprocess.run(
            [*command, "-p", PROJECT, "-f", str(DOCKER / "compose.yaml"), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
            env={**ENVIRONMENT, "IMAGE": images},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    try:
        yield run
    finally:
        run("down", "-v")


def metrics(name: str = "metrics") -> list[dict]:
    """The lines that a training has logged so far, read from the volume: its container may be down."""
    volume = f"{PROJECT}_checkpoints:/data:ro"
    text = docker(
        "run", "--rm", "--network", "none", "-v", volume, f"{IMAGE}:runtime", "sh", "-c", f"cat {name}.jsonl || true"
    )
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def wait(condition: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.5)


@pytest.mark.docker
@pytest.mark.timeout(3600)
def test_training_from_a_bucket_goes_on_whatever_is_killed(composed):
    """Against a run that nothing happens to: the same samples and the same losses, step by step."""
    composed("up", "-d", timeout=1800)
    train, server = (composed("ps", "-q", name).split()[-1] for name in ("train", "s3"))

    def steps() -> int:
        return max((line["step"] for line in metrics()), default=0)

    # Crashed, it is started again by Docker.
    wait(lambda: steps() >= 7)
    crash = "import os; os.kill(int(open('/proc/1/task/1/children').read().split()[0]), 9)"
    docker("exec", train, "python", "-c", crash, check=False)
    wait(lambda: steps() >= 12)
    assert docker("inspect", "-f", "{{.RestartCount}}", train).strip() == "1"
    # Killed by hand, it is started by hand.
    docker("kill", train)
    docker("start", train)
    # The server is gone, until nothing moves any more.
    wait(lambda: docker("logs", train).count("going on from") == 2)
    docker("kill", server)
    before, since = steps(), time.monotonic()
    while time.monotonic() < since + 15:
        time.sleep(1)
        if (now := steps()) != before:
            before, since = now, time.monotonic()
    assert before < STEPS
    docker("start", server)
    assert docker("wait", train, timeout=1800).strip() == "0"

    command = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["train"]["command"]
    plain = [word for word in command if not word.startswith("/data/checkpoints") and word != "--checkpoints"]
    straight = [w.replace("metrics.jsonl", "straight.jsonl").replace("${STEPS:-40}", str(STEPS)) for w in plain]
    assert "retried_" in docker("logs", train), "the outage was noticed, and cost nothing"
    assert "retried_" not in composed("run", "--rm", "--no-deps", "-T", "train", *straight, timeout=1800)
    expected = {line["step"]: line for line in metrics("straight")}
    found: dict[int, list[dict]] = {}
    for line in metrics():
        found.setdefault(line["step"], []).append(line)
    assert found.keys() == expected.keys() == set(range(1, STEPS + 1))
    for step, lines in found.items():
        for line in lines:  # steps after the last checkpoint were done twice, alike
            assert line["keys"] == expected[step]["keys"]
            assert line["loss"] == pytest.approx(expected[step]["loss"], rel=1e-6)
    assert any(len(lines) > 1 for lines in found.values())
