"""Which ranks a run has, and collectives of imported ranks."""

from pathlib import Path
from typing import Any

import pytest
from support import records

from charact.analysis.ranks.collectives import collective_summary
from charact.analysis.ranks.matching import rank_presence
from charact.record.reader import Run
from charact.views.sections.ranks.ranks import SECTION


def imported(out: Path, ranks: list[int], world_size: int = 8) -> Run:
    """A record of traces of ranks, with one all-reduce on the device in each of two iterations."""
    cases = []
    for rank in ranks:
        entry: dict[str, Any] = records.case_entry("ddp", 32, "train") | {
            "case": f"ddp-train-rank{rank}", "workload": "ddp", "rank": rank, "world_size": world_size}
        entry["passes"] = {"timing": {"status": "ok", "reason": None, "num_iterations": 2},
                           "collectives": {"status": "ok", "reason": None}}
        called = {"phase": "backward", "group": "default", "group_size": world_size, "operation": "all_reduce",
                  "bytes": 4000.0, "start_s": 0.01, "wait_s": None, "exposed_s": 0.002, "device_s": 0.005}
        timed = {"phase": "backward", "part": None, "host_s": 0.02, "device_s": 0.03}
        cases.append((entry, {"iterations": [timed | {"iteration": number} for number in range(2)],
                              "collectives": [called | {"iteration": number, "sequence": number}
                                              for number in range(2)]}))
    return records.run_of(out, *cases, **records.manifest("import") | {"options": {"traces": ["a"]}})


@pytest.mark.parametrize(("ranks", "text", "num_missing"), [
    ([0, 1, 2, 3, 5, 6, 7], "ranks 0–3, 5–7 of 8; rank 4 is missing", 1),
    ([0, 2], "ranks 0, 2 of 8; ranks 1, 3–7 are missing", 6),
    (list(range(8)), "ranks 0–7 of 8", 0),
])
def test_ranks_as_text(tmp_path: Path, ranks: list[int], text: str, num_missing: int) -> None:
    run = imported(tmp_path, ranks)
    (row,) = rank_presence(run).to_dict("records")
    assert row == {"program": "ddp-train", "world_size": 8, "num_ranks": len(ranks), "num_missing": num_missing,
                   "text": text}
    assert (f"ddp-train: {text}" in str(SECTION.html(run))) is bool(num_missing)


def test_a_run_without_ranks_has_none(tmp_path: Path) -> None:
    assert rank_presence(imported(tmp_path, [3])).empty


@pytest.mark.parametrize("ranks", [[0], [0, 1]])
def test_collectives_on_a_device_are_exposed_or_overlapped(tmp_path: Path, ranks: list[int]) -> None:
    rows = collective_summary(imported(tmp_path, ranks))
    assert rows["rank"].tolist() == ranks
    for row in rows.to_dict("records"):
        assert (row["num_calls"], row["bytes"]) == (1, 4000)
        assert (row["device_s"], row["exposed_s"]) == pytest.approx((0.005, 0.002))
        assert row["overlapped_s"] == pytest.approx(0.003)
