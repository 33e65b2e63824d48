"""The counter pass: its phases, the sources that need iterations of their own, and what holds for every source."""

import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from support.small import TwoLayers, small_case
from support.sources import Made, MadePass, break_down, refuse
from torch import Tensor

from charact.core.errors import UserError
from charact.execution.loop import Loop
from charact.measure.counters import all_sources, chosen_sources, described
from charact.measure.counters._support.phase_spans import MAX_SPANS, PhaseTimeline, drawable
from charact.measure.counters._support.protocol import Unavailable
from charact.measure.passes import counters as module
from charact.measure.passes.counters import MIN_ITERATIONS, counter_pass
from charact.record.manifest_passes import SourceOutcome
from charact.record.schema import column_names

pytestmark = pytest.mark.clock

ENDINGS = ("_s", "_bytes", "_frac", "_w", "_j", "_hz", "_c", "_flop")
"""Of counters' names; rates end in `_per_s`."""


class Sleeper(TwoLayers):
    """Sleeps 40 ms in its forward and 80 ms in its loss."""

    def forward(self, model: Any, batch: Any) -> Tensor:
        time.sleep(0.04)
        return super().forward(model, batch)

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        time.sleep(0.08)
        return super().loss(outputs, batch)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_SECONDS", 0.02)


def test_samples_and_spans_tell_where_the_time_went() -> None:
    rows, facts = counter_pass(Loop(small_case(workload=Sleeper())), [Made(period_s=0.01)])
    assert facts.num_iterations >= MIN_ITERATIONS
    assert facts.duration_s >= 1
    samples = [row for row in rows if row["time_s"] is not None]
    spans = {name: [(start_s, end_s) for start_s, end_s, phase in facts.spans if phase == name]
             for name in ("data", "forward", "loss", "backward", "update")}
    assert {len(found) for found in spans.values()} == {facts.num_iterations}
    spent_s = {name: sum(end_s - start_s for start_s, end_s in found) for name, found in spans.items()}
    assert spent_s["forward"] >= 0.04 * facts.num_iterations
    assert spent_s["loss"] > spent_s["forward"]
    for phase in ("forward", "loss"):
        share = sum(row["phase"] == phase for row in samples) / len(samples)
        assert share == pytest.approx(spent_s[phase] / facts.duration_s, rel=0.4)
    # Samples and spans are told on one clock.
    for row in samples:
        inside = [phase for start_s, end_s, phase in facts.spans if start_s <= row["time_s"] < end_s]
        assert inside == ([row["phase"]] if row["phase"] else [])


@pytest.mark.usefixtures("brief")
class TestSourcesOfTheirOwnPass:
    def outcome(self, source: Made) -> tuple[list[dict[str, Any]], SourceOutcome]:
        rows, facts = counter_pass(Loop(small_case()), [source])
        return rows, facts.sources["made"]

    def test_what_it_finds_is_completed(self) -> None:
        rows, ended = self.outcome(MadePass())
        assert rows == [{"phase": "forward", "time_s": None, "rank": 0, "kernel": None, "source": "made",
                         "counter": "num_samples", "value": 1.0, "device": "cpu"}]
        assert set(rows[0]) == set(column_names("counters")) - {"case"}
        assert ended == SourceOutcome("ok", missing={"num_lost": "too old"}, num_iterations=1)

    @pytest.mark.parametrize(("source", "status", "reason"), [
        (MadePass(opening=refuse), "n/a", "somebody else holds it"),
        (MadePass(opening=break_down), "failed", "ValueError: no such"),
        (MadePass(here=Unavailable("too old"), opening=break_down), "n/a", "too old"),
        (MadePass(devices=frozenset({"cuda"}), opening=break_down), "n/a", "counts on cuda devices only"),
    ])
    def test_its_failure_is_kept_as_its_outcome(self, source: MadePass, status: str, reason: str) -> None:
        rows, ended = self.outcome(source)
        assert rows == []
        assert (ended.status, ended.reason) == (status, reason)


@pytest.mark.usefixtures("brief")
def test_an_iteration_that_fails_ends_the_reading_of_all_sources() -> None:
    source = Made()
    with pytest.raises(ValueError, match="is broken"):
        counter_pass(Loop(small_case(workload=TwoLayers(fail_in="forward"))), [source])
    assert source.num_open == 0


class TestTimeline:
    def test_phases_lie_where_they_were_slept(self) -> None:
        timeline = PhaseTimeline(torch.device("cpu"))
        begun_ns = time.perf_counter_ns()
        for phase in ("forward", "backward"):
            with timeline(phase):
                time.sleep(0.02)
        (forward, backward), ended_ns = timeline.spans(), time.perf_counter_ns()
        assert [forward[2], backward[2]] == ["forward", "backward"]
        assert begun_ns <= forward[0] <= forward[1] <= backward[0] <= backward[1] <= ended_ns
        assert min(forward[1] - forward[0], backward[1] - backward[0]) >= 20e6

    def test_the_first_are_drawn_in_order(self) -> None:
        spans = [(10**9 * number, 10**9 * number + 5 * 10**8, "forward") for number in range(MAX_SPANS + 5)]
        drawn = drawable(list(reversed(spans)), begun_ns=10**9)
        assert len(drawn) == MAX_SPANS
        assert drawn[:2] == [[-1.0, -0.5, "forward"], [0.0, 0.5, "forward"]]


class TestEverySource:
    @pytest.mark.parametrize("name", all_sources())
    def test_it_describes_itself(self, name: str) -> None:
        source = all_sources()[name]
        assert source.cost
        assert source.devices <= {"cpu", "cuda"}
        assert source.reads in ("host", "device")
        assert source.taken in ("along", "trace", "own pass")
        names = [counter.name for counter in source.counters]
        assert len(set(names)) == len(names)
        for counter in source.counters:
            assert counter.definition
            assert counter.scope
            assert counter.method in ("measured", "sampled", "estimated", "modelled")
            assert counter.name.startswith("num_") or counter.name.endswith(ENDINGS)
            assert "percent" not in counter.name

    @pytest.mark.parametrize("name", all_sources())
    def test_where_it_is_not_it_says_why_in_one_line(self, name: str) -> None:
        refusal = all_sources()[name].available()
        for words in () if refusal is None else (refusal.reason, refusal.remedy or "."):
            assert words
            assert "\n" not in words

    @pytest.mark.parametrize("name", [name for name, source in all_sources().items() if source.taken == "along"])
    def test_what_it_gives_it_has_declared(self, name: str, brief: None) -> None:
        source = all_sources()[name]
        rows, facts = counter_pass(Loop(small_case()), [source])
        ended = facts.sources[name]
        assert {row["counter"] for row in rows} | set(ended.missing) <= {one.name for one in source.counters}
        assert bool(rows) == (ended.status == "ok")
        assert ended.status == "ok" or ended.reason

    def test_the_manifest_tells_what_each_counter_means(self) -> None:
        told = described()
        assert set(told) == set(all_sources())
        assert set(told["host"]["rss_bytes"]) == {"definition", "method", "scope"}

    def test_one_that_costs_nothing_is_chosen_by_itself_one_with_its_own_pass_by_name(self) -> None:
        by_itself = {source.name for source in chosen_sources(None)}
        assert by_itself == {source.name for source in all_sources().values() if source.taken != "own pass"}
        assert [source.name for source in chosen_sources(["perf", "host"])] == ["perf", "host"]
        assert {source.name for source in chosen_sources(["auto", "pm", "host"])} == by_itself | {"pm"}
        assert chosen_sources([]) == []
        with pytest.raises(UserError, match=r"^--counters: 'hots' is not one of auto, none, .*host.*$"):
            chosen_sources(["host", "hots"])

    @pytest.mark.slow
    def test_nothing_heavy_comes_with_them_into_a_watched_program(self) -> None:
        program = ("import sys, torch\n"
                   "from charact.measure.script import pass_instruments\n"
                   "from charact.measure.counters import all_sources\n"
                   "all_sources()\n"
                   "heavy = {'pandas', 'pyarrow', 'duckdb', 'matplotlib', 'jinja2', 'rich', 'cupti'}\n"
                   "print(sorted(heavy & set(sys.modules)))")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


