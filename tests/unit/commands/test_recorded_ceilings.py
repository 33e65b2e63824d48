"""What a record says of ceilings: from the cache, measured where that is asked for, else why there are none."""

from pathlib import Path

import pytest
import torch
from support.ceilings import ceiling, made_up
from support.records import write_record

from charact.commands._shared import ceilings
from charact.commands._shared.ceilings import keep_observed, kept_ceilings, new_ceilings, recorded_ceilings
from charact.execution.interrupt import Interrupt
from charact.machine.ceilings_cache import Ceiling
from charact.measure.microbench.ceilings import Speed
from charact.record.reader import load_run

MACHINE = "0123456789ab"


class Measured:
    """Stands for measuring; tells how often that was done."""

    def __init__(self, cores_frac: float = 1.0, error: BaseException | None = None) -> None:
        self.devices: list[str] = []
        self._cores_frac, self._error = cores_frac, error

    def __call__(self, device: torch.device) -> list[Ceiling]:
        self.devices.append(str(device))
        if self._error is not None:
            raise self._error
        return [*made_up(str(device)), ceiling("gemm", 1e12, "flop_per_s", precision="fp32", device=str(device),
                                               cores_frac=self._cores_frac)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def measuring(monkeypatch: pytest.MonkeyPatch, **options: object) -> Measured:
    measured = Measured(**options)  # type: ignore[arg-type]
    monkeypatch.setattr(ceilings, "measure_ceilings", measured)
    runs_at(monkeypatch, 1e9)
    return measured


def runs_at(monkeypatch: pytest.MonkeyPatch, flop_per_s: float, cores_frac: float = 1.0) -> None:
    """Let the short check find this rate from now on."""
    monkeypatch.setattr(ceilings, "check_speed", lambda device: Speed(flop_per_s, cores_frac))


def test_they_are_measured_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measured = measuring(monkeypatch)
    with Interrupt() as interrupt:
        first = recorded_ceilings(MACHINE, ["cpu", "cpu"], interrupt, quiet=False)
        assert capsys.readouterr().err == "Measuring the ceilings of cpu, once on this machine: a few seconds\n"
        assert recorded_ceilings(MACHINE, ["cpu"], interrupt, quiet=False) == first
    assert capsys.readouterr() == ("", "")
    assert measured.devices == ["cpu"]
    assert first["ceilings_reason"] is None
    assert [row["device"] for row in first["ceilings"]] == ["cpu"] * 6


def test_other_threads_are_another_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch)
    threads = torch.get_num_threads()
    with Interrupt() as interrupt:
        recorded_ceilings(MACHINE, ["cpu"], interrupt)
        torch.set_num_threads(threads + 1)
        try:
            recorded_ceilings(MACHINE, ["cpu"], interrupt)
        finally:
            torch.set_num_threads(threads)
    assert len(measured.devices) == 2


def test_without_leave_to_measure_the_reason_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch)
    assert recorded_ceilings(MACHINE, ["cpu"]) == {
        "ceilings": [],
        "ceilings_reason": "ceilings of cpu: they were not measured yet; charact doctor --ceilings measures them"}
    assert measured.devices == []


def test_the_first_gpu_of_a_program_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch)
    new_ceilings(MACHINE, "cuda:0", quiet=True)
    found = recorded_ceilings(MACHINE, ["cuda", "cuda:0", "cpu"])
    assert {row["device"] for row in found["ceilings"]} == {"cuda:0"}
    assert found["ceilings_reason"].startswith("ceilings of cpu: ")


def test_a_failure_costs_the_ceilings_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, error=RuntimeError("CUDA out of memory\nmore"))
    with Interrupt() as interrupt:
        found = recorded_ceilings(MACHINE, ["cpu"], interrupt)
    assert found == {"ceilings": [],
                     "ceilings_reason": "ceilings of cpu: measuring them failed (RuntimeError: CUDA out of memory)"}


def test_a_signal_ends_measuring_and_is_left_for_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    class Killed(Measured):
        def __call__(self, device: torch.device) -> list[Ceiling]:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().__call__(device)

    monkeypatch.setattr(ceilings, "measure_ceilings", Killed())
    runs_at(monkeypatch, 1e9)
    with Interrupt() as interrupt:
        found = recorded_ceilings(MACHINE, ["cpu"], interrupt)
        assert interrupt.signal == signal.SIGTERM
    assert found == {"ceilings": [], "ceilings_reason": "ceilings of cpu: interrupted"}


def test_what_other_processes_disturbed_is_used_and_not_kept(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measured = measuring(monkeypatch, cores_frac=0.5)
    with Interrupt() as interrupt:
        assert len(recorded_ceilings(MACHINE, ["cpu"], interrupt)["ceilings"]) == 6
        said = capsys.readouterr().err
        recorded_ceilings(MACHINE, ["cpu"], interrupt)
    assert said.count("\n") == 1
    assert said.startswith("warning: other processes were running: the ceilings of cpu may be too low")
    assert len(measured.devices) == 2


def test_a_cache_that_cannot_be_written_costs_a_line(
        cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measuring(monkeypatch)
    (cache / "charact").touch()
    with Interrupt() as interrupt:
        assert len(recorded_ceilings(MACHINE, ["cpu"], interrupt)["ceilings"]) == 6
    said = capsys.readouterr().err
    assert said.startswith("warning: the ceilings of cpu are not saved: cannot write ")
    assert said.count("\n") == 1


def test_a_damaged_file_is_measured_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch)
    with Interrupt() as interrupt:
        first = recorded_ceilings(MACHINE, ["cpu"], interrupt)
        file, = (cache / "charact" / "ceilings").iterdir()
        file.write_bytes(file.read_bytes()[:100])
        assert "is damaged" in recorded_ceilings(MACHINE, ["cpu"])["ceilings_reason"]
        assert recorded_ceilings(MACHINE, ["cpu"], interrupt) == first
    assert len(measured.devices) == 2
    assert kept_ceilings(MACHINE, "cpu").ceilings == first["ceilings"]


@pytest.mark.parametrize(("now_flop_per_s", "cores_frac", "times"), [
    (1.1e9, 1.0, 1), (0.8e9, 1.0, 1),
    (1.9e9, 1.0, 2),  # the ceilings were measured in a slow minute
    (0.5e9, 1.0, 2),  # a lower clock
    (0.5e9, 0.4, 1),  # other programs hold the cores: not the machine's speed
])
def test_they_are_measured_again_where_the_machines_speed_has_changed(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], now_flop_per_s: float, cores_frac: float,
        times: int) -> None:
    measured = measuring(monkeypatch)
    with Interrupt() as interrupt:
        recorded_ceilings(MACHINE, ["cpu"], interrupt)
        runs_at(monkeypatch, now_flop_per_s, cores_frac)
        assert recorded_ceilings(MACHINE, ["cpu"])["ceilings_reason"] is None
        assert len(measured.devices) == 1
        for _ in range(2):
            assert recorded_ceilings(MACHINE, ["cpu"], interrupt, quiet=False)["ceilings_reason"] is None
    assert len(measured.devices) == times
    assert ("times the rate of" in capsys.readouterr().err) == (times > 1)


def test_what_a_run_reached_is_the_ceiling_of_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = load_run(write_record(tmp_path / "runs"))
    machine = run.manifest["machine"]["fingerprint"] = MACHINE
    rows = run.operators.query("flop > 0").groupby(["case", "operator_type", "layer", "phase"])
    rates = rows["flop"].sum() / rows["self_host_s"].sum()
    reached, (_, operator_type, layer, _) = float(rates.max()), rates.idxmax()
    run.manifest["ceilings"] = [ceiling("gemm", reached / 2, "flop_per_s", precision="fp32")]
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda _: run.manifest["ceilings"])
    runs_at(monkeypatch, 1e9)
    new_ceilings(machine, "cpu", quiet=True)
    keep_observed(run)
    row, = kept_ceilings(machine, "cpu").ceilings
    assert row["value"] == pytest.approx(reached)
    assert row["origin"].startswith(f"{operator_type} {layer} in resnet50-")
