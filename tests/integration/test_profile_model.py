"""`charact profile --model`: a model of the user's own, measured whole, and each of its mistakes told in one line."""

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.programs import only_record

NETS = '''
import torch
from torch import nn


class Pictures(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(x)


class Words(nn.Module):
    def __init__(self, words=50):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, 8), nn.Linear(8, 9)

    def forward(self, ids, mask):
        return {"scores": self.head(self.embedding(ids)) * mask[..., None]}, mask


def halved(outputs, target):
    return ((outputs[0]["scores"] / 2) ** 2).mean() + 0 * target.sum()


def broken(**arguments):
    raise ValueError("this model\\ncannot be made")


def words(count):
    return Words(count)
'''
QUICK = ["--batch-sizes", "2", "--max-iterations", "2", "--max-seconds", "1"]
PASSES = {"timing": "ok", "operators": "ok", "kernels": "skipped", "memory": "ok", "flop": "ok",
          "counters": "ok"}


def profile(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    (cwd / "nets.py").write_text(NETS)
    return subprocess.run([sys.executable, "-P", "-m", "charact", "profile", *arguments, *QUICK], cwd=cwd,
                          capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def profile_here(here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """The same in the test's own process, which forgets the module after it."""
    monkeypatch.setattr(sys, "path", sys.path[:])

    def run(*arguments: str, cwd: Path) -> Any:
        (cwd / "nets.py").write_text(NETS)
        importlib.invalidate_caches()
        return here("profile", *arguments, *QUICK, cwd=cwd)

    yield run
    sys.modules.pop("nets", None)


@pytest.mark.slow
def test_pictures_have_all_passes_at_every_size(tmp_path: Path) -> None:
    done = profile("--model", "nets:Pictures", "--model-args", "width=6", "--input-spec", "3xSxS -> int64[10]",
                   "--input-sizes", "8,16", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_record(tmp_path)
    assert list(run.cases["case"]) == [f"Pictures-{size}-b2-{mode}-fp32-cpu"
                                       for size in (8, 16) for mode in ("train", "infer")]
    for entry in run.entries:
        assert {name: facts.status for name, facts in entry.passes.items()} == PASSES
        assert entry.num_parameters == 3 * 6 * 9 + 6 + 6 * 10 + 10
    forward = run.flop.query("phase == 'forward' and layer == 'conv'").groupby("case")["flop"].sum()
    assert forward["Pictures-16-b2-train-fp32-cpu"] == 2 * 2 * (3 * 6 * 9) * 16 * 16  # 1 MAC = 2 FLOP, batch 2
    trained, predicted = (entry.facts for entry in run.entries[:2])
    assert trained == {"model": "nets:Pictures", "arguments": {"width": "6"}, "inputs": "3xSxS -> int64[10]",
                       "loss": "cross_entropy against the target", "optimizer": "SGD, learning rate 0.01"}
    assert predicted == {key: trained[key] for key in ("model", "arguments", "inputs")}
    assert run.manifest["options"]["model"] == "nets:Pictures"
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert "cross_entropy against the target" in report
    assert "3xSxS -&gt; int64[10]" in report


@pytest.mark.slow
def test_several_inputs_a_nested_output_and_a_loss_of_the_users(tmp_path: Path) -> None:
    done = profile("--model", "nets:words", "--model-args", "count=60", "--input-spec",
                   "int64[60] S, mask=int64[1:2] S -> int64[9] S", "--loss", "nets:halved", "--optimizer", "Adam",
                   "--learning-rate", "0.001", "--input-sizes", "5", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_record(tmp_path)
    assert {entry.input_kind for entry in run.entries} == {"sequence"}
    facts = run.entries[0].facts
    assert (facts["loss"], facts["optimizer"]) == ("nets:halved", "Adam, learning rate 0.001")
    assert run.operators.query("phase == 'update'")["operator"].str.contains("Adam|addcdiv|lerp").any()


@pytest.mark.slow_variants
@pytest.mark.parametrize(("model", "spec", "reason"), [
    ("nets:broken", "S", "ValueError: this model"),
    ("nets:Words", "int64[50] S", "TypeError: Words.forward() missing 1 required positional argument: 'mask'"),
    ("nets:Words", "int64[50] S, mask=bool S, x=S", "TypeError: "),
    ("nets:Words", "S, mask=bool S", "RuntimeError: "),
    ("nets:words", "S", "TypeError: words() missing 1 required positional argument: 'count'"),
])
def test_a_model_that_fails_fails_its_case_with_one_line(model: str, spec: str, reason: str, tmp_path: Path,
                                                         profile_here: Callable[..., Any]) -> None:
    done = profile_here("--model", model, "--input-spec", spec, "--input-sizes", "5", "--mode", "infer", cwd=tmp_path)
    assert done.returncode == 1
    (entry,) = only_record(tmp_path).entries
    assert entry.status == "error"
    assert entry.reason.startswith(reason)
    assert done.stderr == f"{entry.case}: error ({entry.reason})\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (["--model", "nets:Pictures", "--input-sizes", "8"], "--model needs its inputs: add --input-spec"),
    ([], "give a workload, as in charact profile resnet50, or your own model with --model"),
    (["--model", "nets:Pictures", "--input-spec", "3xSxS", "--variant", "cifar"], "--variant is for the built-in"),
    (["--model", "nets:Pictures", "--input-spec", "3xSxS", "--data", "mnist"], "--data is for the built-in"),
    (["--model", "nets:Pictures", "--input-spec", "3xSxS", "--synthetic", "classes=3"], "--synthetic is for the buil"),
    (["--model", "nets:Fixed", "--input-spec", "S", "--channels-last", "--input-sizes", "8"],
     "--channels-last orders the axes of images"),
])
def test_a_mistake_gets_one_line_and_nothing_is_written(arguments: list[str], message: str, tmp_path: Path,
                                                        profile_here: Callable[..., Any]) -> None:
    done = profile_here(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n"), done.stderr[:7]) == (2, "", 1, "error: ")
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()
