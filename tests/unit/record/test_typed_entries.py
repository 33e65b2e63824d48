"""Cases of run.json as Structs."""

import msgspec
import pytest

from charact.record.manifest import CaseEntry, typed_entry
from charact.record.manifest_passes import PASSES, MemoryPass, Pass, TimingPass


def test_a_case_is_the_same_after_a_round_trip():
    entry = CaseEntry("a", "ok", workload="resnet", batch_size=8)
    entry.passes["timing"] = TimingPass("ok", num_iterations=3, median_s=0.5)
    entry.passes["kernels"] = Pass("skipped", "no GPU")
    written = msgspec.to_builtins(entry)
    assert written["passes"] == {"timing": {"status": "ok", "num_iterations": 3, "median_s": 0.5},
                                 "kernels": {"status": "skipped", "reason": "no GPU"}}
    assert typed_entry(written) == entry


def test_passes_that_were_not_taken_are_empty():
    passes = typed_entry({"case": "a", "status": "ok"}).passes
    assert not passes
    assert passes.memory == MemoryPass()
    assert passes.memory.status is None
    assert {name: type(getattr(passes, name)) for name in PASSES} == PASSES


def test_facts_and_passes_of_newer_versions_are_left_out():
    entry = typed_entry({"case": "a", "status": "ok", "new": 1, "passes": {
        "timing": {"status": "ok", "new": 1}, "astrology": {"status": "ok", "sign": "crab"}}})
    assert entry.passes.timing == TimingPass("ok")
    assert list(entry.passes) == ["timing", "astrology"]
    assert entry.passes["astrology"] == Pass("ok")


@pytest.mark.parametrize(("entry", "message"), [
    (3, "Expected `object`, got `int`"),
    ({"status": "ok"}, "missing required field `case`"),
    ({"case": "a", "status": "ok", "passes": []}, r"Expected `object`, got `array` - at `\$.passes`"),
    ({"case": "a", "status": "ok", "passes": {"timing": {}}}, r"required field `status` - at `\$.passes.timing`"),
    ({"case": "a", "status": "ok", "passes": {"timing": {"status": "ok", "num_iterations": -1}}},
     r"at `\$.passes.timing.num_iterations`"),
])  # fmt: skip
def test_invalid_facts_are_named(entry, message):
    with pytest.raises(ValueError, match=message):
        typed_entry(entry)


@pytest.mark.parametrize("name", [*PASSES, "astrology"])
def test_a_pass_without_facts_has_the_type_of_its_name(name):
    entry = CaseEntry("a", "ok")
    entry.passes.end(name, "failed", "no reason")
    assert type(entry.passes[name]) is PASSES.get(name, Pass)
    assert typed_entry(msgspec.to_builtins(entry)) == entry
