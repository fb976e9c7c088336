"""What the doctor says of machines, real and made up."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from groundup.cli.app import run
from groundup.core.errors import MachineError
from groundup.plan.doctor import (
    accelerators,
    local_network,
    optional_parts,
    processor,
    storage,
    system_limits,
    variables,
)
from groundup.plan.doctor.compiler import compiler, explain
from groundup.plan.doctor.diagnose import diagnose
from groundup.plan.doctor.finding import Machine
from groundup.plan.doctor.gpu_driver import Gpu, GpuReport, ask_driver, parse_report
from groundup.plan.doctor.torch_child import torch_child
from tests.forked import python

V100 = Gpu("Tesla V100-SXM2-16GB", 16384, 3, (7, 0))
H100 = Gpu("NVIDIA H100 80GB HBM3", 81559, 1, (9, 0))
CPU_BUILD = {
    "version": "2.13.0+cpu", "cuda": None, "hip": None, "cuda_error": "", "architectures": [], "gpus": [],
    "nccl": "", "cudnn": 0, "device": "cpu", "auto": "fp32", "missing": {"bf16": "no", "fp16": "no"},
    "fp8": False,
}  # fmt: skip
CUDA_BUILD = {
    **CPU_BUILD, "version": "2.13.0+cu130", "cuda": "13.0", "architectures": ["sm_75", "sm_80", "sm_90a"],
    "gpus": ["one"], "nccl": "2.27.5", "cudnn": 91300, "device": "cuda", "auto": "bf16", "missing": {},
    "fp8": True,
}  # fmt: skip


class Torch:
    """Answers as PyTorch's process would."""

    def __init__(self, facts, compiled=None):
        self._facts, self._compiled = facts, compiled

    def facts(self):
        return self._facts

    def compiled(self):
        if isinstance(self._compiled, Exception):
            raise self._compiled
        return self._compiled


def machine(root, *, gpus=(), cuda=(13, 0), facts=CPU_BUILD, environment=(), ranks=1, compiled=None, **files):
    """A machine whose /proc, /sys and /dev lie in a folder."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    report = GpuReport(tuple(gpus), "580.65", cuda) if gpus else GpuReport()
    return Machine(root, dict(environment), report, Torch(facts, compiled), root, ranks)


def only(findings):
    (found,) = findings
    return found


def test_instruction_sets_and_the_limit_of_a_container(tmp_path):
    cpu = "model name\t: Xeon\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n\nmodel name\t: Xeon\n"
    files = {"proc__cpuinfo": cpu, "proc__self__cgroup": "0::/docker/abc\n"}
    found = only(processor.processor(machine(tmp_path, **files)))
    assert found.status == "ok"
    assert found.found.startswith("Xeon, ") and found.found.endswith("AVX2, AVX-512, AVX512-BF16, AMX-BF16")
    quota = tmp_path / "sys/fs/cgroup/docker/cpu.max"
    quota.parent.mkdir(parents=True)
    quota.write_text("50000 100000\n")
    found = only(processor.processor(machine(tmp_path)))
    assert (found.status, found.found[-4:]) == ("warning", " 0.5")
    assert "OMP_NUM_THREADS=1" in found.fix


def test_the_memory_that_a_container_has_left(tmp_path):
    info = "MemTotal:       65536000 kB\nMemAvailable:   60000000 kB\n"
    files = {"proc__meminfo": info, "proc__self__cgroup": "7:cpu,memory:/a\n"}
    assert only(processor.memory(machine(tmp_path, **files))).status == "ok"
    folder = tmp_path / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(8 * 2**30))
    (folder / "memory.usage_in_bytes").write_text(str(7 * 2**30))
    found = only(processor.memory(machine(tmp_path)))
    assert found.status == "warning"
    assert found.found.endswith("the control group grants 8.0 GiB, of which 1.0 are free")


def test_what_nvidia_smi_prints():
    table = "Tesla V100-SXM2-16GB, 16384, 12000, 535.129.03, 7.0\nNVIDIA A10, [N/A], 3, 535.129.03, 8.6\n"
    report = parse_report(
        table, "| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2 |"
    )
    assert report.gpus[0] == Gpu("Tesla V100-SXM2-16GB", 16384, 12000, (7, 0))
    assert (report.gpus[1].memory_mib, report.driver, report.cuda) == (0, "535.129.03", (12, 2))


def test_nvidia_smi_that_fails(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    report = ask_driver()
    assert report.error == "Driver/library version mismatch"
    found = only(accelerators.gpus(Machine(tmp_path, {}, report, Torch(CPU_BUILD), tmp_path)))
    assert found.status == "problem" and "restart the machine" in found.fix


def test_gpus_taken_and_without_a_driver(tmp_path):
    busy = Gpu("NVIDIA A10", 24000, 20000, (8, 6))
    free, taken = accelerators.gpus(machine(tmp_path, gpus=[H100, busy]))
    assert (free.status, taken.status) == ("ok", "warning")
    assert "compute capability 9.0" in free.found and "19.5 GiB of it taken" in taken.found
    device = "sys__bus__pci__devices__0"
    found = only(
        accelerators.gpus(
            machine(tmp_path, **{f"{device}__class": "0x030200\n", f"{device}__vendor": "0x10de\n"})
        )
    )
    assert found.status == "problem" and "apt install nvidia-driver" in found.fix


@pytest.mark.parametrize(
    ("gpus", "cuda", "facts", "status", "fix"),
    [
        ([], (0, 0), CPU_BUILD, "ok", ""),
        ([H100], (13, 0), CUDA_BUILD, "ok", ""),
        ([H100], (13, 0), CPU_BUILD, "problem", "whl/cu130"),
        ([H100], (12, 8), CPU_BUILD, "problem", "whl/cu128"),
        ([V100], (13, 0), CPU_BUILD, "problem", "whl/cu126"),
        ([V100], (13, 0), CUDA_BUILD, "problem", "whl/cu126"),  # no kernels for it
        (
            [H100],
            (13, 0),
            {**CUDA_BUILD, "gpus": [], "cuda_error": "too old"},
            "problem",
            "Update the driver",
        ),
        ([], (0, 0), {**CPU_BUILD, "version": "2.1.0"}, "problem", "pip install --force-reinstall 'torch"),
        (
            [],
            (0, 0),
            {"import_error": "No module named 'torch'", "is_missing": True},
            "warning",
            "groundup[train]",
        ),
        ([H100], (13, 0), {"import_error": "libcudnn.so.9", "is_missing": False}, "problem", "whl/cu130"),
    ],
)
def test_builds_of_torch(tmp_path, gpus, cuda, facts, status, fix):
    found = only(accelerators.torch(machine(tmp_path, gpus=gpus, cuda=cuda, facts=facts)))
    assert (found.status, fix in found.fix) == (status, True), found
    assert bool(found.fix) == (status != "ok")


def test_a_driver_that_is_too_old_for_torch(tmp_path):
    found = only(accelerators.driver(machine(tmp_path, gpus=[H100], cuda=(12, 2), facts=CUDA_BUILD)))
    assert found.status == "problem" and found.fix.endswith("whl/cu126")
    assert only(accelerators.driver(machine(tmp_path, gpus=[H100], facts=CUDA_BUILD))).status == "ok"


def test_a_v100_has_no_bf16(tmp_path):
    facts = {**CUDA_BUILD, "auto": "fp16", "missing": {"bf16": "Tesla V100 has no bf16 units"}, "fp8": False}
    found = only(accelerators.precision(machine(tmp_path, gpus=[V100], facts=facts)))
    assert found.found == "fp16, fp32; precision auto takes fp16 (no bf16: Tesla V100 has no bf16 units)"


def test_an_h100_has_fp8(tmp_path):
    found = only(accelerators.precision(machine(tmp_path, gpus=[H100], facts=CUDA_BUILD)))
    assert found.found == "bf16, fp16, fp32, fp8; precision auto takes bf16"


SAID = "CalledProcessError: Command '['/usr/bin/gcc', 'main.c']'\n/usr/bin/ld: cannot find -lcuda\n"


def test_the_linker_that_does_not_find_libcuda(tmp_path):
    what, fix = explain(SAID, tmp_path)
    assert "cannot find -lcuda" in what and "ldconfig -p" in fix
    stubs = tmp_path / "usr/local/cuda-12.4/targets/x86_64-linux/lib/stubs"
    stubs.mkdir(parents=True)
    (stubs / "libcuda.so").touch()
    assert explain(SAID, tmp_path)[1].startswith(f"export LIBRARY_PATH={stubs}:$LIBRARY_PATH")
    folder = tmp_path / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").touch()
    assert explain(SAID, tmp_path)[1].startswith(f"ln -s {folder}/libcuda.so.1 {folder}/libcuda.so")
    (folder / "libcuda.so").touch()
    assert explain(SAID, tmp_path)[1] == f"export LIBRARY_PATH={folder}:$LIBRARY_PATH"


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("main.c:6:10: fatal error: Python.h: No such file or directory", "apt install python3"),
        ("torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in ...", "apt install g++"),
        ("/usr/bin/ld: cannot find -lgomp", "apt install g++"),
        ("ImportError: x.so: failed to map segment from shared object", "TMPDIR"),
        ("OSError: [Errno 28] No space left on device", "Free some space"),
        ("Cannot find a working triton installation.", "pip install triton"),
    ],
)
def test_other_faults_of_the_toolchain(said, fix):
    assert fix in explain(f"Traceback ...\n{said}\nmore")[1]


def test_an_unknown_fault_is_told_in_its_own_words(tmp_path):
    said = "Traceback (most recent call last):\n  File x\nValueError: something else\n\n"
    broken = machine(tmp_path, compiled={"error": said})
    found = only(compiler(broken))
    assert (found.status, found.found) == (
        "warning",
        "torch.compile does not work: ValueError: something else",
    )
    gone = machine(tmp_path, compiled=MachineError("compiling ended the process (signal 11): "))
    assert "signal 11" in only(compiler(gone)).found


def test_shared_memory_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "dev/shm").mkdir(parents=True)
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(64 * 2**20, 0, 64 * 2**20))
    found = only(storage.shared_memory(machine(tmp_path)))
    assert (found.status, found.found) == ("warning", "64 MiB of 64 MiB free in /dev/shm")
    assert "--shm-size=8g" in found.fix
    assert only(storage.shared_memory(machine(tmp_path, gpus=[H100, H100]))).status == "problem"
    assert only(storage.run_folder(machine(tmp_path))).status == "problem"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100 * 2**30, 0, 90 * 2**30))
    assert only(storage.shared_memory(machine(tmp_path))).status == "ok"
    assert only(storage.run_folder(machine(tmp_path))).status == "ok"
    (tmp_path / "file").touch()
    refused = Machine(tmp_path / "file" / "run", {}, GpuReport(), Torch(CPU_BUILD), tmp_path)
    assert "cannot be written to" in only(storage.run_folder(refused)).found


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        findings = list(local_network.ports(machine(tmp_path, environment={"MASTER_PORT": port})))
        taken = [one for one in findings if one.found.startswith(f"{port} is taken")]
        assert taken and taken[0].status == "warning" and port in taken[0].fix
        launched = machine(tmp_path, environment={"MASTER_PORT": port, "RANK": "0"})
        assert not [one for one in local_network.ports(launched) if one.found.startswith(port)]


def test_a_clock_before_the_installation(tmp_path, monkeypatch):
    assert only(local_network.clock(machine(tmp_path))).status == "ok"
    monkeypatch.setattr(local_network.time, "time", lambda: 1_000_000.0)
    found = only(local_network.clock(machine(tmp_path)))
    assert found.status == "problem" and found.found.startswith("1970-01-12")


def test_few_open_files(tmp_path, monkeypatch):
    unlimited = system_limits.resource.RLIM_INFINITY
    given = {
        system_limits.resource.RLIMIT_NOFILE: (1024, 4096),
        system_limits.resource.RLIMIT_MEMLOCK: (65536, 65536),
    }
    monkeypatch.setattr(
        system_limits.resource, "getrlimit", lambda name: given.get(name, (unlimited, unlimited))
    )
    found = only(system_limits.limits(machine(tmp_path)))
    assert found.status == "warning" and found.fix.startswith("ulimit -n 4096")
    names = {
        "sys__class__infiniband__mlx5_0": "",
        "proc__self__cgroup": "0::/\n",
        "sys__fs__cgroup__pids.max": "512\n",
    }
    assert [one.fix.split(",")[0] for one in system_limits.limits(machine(tmp_path, **names))][1:] == [
        "ulimit -u 65536", "ulimit -l unlimited",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "status", "text"),
    [
        ({}, "ok", "no variable that hurts"),
        ({"NCCL_P2P_DISABLE": "1"}, "warning", "unset NCCL_P2P_DISABLE"),
        ({"NCCL_ALGO": "Ring"}, "warning", "unset NCCL_ALGO"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "warning", "waits for each kernel"),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, "ok", ""),
        ({"OMP_NUM_THREADS": "4000"}, "warning", "export OMP_NUM_THREADS="),
        ({"NCCL_SOCKET_IFNAME": "ib7"}, "problem", "there are eth0"),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, "ok", ""),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "ok", ""),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "problem", "Training would refuse to start"),
    ],
)
def test_variables_that_hurt(tmp_path, environment, status, text):
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    found = only(variables.variables(machine(tmp_path, environment=environment)))
    assert found.status == status
    assert text in f"{found.found} {found.why} {found.fix}"


def test_threads_of_several_ranks_and_modules_in_the_wrong_place(tmp_path, monkeypatch):
    monkeypatch.setattr(variables, "allowed_cores", lambda: 8)
    found = only(variables.variables(machine(tmp_path, ranks=4)))
    assert (found.found, found.fix) == ("OMP_NUM_THREADS is not set", "export OMP_NUM_THREADS=2")
    (tmp_path / "torch.py").touch()
    (tmp_path / "numpy").mkdir()  # without __init__.py it hides nothing
    found = only(variables.variables(machine(tmp_path, environment={"PYTHONPATH": f":{tmp_path}"})))
    assert found.found == f"PYTHONPATH has torch in {tmp_path}"


def test_extras_by_the_metadata_of_the_package(tmp_path, monkeypatch):
    wanted = [one.name for one in optional_parts.requirements_of("train")]
    assert set(wanted) == {"torch", "safetensors"}
    assert {"numpy", "pydantic"} <= {one.name for one in optional_parts.requirements_of("")}
    real = optional_parts.requirements_of
    changed = {
        "train": [Requirement("torch>=1"), Requirement("numpy>=99")],
        "ray": [Requirement("ray"), Requirement("no-such-package")],
        "parquet": [Requirement("no-such-package")],
    }
    monkeypatch.setattr(optional_parts, "requirements_of", lambda extra: changed.get(extra) or real(extra))
    found = {one.check: one for one in optional_parts.optional_parts(machine(tmp_path))}
    train, ray, parquet = (found[f"groundup[{name}]"] for name in ("train", "ray", "parquet"))
    assert train.status == "problem" and train.fix == "pip install 'groundup[train]' --upgrade"
    assert "and >=99 is needed" in train.found
    assert (ray.found, parquet.found) == ("no-such-package missing", "not installed")
    assert parquet.fix.endswith("pip install 'groundup[parquet]'")
    assert "groundup[dev]" not in found


def test_a_check_that_fails_hides_no_other(tmp_path):
    def broken_check(one):
        raise OSError("odd")

    findings = list(diagnose(machine(tmp_path), [broken_check, processor.processor]))
    assert [one.check for one in findings] == ["broken check", "processor"]
    assert findings[0].found == "this check failed: OSError: odd"


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path):
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'Illegal instruction' >&2\nkill -4 $$\n")
    dying.chmod(0o755)
    with torch_child(python=str(dying)) as child, pytest.raises(MachineError, match=r"\(signal 4\): Illegal"):
        child.facts()


def test_the_command_prints_json_and_ends_by_what_it_finds(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", python())
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(SystemExit) as ended:
        run(["doctor", "--quick", "--json", "--run-dir", str(tmp_path)])
    assert ended.value.code == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"processor", "memory", "GPUs", "torch", "ports", "clock"} <= {one["check"] for one in findings}
    (precision,) = [one["found"] for one in findings if one["check"] == "precision"]
    assert "precision auto takes" in precision  # as torch says in its process
    problems = [one["found"] for one in findings if one["status"] == "problem"]
    assert "GLOO_SOCKET_IFNAME=none0" in problems
    assert not [one["found"] for one in findings if "check failed" in one["found"]]


@pytest.mark.exhaustive
def test_compiling_really_works_or_says_why(tmp_path, monkeypatch):
    with torch_child() as child:
        assert "seconds" in child.compiled()
    compiler = tmp_path / "g++"
    real = shutil.which("g++") or pytest.skip("there is no g++")
    knows_itself = f'case "$*" in *-version*|*-dump*|*-print*) exec {real} "$@";; esac'
    compiler.write_text(f"#!/bin/sh\n{knows_itself}\necho '/usr/bin/ld: cannot find -lcuda' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with torch_child() as child:
        found = child.compiled()
    assert "error" in found, found
    assert "cannot find -lcuda" in explain(found["error"], Path("/"))[0]
