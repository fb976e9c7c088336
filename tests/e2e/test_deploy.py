"""The files of deploy/ and the Containerfile: sound by their own schemas, and their commands by ours."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from groundup.cli.app import build_app
from groundup.cli.run_config import presets
from groundup.core.config import resolve
from groundup.train.config import TrainConfig
from tests.guides import ROOT, commands

DEPLOY = ROOT / "deploy"
KUBERNETES_VERSION = "1.34"
TOOLS = Path(sys.executable).parent
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SKYPILOT = sorted((DEPLOY / "skypilot").glob("*.yaml"))
SCRIPTS = [*sorted((DEPLOY / "slurm").iterdir()), *sorted((ROOT / ".ci").iterdir())]
GUIDES = ("containers", "slurm", "kubernetes", "skypilot")
CONTAINERFILE = (ROOT / "Containerfile").read_text()
SERVE_PORT = 5000  # what `groundup serve` and the images take by themselves


def manifests(path: Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def pod_templates(manifest: dict) -> Iterator[dict]:
    """The templates of pods in a manifest, at any depth."""
    for key, value in manifest.items():
        if key == "template" and "containers" in value.get("spec", {}):
            yield value
        elif isinstance(value, dict):
            yield from pod_templates(value)
        elif isinstance(value, list):
            yield from (one for item in value if isinstance(item, dict) for one in pod_templates(item))


def jobs(jobset: dict) -> list[dict]:
    """The jobs that a JobSet makes."""
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": one["name"]}, **one["template"]}
        for one in jobset["spec"]["replicatedJobs"]
    ]


def containers() -> dict[str, dict]:
    """File's name -> its only container."""
    found = {}
    for path in MANIFESTS:
        (template,) = [pod for one in manifests(path) for pod in pod_templates(one)]
        (found[path.stem],) = template["spec"]["containers"]
    return found


def words_of(container: dict) -> list[str]:
    """The command line that a container runs, with the entry point of our images."""
    return [*container.get("command", ["groundup"]), *map(str, container["args"])]


def groundup_commands(text: str) -> list[list[str]]:
    """Command lines of groundup, or of our images, in a text of shell, up to a pipe and the like."""
    joined = re.sub(r"^\s*#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    joined = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", joined)
    end = r"(?=\s+\d?>|\s*[;&|<)]|\s*$)"
    found = re.findall(rf"(?:^|[\s/(])groundup(?::[\w-]+)? ([a-z].*?){end}", joined, re.MULTILINE)
    return [["groundup", *shlex.split(line)] for line in found]


def require_sound(words: list[str]) -> None:
    """Parses a command line of groundup, and resolves the settings of a training."""
    assert words[0] == "groundup"
    _, bound, _ = build_app().parse_args(words[1:], print_error=False, exit_on_error=False)[:3]
    if words[1] == "train":
        overrides = [word for word in words[2:] if re.fullmatch(r"[a-z_.]+=\S+", word)]
        given = ("preset=gpt2-124m", "run_dir=run", "data.path=data", *overrides)
        resolve(TrainConfig, overrides=given, presets=presets())
        assert set(bound.arguments.get("overrides", ())) >= set(overrides)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifests(path):
    for manifest in manifests(path):
        for one in jobs(manifest) if manifest["kind"] == "JobSet" else [manifest]:
            kubernetes_validate.validate(one, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_pods_have_no_rights_and_write_to_volumes_only(path):
    for template in (pod for one in manifests(path) for pod in pod_templates(one)):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert str(spec["securityContext"]["runAsUser"]) in CONTAINERFILE
        assert spec["automountServiceAccountToken"] is False
        (container,) = spec["containers"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]["limits"]) >= {"cpu", "memory"}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == {volume["name"] for volume in spec["volumes"]}
        assert {"/work", "/tmp"} <= set(mounts.values())
        target = container["image"].removeprefix("groundup:").partition("-")
        assert f" AS {target[0]}\n" in CONTAINERFILE and f" {target[2]})" in CONTAINERFILE
        written = [word for word in words_of(container) if "/" in word and "=" not in word.partition("/")[0]]
        assert all(word.startswith(tuple(mounts.values())) for word in written), written


def test_the_containers_run_commands_that_exist():
    found = containers()
    require_sound(words_of(found["quickstart"]))
    require_sound(words_of(found["serve"]))
    torchrun, _, ours = " ".join(words_of(found["train"])).partition(" -m ")
    require_sound(shlex.split(ours))
    options = torchrun.split()[1:]
    host, _, port = (
        next(word for word in options if "--rdzv-endpoint" in word).partition("=")[2].partition(":")
    )
    (jobset,) = manifests(DEPLOY / "kubernetes/train.yaml")
    name, (job,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    assert host == f"{name}-{job['name']}-0-0.{name}"
    assert int(port) == found["train"]["ports"][0]["containerPort"]
    assert f"--nnodes=1:{job['template']['spec']['completions']}" in options
    assert f"--nproc-per-node={found['train']['resources']['limits']['nvidia.com/gpu']}" in options
    from torch.distributed.run import get_args_parser

    get_args_parser().parse_args([*options, "-m", *shlex.split(ours)])


def test_probes_ports_and_times_agree_with_the_service():
    deployment, service, budget = manifests(DEPLOY / "kubernetes/serve.yaml")
    container = containers()["serve"]
    words = words_of(container)
    (port,) = container["ports"]
    assert port["containerPort"] == SERVE_PORT
    assert f"--port={port['containerPort']}" in words and "--host=0.0.0.0" in words
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["name"]}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    drain = next(int(word.partition("=")[2]) for word in words if word.startswith("--drain-seconds"))
    waited = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > drain + waited


def test_hadolint_accepts_the_containerfile():
    done = subprocess.run(
        [TOOLS / "hadolint", ROOT / "Containerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_images_run_commands_that_exist():
    (health,) = re.findall(r"HEALTHCHECK --.*\n\s+CMD (\[.*\])", CONTAINERFILE)
    assert f"http://127.0.0.1:{SERVE_PORT}/health" in health
    assert f"EXPOSE {SERVE_PORT}\n" in CONTAINERFILE
    compile(json.loads(health)[2], "HEALTHCHECK", "exec")
    lines = [json.loads(line) for line in re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, re.MULTILINE)]
    assert [line[0] for line in lines] == ["serve", "--help"]
    require_sound(["groundup", *lines[0]])
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    copied = set(" ".join(re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE)).split())
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_accepts_the_scripts(path):
    done = subprocess.run([TOOLS / "shellcheck", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SKYPILOT, ids=lambda path: path.name)
def test_skypilots_scripts_are_sound(path, tmp_path):
    task = yaml.safe_load(path.read_text())
    for part in ("setup", "run"):
        script = tmp_path / part
        script.write_text(f"#!/bin/bash\n{task[part]}")
        done = subprocess.run([TOOLS / "shellcheck", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    found = groundup_commands(task["run"])
    assert found
    for words in found:
        require_sound(words)
    if "service" in task:
        assert task["service"]["readiness_probe"] == "/health"
        assert task["resources"]["ports"] == SERVE_PORT
        assert f"--port {SERVE_PORT}" in task["run"]


@pytest.mark.parametrize("name", GUIDES)
def test_the_guides_name_files_and_commands_that_exist(name):
    guide = f"docs/guides/{name}.md"
    lines = "\n".join(commands(guide))
    for words in groundup_commands(lines):
        require_sound(words)
    named = re.findall(r"\b(?:deploy/[\w./-]+\w|Containerfile)", (ROOT / guide).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
