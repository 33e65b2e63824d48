"""What `charact doctor` shows of ceilings."""

import json
import re

import pytest
from support.ceilings import ceiling

from charact import cli
from charact.commands import doctor
from charact.machine.ceilings_cache import CachedCeilings, CachedCollectives, Ceiling
from charact.measure.capabilities import Check, machine_checks
from charact.measure.microbench.collectives import collective_ceiling

SHEET = "NVIDIA H100 datasheet, 2024"


def shown(capsys: pytest.CaptureFixture[str], device: str, *rows: Ceiling) -> list[str]:
    doctor._print_ceilings(device, CachedCeilings(list(rows)))
    return capsys.readouterr().out.splitlines()


def test_a_ceiling_stands_beside_its_makers_figure(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(
        capsys, "cuda:0",
        ceiling("gemm", 7e14, "flop_per_s", precision="bf16", datasheet=1e15, datasheet_source=SHEET),
        ceiling("copy", 3e12, "bytes_per_s", level="memory", working_set_bytes=2 * 10**9, datasheet=3.35e12,
                datasheet_source=SHEET, theoretical=3.352e12),
        ceiling("launch", 4e-6, "s"))
    assert lines[1].startswith("Ceilings of cuda:0, measured 20")
    cells = [line.split("  ") for line in lines]
    assert [cell.strip() for cell in cells[3] if cell] == [
        "gemm bf16", "700 TFLOP/s", "693.0–707.0 TFLOP/s", "70.0 % of 1.00 PFLOP/s"]
    assert [cell.strip() for cell in cells[4] if cell] == [
        "copy memory, 1.86 GiB", "3.00 TB/s", "2.970–3.030 TB/s", "89.6 % of 3.35 TB/s"]
    assert [cell.strip() for cell in cells[5] if cell] == [
        "launch", "4.00 µs", "3.960–4.040 µs", "n/a (not in the datasheet)"]
    assert lines[-2:] == [f"Datasheet: {SHEET}",
                          "Memory by its clock and width, as the driver reports them: 3,352 GB/s"]


def test_more_than_the_datasheet_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    row = ceiling("gemm", 1.03e15, "flop_per_s", precision="fp16", datasheet=1e15, datasheet_source=SHEET)
    assert any(line.endswith("103.0 % of 1.00 PFLOP/s: above its datasheet")
               for line in shown(capsys, "cuda:0", row))
    exact = ceiling("gemm", 1e15, "flop_per_s", precision="fp16", datasheet=1e15, datasheet_source=SHEET)
    assert not any("above" in line for line in shown(capsys, "cuda:0", exact))


@pytest.mark.parametrize(("device", "reason"), [
    ("cpu", "not in datasheets of processors"), ("cuda:0", "not known for this device")])
def test_without_a_datasheet_the_reason_stands_there(capsys: pytest.CaptureFixture[str], device: str,
                                                     reason: str) -> None:
    lines = shown(capsys, device, ceiling("launch", 4e-6, "s"))
    assert lines[-1] == f"Datasheet: n/a ({reason})"
    assert lines[2].split() == ["best", "median", "95", "%", "interval"]


def test_refresh_alone_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--refresh"]) == 2
    assert capsys.readouterr() == ("", "error: --refresh measures ceilings again: add --ceilings, or leave it out\n")


def test_collectives_without_ceilings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--nproc", "2"]) == 2
    assert capsys.readouterr() == ("", "error: --nproc 2 measures collectives: add --ceilings, or leave it out\n")


def test_collectives_are_one_table_with_the_best_size_of_each(capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [collective_ceiling("all_reduce", size, 4, [time_s] * 6) for size, time_s in ((1000, 1e-3), (10**6, 0.1))]
    kept = CachedCollectives("gloo", 4, rows, {"broadcast": "gloo does not support it"})
    monkeypatch.setattr("charact.commands._shared.ceilings.read_cached", lambda path, kind: kept)
    assert cli.run(["doctor", "--ceilings", "--nproc", "4"]) == 0
    lines = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines[4] == [f"Collectives between 4 ranks (gloo), measured {kept.when}"]
    assert lines[6:9] == [
        ["all_reduce", "1,000 B", "1.00 ms", "1.00 MB/s", "1.50 MB/s (1.50–1.50)"],
        ["all_reduce", "977 KiB", "100 ms", "10.0 MB/s", "15.0 MB/s (15.0–15.0)", "best"],
        ["broadcast", "n/a (gloo does not support it)"]]
    assert cli.run(["doctor", "--ceilings", "--nproc", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collectives"]["gloo"]["best"] == [rows[1]]


def test_ceilings_are_in_the_json_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json", "--ceilings"]) == 0
    out, said = capsys.readouterr()
    assert said == ""  # the tests' cache holds them
    found = json.loads(out)
    assert {row["ceiling"] for row in found["ceilings"]["cpu"]["ceilings"]} == {"gemm", "copy", "triad", "launch"}
    check, = (check for check in found["checks"] if check["name"] == "ceilings of cpu")
    assert check["status"] == "ok"
    assert check["finding"].startswith("measured 20")
    assert cli.run(["doctor", "--json"]) == 0
    assert "ceilings" not in json.loads(capsys.readouterr().out)


def test_what_was_not_measured_yet_is_told_with_the_remedy(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.run(["doctor", "--verbose"]) == 0
    line, = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  ceilings of cpu"))
    assert line.endswith("they were not measured yet  → charact doctor --ceilings measures them")


def test_the_overview_has_a_line_for_each_group_and_what_to_fix_first(capsys: pytest.CaptureFixture[str]) -> None:
    doctor._print_overview([
        Check("Instruments", "operators", "ok", "torch.profiler"), Check("Instruments", "FLOP", "ok", "counted"),
        Check("Instruments", "kernels", "n/a", "no GPU", "buy one"),
        Check("Noise", "load now", "limited", "2.0 of 2 cores are busy", "wait until they end"),
        Check("Ceilings", "ceilings of cpu", "n/a", "they were not measured yet", "charact doctor --ceilings"),
    ])  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "Instruments  operators, FLOP; n/a: kernels",
        "Noise        limited: load now",
        "Ceilings     n/a: ceilings of cpu",
        "", "To fix first",
        "1. ceilings of cpu: they were not measured yet", "   → charact doctor --ceilings",
        "2. load now: 2.0 of 2 cores are busy", "   → wait until they end",
        "", "charact doctor --verbose: every check; reasons and remedies of 1 n/a",
    ]


def test_the_overview_of_this_machine_fits_one_screen(monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("charact.core.output.Channel.isatty", lambda self: True)
    monkeypatch.setenv("COLUMNS", "80")
    doctor._print_overview(machine_checks())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 21  # under a headline of three lines
    assert max(map(len, lines)) <= 80


def test_ceilings_that_could_not_be_kept_are_not_said_to_be_unmeasured(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    found = CachedCeilings([ceiling("launch", 4e-6, "s")])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("charact.commands._shared.ceilings.new_ceilings", lambda *_, **__: found)
    assert cli.run(["doctor", "--ceilings", "--verbose"]) == 0
    line, = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  ceilings of cpu"))
    assert f"measured {found.when}, but not saved" in line
