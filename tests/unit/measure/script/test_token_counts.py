"""Tokens and MFU of watched programs: their sums over the calls of an iteration, with padding apart."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from support.records import run_of
from support.watched import cases, watched
from torch import Tensor, nn
from torch.nn import functional

from charact.analysis.efficiency import flop_utilization as utilization
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.analysis.profile.case_summary import case_summary
from charact.core.timeline import Interval, Iteration, Mode
from charact.machine.datasheets import Datasheet
from charact.measure.script.spans.event_log_reader import EventLog
from charact.measure.script.spans.token_counts import token_counts

NUM_WORDS, WIDTH, BATCH_SIZE = 64, 16, 4
NUM_STEPS = 40
PEAK = 1e12
PASSES = "operators", "inspection"


class LanguageModel(nn.Module):
    """A model that is called as those of Hugging Face, and computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(NUM_WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.head = nn.Linear(WIDTH, NUM_WORDS, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        places = torch.arange(input_ids.shape[1])
        logits: Tensor = self.head(self.words(input_ids) + self.positions(places))
        if labels is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Program:
    """A training whose batches have different lengths, a quarter of each being padding."""

    def __init__(self, accumulate: int, *, varies: bool = True, sleep_s: float = 0.0) -> None:
        self.accumulate, self.varies, self.sleep_s = accumulate, varies, sleep_s
        self.positions: list[int] = []
        """Positions that the model read in each step."""

    def __call__(self) -> Any:
        model = LanguageModel()
        optimizer = torch.optim.SGD(model.parameters())
        for step in range(NUM_STEPS):
            self.positions.append(0)
            for number in range(self.accumulate):
                length = 8 + 4 * ((step + number) % 3 if self.varies else 0)
                ids = torch.randint(1, NUM_WORDS, (BATCH_SIZE, length))
                mask = (torch.arange(length) < length * 3 // 4).long().expand(BATCH_SIZE, -1)
                self.positions[-1] += ids.numel()
                model(input_ids=ids, attention_mask=mask, labels=ids).backward()
                time.sleep(self.sleep_s)
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer


@pytest.mark.parametrize("accumulate", [1, 4, 8])
def test_all_calls_of_an_iteration_count(tmp_path: Path, accumulate: int) -> None:
    program = Program(accumulate)
    ((entry, tables),) = cases(watched(tmp_path / "log", program, *PASSES), *PASSES)
    timed = [row["index"] for row in tables["program_iterations"] if row["iteration"] is not None]
    assert 6 < len(timed) < NUM_STEPS
    positions = sum(program.positions[number] for number in timed)
    timing = entry.passes.timing
    assert (timing.num_tokens, timing.num_padding) == (positions * 3 // 4, positions // 4)
    summary = case_summary(run_of(tmp_path / "run", (entry, tables), options={"script": "mine.py"})).iloc[0]
    wall_s = sum(row["host_s"] for row in tables["iterations"])
    assert summary["tokens_per_s"] == pytest.approx(positions * 3 / 4 / wall_s)
    assert summary["padding_frac"] == pytest.approx(0.25)


@pytest.mark.parametrize("accumulate", [1, 4, 8])
def test_utilization_is_that_of_known_products_and_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          accumulate: int) -> None:
    """The head's product forward, and backward for its weights and its input."""
    monkeypatch.setattr(utilization, "datasheet", lambda name: Datasheet({"fp32": PEAK}, 1e9, "by hand"))
    program = Program(accumulate, varies=False, sleep_s=0.01)
    case = cases(watched(tmp_path / "log", program, *PASSES), *PASSES)[0]
    run = run_of(tmp_path / "run", case, options={"script": "mine.py"})
    walls = run.iterations.groupby("iteration")["host_s"].sum().tolist()
    assert min(walls) >= 0.01 * accumulate
    flop = 3 * accumulate * 2 * BATCH_SIZE * 8 * WIDTH * NUM_WORDS
    (_, row), = flop_utilization(run).iterrows()
    assert row["mfu_frac"] == pytest.approx(flop / median(walls) / PEAK, rel=0.01)


def test_images_have_no_tokens(tmp_path: Path) -> None:
    def program() -> Any:
        model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(2))
        model(torch.randn(2, 3, 8, 8))
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(NUM_STEPS):
            model(torch.randn(2, 3, 8, 8)).sum().backward()
            optimizer.step()
        return model, optimizer

    (entry, _), *_ = cases(watched(tmp_path, program, *PASSES), *PASSES)
    assert entry.passes.inspection.status == "ok"
    assert (entry.passes.timing.num_tokens, entry.passes.timing.num_padding) == (None, None)


MODEL = 3


def logged(rows: list[Any], token_inputs: list[Any], *calls: Interval) -> EventLog:
    notes = [{"note": "input shapes", "rows": rows},
             {"note": "pass", "pass": "inspection", "windows": [], "status": "ok", "reason": None,
              "facts": {"token_inputs": token_inputs}}]
    return EventLog([Iteration(0, 100, list(calls))], notes)


def call(start_ns: int, owner: int = MODEL, **facts: Any) -> Interval:
    return Interval("forward", start_ns, start_ns + 1, owner, **facts)


def test_calls_count_with_the_shapes_that_they_had() -> None:
    rows = [[5, MODEL, [[2, 8], [2, 8]]], [15, 9, [[100, 100]]], [25, MODEL, [[2, 4], [2, 4]]]]
    log = logged(rows, [[MODEL, 1, 16, 4]], call(10), call(20, begins=False), call(30), call(40, mode=Mode.METHOD),
                 call(50, owner=9))
    assert token_counts(log, log.iterations, is_inspected=True) == {"num_tokens": 18, "num_padding": 6}
    assert token_counts(log, log.iterations, is_inspected=False) == {"num_tokens": 24}


def test_several_inputs_are_summed_and_share_their_padding() -> None:
    log = logged([[5, MODEL, [[2, 8], [2, 4]]]], [[MODEL, 0, 16, 4], [MODEL, 1, 8, None]], call(10))
    assert token_counts(log, log.iterations, is_inspected=True) == {"num_tokens": 20, "num_padding": 4}


def test_no_tokens_without_inspection_or_with_too_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog([Iteration(0, 100, [call(10)])], [{"note": "input shapes", "rows": [[5, MODEL, [[2, 8]]]]}])
    assert token_counts(log, log.iterations, is_inspected=True) == {}
    full = logged([[-5, MODEL, [[2, 8]]]], [[MODEL, 0, 16, 4]], call(10))
    assert token_counts(full, full.iterations, is_inspected=True)
    monkeypatch.setattr("charact.measure.script.spans.token_counts.MAX_EVENTS", 1)
    assert token_counts(full, full.iterations, is_inspected=True) == {}
