"""The terminal's summary of a run that looks at memory alone, and the words that all views share."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support import memory_records as made
from support import records
from support.terminal import shown

from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter
from charact.views.export.run_summary import run_summary
from charact.views.html.report import sections
from charact.views.tables import memory_text as words

RAN_OUT = "resnet18-384-b8-train-fp32-cpu"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_memory(tmp_path_factory.mktemp("runs"))


def run_of(tmp_path: Path, *cases: tuple[dict[str, Any], list[dict[str, Any]]]) -> Path:
    writer = RunWriter(tmp_path, "r", {"options": {"command": "memory"}})
    for entry, rows in cases:
        writer.add_case(typed_entry(entry), {"memory": rows})
    return writer.close("complete")


def cells(text: str, *starts: str) -> list[str]:
    """What follows in the first line whose words begin so."""
    line = next(line.split() for line in text.splitlines() if line.split()[: len(starts)] == list(starts))
    return line[len(starts) :]


def test_a_table_a_series(path: Path) -> None:
    text = shown(path)
    assert "resnet18 (imagenet), train, fp32, cpu ──" in text
    assert cells(text, "256", "8") == ["433", "MiB", "430", "MiB", "8.61", "MiB", "−0.59", "%", "×", "3.49"]
    assert cells(text, "320", "8") == ["–", "601", "MiB", "12.0", "MiB", "–", "×", "3.67"]
    assert cells(text, "384", "8") == ["n/a", "(oom)", "810", "MiB", "16.2", "MiB", "–", "×", "3.74"]
    assert "– was not measured, only predicted" in text
    assert "FLOP/s" not in text


def test_a_case_that_fits_a_named_memory_says_what_is_left(tmp_path: Path) -> None:
    def lines(**options: Any) -> list[str]:
        writer = RunWriter(tmp_path, "r", {"options": {"command": "memory", **options}})
        for batch_size, needed_bytes, fits in ((8, 2**20, True), (16, 3 * 2**20, False)):
            entry = records.case_entry("resnet18", 32, "train") | {"case": f"b{batch_size}", "batch_size": batch_size}
            estimate = {"status": "ok", "reason": None, "device": "tiny", "device_memory_bytes": 2 * 2**20,
                        "needed_bytes": needed_bytes, "fits": fits}
            writer.add_case(typed_entry(entry | {"passes": {"prediction": estimate}}), {"memory": []})
        text = shown(writer.close("complete"), width=200)
        return [line.strip() for line in text.splitlines() if "fits the" in line]

    assert lines(device_memory_bytes=2 * 2**20) == [
        "b8  fits the 2.00 MiB of tiny: it needs 1.00 MiB, 1.00 MiB are left"]
    assert lines(device_like="tiny") != []
    assert lines() == lines(device_memory_bytes=2 * 2**20, fit="batch_size") == []


def test_growth_the_peak_fits_and_failures_in_words(path: Path) -> None:
    text = " ".join(shown(path, width=250).split())
    for expected in (
        "batch 8, measured: 612 B a pixel of each sample, 4.78 KiB for all 8 (± 0 B); fixed 127 MiB (± 0 B)",
        "resnet18-256-b8-train-fp32-cpu peaks (433 MiB, measured) in backward, layer1.0.conv1, "
        "aten::convolution_backward",
        "A activations 250 MiB 57.8 %",
        "batch 9 is the largest that fits the 648 MiB of tiny at input size 32 (ran): it needs 610 MiB, 38.1 MiB are "
        "left; 10 would need 668 MiB, 19.1 MiB too much (ran out of memory)",
        "at least input size 700 fits the 648 MiB of tiny at batch 8: it needs 610 MiB, 38.1 MiB are left; "
        "the search ended there: its 256 samples",
        f"{RAN_OUT} oom: asked for 114 MiB with 97.3 MiB free of 648 MiB, in forward; held 551 MiB: "
        "activations 467 MiB, weights 42.0 MiB, optimizer state 42.0 MiB; batch 6 or input size 320 would fit, "
        "by estimate",
        "resnet18-352-b8-train-fp32-cpu does not fit: predicted to need 749 MB of the 680 MB of tiny",
    ):
        assert expected in text
    assert (text.count("oom: "), text.count("does not fit: ")) == (1, 1)


def test_a_peak_outside_of_its_estimate_is_a_failure_to_report(path: Path) -> None:
    text = " ".join(shown(path, width=250).split())
    assert ("resnet18-256-b8-infer-fp32-cpu outside of the estimated interval by 1.40 MiB: please report "
            "resnet18-192-b8-infer-fp32-cpu outside of the estimated interval by 441 KiB: please report") in text
    assert text.count("all 4 measured peaks are within the estimated interval") == 2  # of trainings
    assert "rnn_lm-10-b20-infer-fp32-cpu outside" not in text


@pytest.mark.slow
def test_long_sweeps_are_thinned_out_and_keep_the_largest(tmp_path: Path) -> None:
    cases = [
        (made.memory_entry("image", "infer", size, measured=False),
         made.memory_rows("image", "infer", size, measured=False))
        for size in range(32, 32 + 30 * 4, 4)
    ]  # fmt: skip
    text = shown(run_of(tmp_path, *cases))
    assert "10 of 30 cases; the report has all" in text
    assert cells(text, "148", "8")[:2] == ["68.7", "MiB"]
    assert "Measured" not in text


def test_a_run_that_only_measured_shows_no_prediction(tmp_path: Path) -> None:
    entry = made.memory_entry("image", "train", 64, measured=True)
    del entry["passes"]["prediction"]
    rows = [row for row in made.memory_rows("image", "train", 64, measured=True) if row["method"] == "measured"]
    text = shown(run_of(tmp_path, (entry, rows)))
    assert cells(text, "64", "8") == ["146", "MiB"]
    assert "Predicted" not in text
    assert "n/a (one input size only)" in text


def test_cases_that_failed_say_why(tmp_path: Path) -> None:
    entry = records.case_entry("r", 32, "train", status="error", reason="model [broke]")
    entry["passes"] = {name: {"status": "skipped", "reason": "model [broke]"} for name in ("memory", "prediction")}
    text = shown(run_of(tmp_path, (entry, [])))
    assert text.strip().endswith("r-32-b8-train-fp32-cpu  error: model [broke]")


def test_names_are_no_markup(tmp_path: Path) -> None:
    entry, rows = (make("image", "train", 64, measured=True) for make in (made.memory_entry, made.memory_rows))
    for row in rows:
        row["layer"] = "[red]layer"
    text = shown(run_of(tmp_path, (entry | {"workload": "[red]net", "case": "[red]case"}, rows)), width=200)
    for name in ("[red]net (imagenet)", "[red]case peaks", "backward, [red]layer"):
        assert name in text


def test_words_of_a_search_that_found_nothing() -> None:
    row = SimpleNamespace(searched="batch_size", input_size=224, limit_bytes=1e9, target="tiny", value=None,
                          settings="", ranks="")
    assert words.fit(row) == "no batch fits the 954 MiB of tiny at input size 224"


def test_memory_that_a_gpu_needs_is_shown_with_its_parts() -> None:
    row = SimpleNamespace(target="tiny", limit_bytes=80 * 2**30, needed_bytes=52 * 2**30, allocated_bytes=44 * 2**30,
                          context_bytes=2**30, margin_bytes=28 * 2**30)
    assert words.room(row) == ("fits the 80.0 GiB of tiny: it needs 52.0 GiB (44.0 GiB allocated, 7.00 GiB reserved in "
                               "addition, 1.00 GiB CUDA context), 28.0 GiB are left")


def ran_out(**told: Any) -> SimpleNamespace:
    """A row of `out_of_memory` that tells this alone."""
    names = ("reason", "phase", "composition_source", "fits_reason", "requested_bytes", "free_bytes", "limit_bytes",
             "fits_batch_size", "fits_input_size")  # fmt: skip
    return SimpleNamespace(**{**dict.fromkeys(names), "held_bytes": 0.0, **told})


@pytest.mark.parametrize(("told", "expected"), [
    ({"requested_bytes": 1e9, "phase": "backward", "fits_reason": "the limit is not known"},
     "asked for 954 MiB, in backward; what would fit n/a (the limit is not known)"),
    ({"reason": "predicted to need 1.86 GiB", "composition_source": "predicted", "held_bytes": 2e9, "phase": "loss"},
     "predicted to need 1.86 GiB; the estimated peak is 1.86 GiB: weights 1.86 GiB; no smaller batch or input would "
     "fit, by estimate"),
])  # fmt: skip
def test_words_of_failures_that_tell_less(told: dict[str, Any], expected: str) -> None:
    assert words.ran_out(ran_out(**told), pd.DataFrame({"category": ["weights"], "bytes": [2e9]})) == expected


def test_the_command_that_searches_what_fits_is_shown_once(tmp_path: Path) -> None:
    cases = []
    for size in (352, 384):
        entry = made.memory_entry("image", "train", size, measured=False)
        entry["out_of_memory"] = {"limit_bytes": made.LIMIT_BYTES, "fits": {"batch_size": None, "input_size": None},
                                  "fits_reason": "not searched: charact memory resnet18 --fit"}
        cases.append((entry, made.memory_rows("image", "train", size, measured=False)))
    path = run_of(tmp_path, *cases)
    text = " ".join(shown(path, width=250).split())
    assert text.count("The largest that fits was not searched. To search it: charact memory resnet18 --fit") == 1
    assert "no smaller batch" not in text
    summary = run_summary(load_run(path))["cases"][0]["out_of_memory"]
    assert summary["fits_batch_size"] is None
    assert summary["fits_reason"] == "not searched: charact memory resnet18 --fit"
    page = "".join(part.html for part in sections(load_run(path)))
    assert page.count("was not searched. To search it: ") == 1


def test_two_sizes_have_a_step(tmp_path: Path) -> None:
    cases = [(made.memory_entry("image", "train", size, measured=False),
              made.memory_rows("image", "train", size, measured=False)) for size in (32, 64)]  # fmt: skip
    text = " ".join(shown(run_of(tmp_path, *cases), width=200).split())
    assert ("two input sizes do not show a line: +14.2 MiB from 32 to 64 px (activations, backward, layer1.0.conv1, "
            "aten::convolution_backward)") in text


def test_growth_in_steps_names_the_largest_and_counts_the_others(tmp_path: Path) -> None:
    cases = []
    for size, off in ((32, 0), (64, 0), (96, 9e7), (128, 9e7), (160, 0), (192, 0)):
        rows = made.memory_rows("image", "train", size, measured=False)
        for row in rows:
            row["bytes"] += off if row["category"] == "temporary" and row["origin"] == "tensors" else 0
        cases.append((made.memory_entry("image", "train", size, measured=False), rows))
    path = run_of(tmp_path, *cases)
    text = " ".join(shown(path, width=300).split())
    assert "growth with the input size batch 8, predicted: no line: +" in text
    assert "from 64 to 96 px (temporary, backward, layer1.0.conv1, aten::convolution_backward); " in text
    assert re.search(r"−4\d.\d MiB from 128 to 160 px \(temporary, backward, layer1.0.conv1, ", text)
    assert "; 2 other steps of +" in text
    assert " a pixel" not in text
    (case,) = [case for case in run_summary(load_run(path))["cases"] if case["input_size"] == 160]
    (step,) = case["step"]
    assert (step["from_size"], step["category"]) == (128, "temporary")
    assert step["text"] in text
    assert case["growth"][0]["text"] in text
    assert case["growth"][0]["slope_bytes"] is None


def test_a_share_has_its_sign() -> None:
    assert words.share_of(-0.0059) == "−0.59 %"
    assert words.share_of(0.021) == "+2.10 %"
    assert words.share_of(-1e-9) == "0.00 %"
    assert words.share_of(None, "not measured") == "n/a (not measured)"
