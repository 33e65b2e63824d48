import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.records import MACHINE, SOFTWARE

from charact.core.errors import UserError
from charact.machine import facts as hardware
from charact.machine.cgroups import memory_limit_bytes, quota_cores


def cgroup_tree(root: Path, membership: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": membership, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@pytest.mark.parametrize(("membership", "files", "cores", "memory"), [
    ("0::/", {"cpu.max": "150000 100000", "memory.max": "1073741824"}, 1.5, 2**30),
    ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
    ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000", "memory.max": "4096"}, 0.5, 4096),
    ("0::/a/b", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "20000 100000"}, 0.2, None),
    ("4:memory:/x\n1:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000",
                                       "memory/x/memory.limit_in_bytes": "2048"}, 3.0, 2048),
    ("4:memory:/\n1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000",
                             "memory/memory.limit_in_bytes": "9223372036854771712"}, None, None),
    # A container on version 1: the path is the host's, only the group's own folder is mounted.
    ("1:cpu:/docker/abc", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0, None),
    ("7:cpuset:/x", {"cpu.max": "100000 100000"}, None, None),
])
def test_limits_of_control_groups(tmp_path: Path, membership: str, files: dict[str, str], cores: float | None,
                                  memory: int | None) -> None:
    root = cgroup_tree(tmp_path, membership, files)
    assert quota_cores(root) == cores
    assert memory_limit_bytes(root) == memory


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None
    assert memory_limit_bytes(tmp_path) is None


@pytest.mark.parametrize(("quota", "allowed", "expected"), [(None, 8, 8), (1.5, 8, 2), (0.2, 8, 1), (16.0, 8, 8)])
def test_usable_cores_keep_to_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, allowed: int,
                                                 expected: int) -> None:
    monkeypatch.setattr(hardware, "quota_cores", lambda: quota)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    assert hardware.usable_cores() == expected


def test_facts_hold_what_the_record_promises() -> None:
    facts, software = hardware.machine_facts(), hardware.software_facts()
    for recorded, promised in ((facts, MACHINE), (facts["cpu"], MACHINE["cpu"]), (software, SOFTWARE)):
        assert recorded.keys() >= promised.keys()
        assert json.loads(json.dumps(recorded)) == recorded
    assert 1 <= facts["cpu"]["num_usable_cores"] <= facts["cpu"]["num_logical_cores"]
    assert facts["memory_bytes"] > 2**28
    assert (facts["no_gpu_reason"] is None) == bool(facts["gpus"])
    assert software["torch"] == torch.__version__


def facts_with(**changes: object) -> dict:
    gpu = {"index": 0, "name": "NVIDIA H100", "uuid": "GPU-1", "memory_bytes": 85_000_000_000, "driver": "580.1"}
    return {"hostname": "a", "architecture": "x86_64", "cpu": {"model": "X", "num_usable_cores": 2},
            "memory_bytes": 25_276_510_208, "gpus": [gpu | changes.pop("gpu", {})], **changes}  # type: ignore[operator]


@pytest.mark.parametrize(("changes", "is_same"), [
    ({"hostname": "b"}, True), ({"gpu": {"uuid": "GPU-2"}}, True), ({"gpu": {"index": 3}}, True),
    ({"memory_bytes": 25_276_510_208 + 4096}, True), ({"cpu": {"model": "X", "num_usable_cores": 1}}, False),
    ({"gpus": []}, False), ({"gpu": {"driver": "590.1"}}, False), ({"memory_bytes": 50_000_000_000}, False),
])
def test_a_fingerprint_has_what_determines_speed(changes: dict, is_same: bool) -> None:
    assert (hardware.fingerprint(facts_with(**changes)) == hardware.fingerprint(facts_with())) == is_same


def test_a_limit_of_onednn_makes_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "ALL")
    own = hardware.machine_facts()
    assert own["cpu"]["capability"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    limited = hardware.machine_facts()
    assert limited["cpu"]["capability"] == f"{torch.backends.cpu.get_cpu_capability()}, oneDNN at most AVX2"
    assert limited["fingerprint"] != own["fingerprint"]


def test_the_processors_model_is_its_name_or_architecture(tmp_path: Path) -> None:
    (tmp_path / "named").write_text("processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9654\n")
    (tmp_path / "unnamed").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert hardware.cpu_model(tmp_path / "named") == "AMD EPYC 9654"
    assert hardware.cpu_model(tmp_path / "unnamed") == hardware.cpu_model(tmp_path / "absent") != ""


def test_variables_that_change_speed_carry_no_secret_and_no_name() -> None:
    found = hardware.speed_variables({
        "HOME": "/home/alice", "OMP_NUM_THREADS": "2", "TORCH_HOME": "/home/alice/cache", "NVIDIA_API_KEY": "secret",
        "LD_PRELOAD": "/home/alice/lib/libtcmalloc.so.4 /opt/libx.so", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1",
        "MALLOC_ARENA_MAX": "1", "TORCH_HUB_AUTH": "a", "NVIDIA_PASSWD": "b", "MKL_CREDS": "c", "OMP_ANYTHING": "d",
        "MALLOC_CONF": "/home/alice/x", "KMP_AFFINITY": "ghp_0123456789abcdefghij", "OMP_PLACES": "{0}," * 1000,
    })
    places = found.pop("OMP_PLACES")
    assert len(places) == 200
    assert places.startswith("{0},{0},")
    assert found == {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "libtcmalloc.so.4:libx.so", "CUDA_VISIBLE_DEVICES": "1",
                     "MALLOC_ARENA_MAX": "1", "MALLOC_CONF": "~/x", "KMP_AFFINITY": "<redacted>"}


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *identity, *arguments], cwd=directory, check=True, capture_output=True,
                          text=True).stdout.strip()


def repository(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    git(directory, "init", "-q")
    (directory / "file").write_text("1")
    git(directory, "add", "file")
    git(directory, "commit", "-q", "-m", "first")
    return directory


def touch(path: Path) -> None:
    """Have git compare the content of a file, which is the same as before."""
    os.utime(path, (1, 1))


def test_git_state_of_a_repository(tmp_path: Path) -> None:
    assert hardware.git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert hardware.git_state(tmp_path) is None
    repository(tmp_path)
    head = git(tmp_path, "rev-parse", "HEAD")
    assert hardware.git_state(tmp_path) == {"commit": head, "dirty": False}
    touch(tmp_path / "file")
    assert hardware.git_state(tmp_path) == {"commit": head, "dirty": False}
    (tmp_path / "file").write_text("2")
    assert hardware.git_state(tmp_path) == {"commit": head, "dirty": True}
    git(tmp_path, "checkout", "file")
    (tmp_path / "sub").mkdir()
    assert hardware.git_state(tmp_path / "sub") == {"commit": head, "dirty": False}
    (tmp_path / "untracked").touch()
    assert hardware.git_state(tmp_path) == {"commit": head, "dirty": True}


def test_git_that_is_not_installed_gives_no_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.git_state(tmp_path) is None


@pytest.mark.parametrize("path", [".", "", "bin:.", ":"])
def test_git_is_not_looked_for_in_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
                                                        ) -> None:
    planted = tmp_path / "git"
    (tmp_path / "bin").mkdir()
    for place in (planted, tmp_path / "bin" / "git"):
        place.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\necho abc\n")
        place.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    assert hardware.git_state(Path()) is None
    assert not (tmp_path / "ran").exists()


def test_a_directory_that_is_gone_has_no_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(repository(tmp_path / "gone"))
    assert hardware.git_state(Path()) is not None
    shutil.rmtree(tmp_path / "gone")
    assert hardware.git_state(Path()) is None
    assert hardware.git_state(tmp_path / "gone") is None


@pytest.mark.parametrize("error", [BlockingIOError(11, "Resource temporarily unavailable"), PermissionError(13, "no"),
                                   OSError(24, "Too many open files"), NotADirectoryError(20, "none")])
def test_git_that_cannot_be_started_gives_no_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError
                                                   ) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "Popen", fail)
    assert hardware.git_state(tmp_path) is None


def test_git_that_hangs_gives_no_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(hardware, "_GIT_LIMIT_S", 0.2)
    assert hardware.git_state(tmp_path) is None


def test_a_status_that_hangs_leaves_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    head, run = git(repository(tmp_path), "rev-parse", "HEAD"), subprocess.run

    def hang(command: list[str], **options: object) -> object:
        if "status" in command:
            raise subprocess.TimeoutExpired(command, 2)
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", hang)
    assert hardware.git_state(tmp_path) == {"commit": head, "dirty": None}


def planted(place: Path, evil: Path, name: str) -> None:
    """Have a repository's own configuration name a program that git might run."""
    def has(key: str, value: str) -> None:
        git(place, "config", key, value)

    if name == "fsmonitor":
        has("core.fsmonitor", str(evil))
    elif name.startswith("filter"):
        driver = {"filter": "x", "filter of a name with dots": "a.B", "filter of a name with =": "a=b"}.get(name, "x")
        has(f"filter.{driver}.clean", str(evil))
        has(f"filter.{driver}.process" if name == "filter process" else f"filter.{driver}.smudge", str(evil))
        has(f"filter.{driver}.required", "true")
        place.joinpath(".git/info/attributes").write_text(f"* filter={driver}\n")
    elif name == "included filter":
        place.joinpath(".git/more").write_text(f'[filter "x"]\n\tclean = {evil}\n')
        has("include.path", "more")
        place.joinpath(".git/info/attributes").write_text("* filter=x\n")
    elif name == "hooks":
        for hook in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman", "reference-transaction"):
            place.joinpath(".git/hooks").mkdir(exist_ok=True)
            place.joinpath(".git/hooks", hook).symlink_to(evil)
    elif name == "aliases":
        for alias in ("status", "rev-parse", "config"):
            has(f"alias.{alias}", f"!{evil}")
    elif name == "programs":
        for key in ("diff.external", "diff.x.textconv", "diff.x.command", "core.pager", "pager.status", "core.editor",
                    "core.sshCommand", "gpg.program", "credential.helper", "core.askPass", "core.alternateRefsCommand",
                    "core.gitProxy", "sequence.editor", "interactive.diffFilter", "merge.x.driver"):
            has(key, str(evil))
        place.joinpath(".git/info/attributes").write_text("* diff=x merge=x\n")
    elif name == "submodule":
        inner = repository(place.parent / "inner")
        git(place, "submodule", "--quiet", "add", str(inner), "sub")
        git(place, "commit", "-q", "-m", "sub")
        git(place / "sub", "config", "core.fsmonitor", str(evil))
        git(place / "sub", "config", "filter.x.clean", str(evil))
        place.joinpath(".git/modules/sub/info/attributes").write_text("* filter=x\n")
        for key, value in (("status.submoduleSummary", "true"), ("diff.ignoreSubmodules", "none")):
            has(key, value)
        touch(place / "sub" / "file")
    elif name == "missing objects":
        tree = git(place, "rev-parse", "HEAD^{tree}")
        place.joinpath(".git/objects", tree[:2], tree[2:]).unlink()
        for key, value in (("core.repositoryformatversion", "1"), ("extensions.partialClone", "origin"),
                           ("remote.origin.url", f"ext::{evil} %S"), ("remote.origin.promisor", "true"),
                           ("protocol.ext.allow", "always")):
            has(key, value)


HARMFUL = ("fsmonitor", "filter", "filter process", "filter of a name with dots", "filter of a name with =",
           "included filter", "hooks", "aliases", "programs", "submodule", "missing objects")


@pytest.mark.parametrize("name", HARMFUL)
def test_nothing_that_a_repository_configures_is_run(tmp_path: Path, name: str) -> None:
    place, evil = repository(tmp_path / "place"), tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    evil.chmod(0o755)
    planted(place, evil, name)
    touch(place / "file")
    (tmp_path / "ran").unlink(missing_ok=True)
    before = {path: path.stat().st_mtime_ns for path in (place / ".git").rglob("*")}
    state = hardware.git_state(place)
    assert not (tmp_path / "ran").exists()
    assert state is not None
    assert state["commit"] == git(place, "-c", "alias.rev-parse=", "rev-parse", "HEAD")
    assert {path: path.stat().st_mtime_ns for path in (place / ".git").rglob("*")} == before
    assert state["dirty"] is {"filter of a name with =": None, "missing objects": None}.get(name, False)


@pytest.mark.parametrize("name", ["fsmonitor", "filter", "included filter", "submodule", "missing objects"])
def test_a_plain_git_status_runs_what_is_planted(tmp_path: Path, name: str) -> None:
    """What the test above plants does harm."""
    place, evil = repository(tmp_path / "place"), tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
    evil.chmod(0o755)
    planted(place, evil, name)
    touch(place / "file")
    (tmp_path / "ran").unlink(missing_ok=True)
    subprocess.run(["git", "status", "--porcelain"], cwd=place, check=False, capture_output=True)
    assert (tmp_path / "ran").exists()


def test_variables_of_git_name_no_other_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place, other = repository(tmp_path / "place"), repository(tmp_path / "other")
    git(other, "commit", "-q", "--allow-empty", "-m", "second")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    state = hardware.git_state(place)
    monkeypatch.delenv("GIT_DIR")
    assert state == {"commit": git(place, "rev-parse", "HEAD"), "dirty": False}


def with_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    gpus = [{"index": index, "name": "NVIDIA H100"} for index in range(number)]
    monkeypatch.setattr(hardware, "gpu_facts", lambda: (gpus, None if gpus else "torch is built without CUDA"))


@pytest.mark.parametrize(("text", "num_gpus", "expected"), [
    ("auto", 0, "cpu"), ("auto", 2, "cuda:0"), ("cpu", 2, "cpu"), ("cuda", 2, "cuda:0"), ("cuda:1", 2, "cuda:1"),
])
def test_devices_that_are_here(monkeypatch: pytest.MonkeyPatch, text: str, num_gpus: int, expected: str) -> None:
    with_gpus(monkeypatch, num_gpus)
    assert hardware.resolve_device(text) == torch.device(expected)


@pytest.mark.parametrize(("text", "num_gpus", "said"), [
    ("cuda", 0, "no device cuda here (torch is built without CUDA): choose --device cpu"),
    ("cuda:2", 2, "no device cuda:2 here: choose from cpu, cuda:0, cuda:1"),
    *((text, 1, f"unknown device '{text}': choose auto, cpu, cuda or cuda:N (here are cpu, cuda:0)")
      for text in ("gpu", "", "cuda:", "cuda:-1", "cuda:x", "cuda:01", "CPU", "cpu:0", "cuda:1e3", "cuda:\u0661")),
])
def test_devices_that_are_not(monkeypatch: pytest.MonkeyPatch, text: str, num_gpus: int, said: str) -> None:
    with_gpus(monkeypatch, num_gpus)
    with pytest.raises(UserError) as refused:
        hardware.resolve_device(text)
    assert str(refused.value) == said


def broken() -> int:
    raise RuntimeError("CUDA driver initialization failed\nmore")


@pytest.mark.parametrize(("device_count", "reason"), [
    (broken, "CUDA does not start: CUDA driver initialization failed"), (lambda: 0, "torch finds no CUDA device")])
def test_without_a_gpu_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, device_count: Callable[[], int],
                                         reason: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", device_count)
    assert hardware.gpu_facts() == ([], reason)


@pytest.mark.parametrize(("platform", "capability"), [("cuda", "9.0"), ("hip", "gfx942")])
def test_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch, platform: str, capability: str) -> None:
    class Properties:
        name, uuid, total_memory, major, minor, multi_processor_count = "NVIDIA H100", "ab-cd", 85 * 10**9, 9, 0, 132
        gcnArchName = "gfx942:sramecc+:xnack-"  # of AMD: no compute capability

    monkeypatch.setattr(torch.version, platform, "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(hardware, "driver_version", lambda: "580.1")
    assert hardware.gpu_facts() == ([{
        "index": 0, "name": "NVIDIA H100", "uuid": "GPU-ab-cd", "memory_bytes": 85 * 10**9,
        "compute_capability": capability, "num_multiprocessors": 132, "driver": "580.1"}], None)


def test_name_of_the_processor() -> None:
    assert hardware.device_name(torch.device("cpu")) == hardware.cpu_model()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_facts_of_the_gpu_here() -> None:
    gpus, reason = hardware.gpu_facts()
    assert reason is None
    assert gpus[0]["name"] == hardware.device_name(hardware.resolve_device("cuda"))
    assert gpus[0]["driver"] is not None
