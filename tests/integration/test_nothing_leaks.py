"""No file of a record holds a secret or a name of the user, and an anonymous report names no host, whatever was run."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

USER, HOST = "plantedname", "plantedhost77"
BY_NAME = "PlantedByName1"
BY_SHAPE = "hf_PlantedByShape0123456789abcdef"
IN_URL = "PlantedInUrl1"
IN_ENVIRONMENT = "PlantedInEnvironment1"
SECRETS = (BY_NAME, BY_SHAPE, IN_URL, IN_ENVIRONMENT, "PlantedInSpeed")
ARGUMENTS = ("--api-key", BY_NAME, f"--auth={BY_NAME}", f"trainer.token={BY_NAME}", "--hub", BY_SHAPE,
             "--data", f"https://u:{IN_URL}@example.org/?sig={IN_URL}", "--epochs", "2")
NAMES_THE_HOST = {"run.json", "report.html"}

SCRIPT = """
import os, sys, torch
def main():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        with torch.profiler.record_function("token=" + sys.argv[2]):
            loss = model(torch.randn(8, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
ENDS_BADLY = """
main()
raise RuntimeError(f"{sys.argv[2]} is denied at {os.path.expanduser('~')}/data by " + os.environ["MY_SERVICE_KEY"])
"""
PROFILES = """
import charact
with charact.Profiler("mine", "runs"):
    main()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory in the home directory of a user and on a host with names of their own."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, socket\n"
        "here = os.uname()\n"
        f"named = os.uname_result([here[0], '{HOST}', *here[2:]])\n"
        "os.uname = lambda: named\n"
        f"socket.gethostname = lambda: '{HOST}'\n")
    work = tmp_path / "home" / USER / "work"
    work.mkdir(parents=True)
    (work / "script.py").write_text(SCRIPT + ENDS_BADLY)
    (work / "profiles.py").write_text(SCRIPT + PROFILES)
    return work


def charact(place: Path, *arguments: str, python: bool = False, status: int | None = 0) -> None:
    home = place.parent
    environment = {name: value for name, value in os.environ.items() if name != "LOGNAME"} | {
        "HOME": str(home), "USER": USER, "PYTHONPATH": str(home.parents[1] / "site"), "MY_SERVICE_KEY": IN_ENVIRONMENT,
        "TORCH_HUB_AUTH": IN_ENVIRONMENT, "NVIDIA_PASSWD": "PlantedInSpeed1", "MKL_CREDS": "PlantedInSpeed2",
        "MALLOC_CONF": f"token={BY_NAME}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *(() if python else ("-m", "charact")), *arguments], cwd=place,
                          env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert status is None or done.returncode == status, done.stderr


def contents(path: Path) -> Iterator[bytes]:
    """What a file holds, as it is and unpacked."""
    yield path.read_bytes()
    if path.suffix == ".gz":
        yield gzip.decompress(path.read_bytes())
    elif path.suffix == ".parquet":
        yield json.dumps(pq.read_table(path).to_pylist()).encode()


def leaks(directory: Path, home: Path) -> list[str]:
    """What files below a directory hold, or are called, that they should not."""
    found = []
    for path in (path for path in directory.rglob("*") if path.is_file()):
        forbidden = [*SECRETS, USER, str(home), *(() if path.name in NAMES_THE_HOST else (HOST,))]
        texts = [*contents(path), str(path.relative_to(directory)).encode()]
        found += [f"{path.relative_to(directory)}: {word}" for word in forbidden
                  if any(word.encode() in text for text in texts)]
    return found


def checked(place: Path, name: str = "runs") -> list[Path]:
    """The runs below a directory, in which nothing leaks."""
    assert leaks(place / name, place.parent) == []
    runs = sorted((place / name).iterdir())
    assert runs
    for run in runs:
        assert json.loads((run / "run.json").read_text())["hostname"] == HOST
    return runs


@pytest.mark.slow
def test_a_watched_script_leaks_nothing(place: Path) -> None:
    charact(place, "run", "--passes", "operators", "--iterations", "3", str(place / "script.py"), *ARGUMENTS, status=1)
    (run,) = checked(place)
    manifest = json.loads((run / "run.json").read_text())
    hidden = "<redacted>"
    arguments = ["--api-key", hidden, f"--auth={hidden}", f"trainer.token={hidden}", "--hub", hidden,
                 "--data", f"https://{hidden}@example.org/?sig={hidden}", "--epochs", "2"]  # fmt: skip
    assert manifest["options"]["arguments"] == arguments
    assert manifest["command_line"][-len(arguments) - 1:] == ["script.py", *arguments]
    assert manifest["ending"] == f"RuntimeError: {hidden} is denied at ~/data by {hidden}"
    assert "TORCH_HUB_AUTH" not in manifest["software"]["environment"]
    assert manifest["software"]["environment"]["MALLOC_CONF"] == f"token={hidden}"
    (trace,) = (run / "trace").iterdir()
    told = json.loads(gzip.decompress(trace.read_bytes()))
    assert told["host_name"] == "<host>"
    assert any(event["name"] == f"token={hidden}" for event in told["traceEvents"])
    page = (run / "report.html").read_text()
    assert HOST in page
    assert "--epochs" not in page

    charact(place, "report", "--anonymous", "--to", "sent.html", str(run))
    sent = (place / "sent.html").read_text()
    assert HOST not in sent
    assert "names of the host and the user" in re.sub(r"\s+", " ", sent)


@pytest.mark.slow
def test_a_killed_script_leaks_nothing_of_its_event_log(place: Path) -> None:
    (place / "script.py").write_text(SCRIPT.replace("import os", "import time, os") + """
main()
os.kill(os.getpid(), 9)
""")
    charact(place, "run", "--sample", "script.py", *ARGUMENTS, status=-9)
    (run,) = checked(place)
    assert run.name.startswith(".partial-")
    assert (run / "notes.jsonl").stat().st_size


@pytest.mark.slow
def test_no_command_leaks_anything(place: Path) -> None:
    tiny = ["--max-iterations", "6", "--max-seconds", "1"]
    charact(place, "profiles.py", *ARGUMENTS, python=True)
    (profiled,) = checked(place)
    charact(place, "run", "--passes", "operators,memory,counters", "--iterations", "4", "script.py", *ARGUMENTS,
            status=1)
    traces = [path for run in checked(place) for path in (run / "trace").glob("*.gz")]
    charact(place, "profile", "mlp", "--batch-sizes", "2", *tiny)
    (place / "mine.py").write_text(
        "import os, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, token): super().__init__(4, 4)\n"
        "    def forward(self, x):\n"
        "        raise RuntimeError(f'{os.path.expanduser(\"~\")}: ' + os.environ['MY_SERVICE_KEY'])\n")
    charact(place, "profile", "--model", "mine:Net", "--model-args", f"token='{BY_NAME}'", "--input-spec", "S",
            "--input-sizes", "4", "--mode", "infer", "--batch-sizes", "2", *tiny, status=1)
    charact(place, "train", "seq2seq", "--input-sizes", "3", "--epochs", "1", "--synthetic", "vocabulary=30",
            "--batch-sizes", "256", "--threads", "1")
    charact(place, "infer", "mlp", "--batch-sizes", "64", "--max-batches", "2", "--repeats", "1")
    charact(place, "memory", "mlp", "--batch-sizes", "2")
    charact(place, "ops", "--problem", "gemm:8x8x8", "--max-seconds", "1")
    charact(place, "import", str(traces[0]))
    charact(place, "bricks", "generate", "mlp", "-g", "2", "--batch-sizes", "2", "--input-sizes", "8", "--out",
            str(place / "suite"))
    assert leaks(place / "suite", place.parent) == []
    charact(place, "bricks", "run", str(place / "suite"), "--max-rounds", "4", "--threads", "1")
    (bricks,) = (place / "runs").glob("*bricks-suite*")
    charact(place, "bricks", "construct", "mlp", str(bricks))  # which finds the compositions by the record
    runs = checked(place)
    assert len(runs) == 11
    (place / "out").mkdir()
    for number, run in enumerate(runs):
        charact(place, "export", "--format", ("csv", "json", "parquet")[number % 3], "--to", f"out/{number}", str(run))
    charact(place, "report", "--anonymous", "--to", "out/sent.html", *map(str, runs))
    charact(place, "compare", str(profiled), str(profiled), "--to", "out/report.html", "--summary", "out/gate.md",
            "--junit", "out/gate.xml", "--fail-if", "time > 1.1", "--allow-single", status=None)
    assert (place / "out" / "report.html").exists()
    assert leaks(place / "out", place.parent) == []
