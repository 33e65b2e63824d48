"""Analyses of an inference server's steps, against numbers computed from the trace itself."""

from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import pytest
from support.serving_reader import CAUSES, ServedTrace
from support.serving_records import DECODE, server, write_server, write_trace
from support.serving_traces import LAYER, ServerTrace, decoding

from charact.analysis.profile.serving import (
    serving_gaps,
    serving_graphs,
    serving_kernels,
    serving_kernels_by_step,
    serving_kinds,
    serving_limits,
    serving_steps,
)
from charact.record.reader import Run, load_run

KINDS = {"rms_norm_kernel": "normalization", "sm90_gemm_bf16": "GEMM", "flash_fwd_splitkv_kernel": "attention",
         "reshape_and_cache_flash_kernel": "copy", "Memcpy DtoH (Device -> Pinned)": "copy",
         "<script>alert(1)</script>": "other"}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> ServedTrace:
    """Return what an independent reader finds in the trace."""
    made = server()
    for event in made.events:  # one prefix for all steps
        event["name"] = event["name"].replace("step[IDLE bs=0]", "execute_idle")
    return ServedTrace(made.write(tmp_path_factory.mktemp("trace") / "trace.json"), "execute_")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(write_server(tmp_path_factory.mktemp("run")))


def of_server(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["case"] == "server-infer"].reset_index(drop=True)


def test_kinds_of_steps(run: Run, read: ServedTrace) -> None:
    kinds = of_server(serving_kinds(run))
    assert kinds["kind"].fillna("").tolist() == ["prefill", "decode", "mixed", ""]
    assert kinds["num_steps"].tolist() == [1, 12, 1, 1]
    assert kinds.loc[3, "kind_reason"] == "the batch has no request"
    cycles, lengths = read.cycles(), [max(each["ts"] + each["dur"] for each in work) - min(each["ts"] for each in work)
                                      for work in read.work]
    decodes = range(1, 13)
    row = kinds.loc[1]
    assert row["median_s"] == pytest.approx(median(lengths[number] for number in decodes) / 1e6)
    assert row["p90_s"] == pytest.approx(np.quantile([lengths[number] for number in decodes], 0.9) / 1e6)
    assert np.isnan(kinds.loc[0, "p90_s"])
    total = [cycle["total"] for cycle in cycles if cycle]
    assert row["share_frac"] == pytest.approx(sum(total[1:13]) / sum(total))
    assert row["busy_frac"] == pytest.approx(sum(cycle["busy"] for cycle in cycles[1:13] if cycle) / sum(total[1:13]))
    assert row["whole_s"] == pytest.approx(median(total[1:13]) / 1e6)
    assert row["graph_frac"] == pytest.approx(400 / 410)
    assert (row["num_requests"], row["num_tokens"], row["num_kernels"]) == (8, 8, 17)
    assert kinds["share_frac"].sum() == pytest.approx(1)


def test_gaps_sum_to_the_time_between_steps(run: Run, read: ServedTrace) -> None:
    gaps = of_server(serving_gaps(run)).set_index("cause")
    cycles = [cycle for cycle in read.cycles() if cycle]
    found = {cause: sum(cycle.get(cause, 0) for cycle in cycles) for cause in CAUSES}
    assert (gaps["time_s"] * 1e6).to_dict() == pytest.approx({cause: time for cause, time in found.items() if time})
    assert gaps["share_frac"].sum() == pytest.approx(1)
    assert gaps["mean_s"].sum() == pytest.approx(sum(found.values()) / 15 / 1e6)
    assert of_server(serving_steps(run))["gap_s"].sum() == pytest.approx(sum(found.values()) / 1e6)


def test_shares_of_kinds_of_kernels_sum_to_all_device_time(run: Run, read: ServedTrace) -> None:
    kernels = of_server(serving_kernels(run)).set_index("kernel_kind")
    times = read.us_by(KINDS)
    whole = sum(event["dur"] for event in read.device)
    for kind, row in kernels.iterrows():
        of_kind = {key: time for key, time in times.items() if key[2] == kind}
        assert row["device_s"] == pytest.approx(sum(of_kind.values()) / 1e6)
        assert row["share_frac"] == pytest.approx(sum(of_kind.values()) / whole)
        in_graphs = sum(time for (_, replayed, _), time in of_kind.items() if replayed)
        in_steps = sum(time for (in_step, _, _), time in of_kind.items() if in_step)
        assert (row["graph_frac"], row["step_frac"]) == pytest.approx(
            (in_graphs / sum(of_kind.values()), in_steps / sum(of_kind.values())))
    assert kernels["share_frac"].sum() == pytest.approx(1)
    assert kernels.loc["other", "largest"] == "<script>alert(1)</script>"
    assert kernels.loc["other", "operator_frac"] == 1
    by_step = of_server(serving_kernels_by_step(run))
    assert by_step["device_s"].sum() == pytest.approx(whole / 1e6)
    assert by_step["steps"].unique().tolist() == ["prefill", "decode", "mixed", "n/a", "outside"]


def test_graphs(run: Run) -> None:
    graphs = serving_graphs(run)
    assert (graphs.groupby(["case", graphs["graph"].fillna("")])["share_frac"].sum() - 1).abs().max() < 1e-9
    replays = graphs[graphs["case"] == "replays-infer"].groupby("graph")["device_s"].sum()
    assert replays.to_dict() == pytest.approx({"graph 1, 4 kernels": 300e-6, "graph 2, 8 kernels": 200e-6})


def test_limits(run: Run) -> None:
    limits = serving_limits(run).set_index("case")
    assert limits.loc["server-infer", ["kind", "idle_cause"]].tolist() == ["decode", "host"]
    assert limits.loc["server-infer", "idle_frac"] == pytest.approx((400 * 12 - 40) / 1000 / 12)
    assert limits.loc["replays-infer", "idle_cause"] == "launch"


@pytest.mark.parametrize(("ahead", "cause"), [(False, "inside"), (True, "queue")])
def test_idle_time_inside_of_steps_and_after_the_launch(tmp_path: Path, ahead: bool, cause: str) -> None:
    made = ServerTrace()
    for number in range(4):
        at = 1000.0 * number
        made.mark(DECODE, at, 900)
        if ahead:
            made.replay(at + 1, at + 600, LAYER)
        else:
            made.eager(at + 10, at + 20, LAYER[:2])
            made.eager(at + 500, at + 510, LAYER[2:])
    limits = serving_limits(load_run(write_trace(tmp_path, made)))
    assert limits["idle_cause"].tolist() == [cause]


def test_steps_without_a_device_are_timed_on_the_host(tmp_path: Path) -> None:
    made = ServerTrace()
    for at, length in ((0, 600), (1000, 700)):
        made.mark(DECODE, at, length)
        made.operator("aten::mm", at + 10, 500)
    run = load_run(write_trace(tmp_path, made))
    kinds = serving_kinds(run)
    assert kinds[["median_s", "whole_s", "share_frac"]].iloc[0].tolist() == pytest.approx([650e-6, 850e-6, 1])
    assert kinds["busy_frac"].isna().all()
    assert serving_gaps(run)[["cause", "time_s"]].to_numpy().tolist() == [["host", pytest.approx(400e-6)]]
    assert serving_kernels(run).empty
    assert serving_limits(run)["idle_cause"].isna().all()


def test_a_busy_server(tmp_path: Path) -> None:
    made = ServerTrace()
    end = 20.0
    for number in range(12):
        made.mark(DECODE, 100.0 * number, 90)
        end = made.replay(100.0 * number + 10, end, [*LAYER] * 3)
    limits = serving_limits(load_run(write_trace(tmp_path, made))).iloc[0]
    assert limits["busy_frac"] == pytest.approx(3600 / 3620)  # the first step begins 20 µs before its first kernel
    assert limits["median_s"] == pytest.approx(300e-6)


def test_a_run_of_something_else_has_no_rows(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE])
    made.mark("Optimizer.step#SGD.step", 1900, 50)
    run = load_run(write_trace(tmp_path, made))
    assert serving_kinds(run).empty
    assert serving_kernels(run).empty
