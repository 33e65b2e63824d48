"""Unchanged programs that generate, under `charact run`: times to the first token and per token are the true ones."""

import importlib.util
import json
from pathlib import Path
from statistics import median

import pytest
from support.forked import Server
from support.programs import only_record

from charact.analysis.findings import findings
from charact.analysis.profile.case_summary import phase_times
from charact.analysis.profile.generation import generations, is_generation, token_times
from charact.record.reader import Run
from charact.views.answer import answer

pytestmark = pytest.mark.clock

SCRIPT = Path(__file__).parents[1] / "scripts" / "generating.py"
TOLERANCE_FRAC = 0.1
NUM_REQUESTS, NUM_STEPS, PROMPT, OUTPUTS = 6, 4, 40, 10
PROMPT_S, SAMPLE_S = 0.02, 0.002


def watched(server: Server, directory: Path, kind: str) -> Run:
    (directory / "place").mkdir()
    done = server.charact("run", "--skip", 0, "--passes", "timing", SCRIPT, kind, cwd=directory / "place",
                          TRUTH=str(directory / "truth.json"))
    assert done.returncode == 0, done.stderr
    return only_record(directory / "place")


def check_times(run: Run, directory: Path) -> None:
    assert [entry.case for entry in run.entries] == ["generating-decode", "generating-prefill"]
    check_generations(run, directory)
    assert set(phase_times(run)["phase"]) == {"forward", "other"}
    rows = run.program_iterations
    assert (rows["forward_s"] + rows["other_s"] - rows["wall_s"]).abs().max() < 1e-6
    assert answer(run).sentence.startswith("The first token takes")


def check_generations(run: Run, directory: Path) -> None:
    truth = json.loads((directory / "truth.json").read_text())
    row = generations(run).iloc[0]
    assert (row["num_prompts"], row["num_tokens"]) == (NUM_REQUESTS, NUM_REQUESTS * (OUTPUTS - 1))
    assert (row["output_size"], row["batch_size"]) == (OUTPUTS, 2)
    assert row["first_s"] == pytest.approx(median(truth["first_s"]), rel=TOLERANCE_FRAC)
    assert row["token_s"] == pytest.approx(median(truth["token_s"]), rel=TOLERANCE_FRAC)
    assert token_times(run)["context"].tolist() == [row["input_size"] + number for number in range(OUTPUTS - 1)]


@pytest.mark.parametrize("kind", ["cached", "recomputing"])
def test_a_loop_in_plain_torch(tmp_path: Path, server: Server, kind: str) -> None:
    run = watched(server, tmp_path, kind)
    check_times(run, tmp_path)
    row = generations(run).iloc[0]
    assert (row["input_size"], row["cache"]) == (PROMPT, "as written" if kind == "cached" else "none")
    rows = run.program_iterations
    last = rows[rows["context"] == PROMPT + OUTPUTS - 1]
    assert len(last) == NUM_REQUESTS
    assert last["wall_s"].median() < 0.03  # without the time to show the answer, which follows it
    named = findings(run).query("finding == 'repeated_inputs'")
    assert len(named) == (kind == "recomputing")


def test_a_decoder_with_an_encoder_in_plain_torch(tmp_path: Path, server: Server) -> None:
    run = watched(server, tmp_path, "translating")
    check_times(run, tmp_path)
    row = generations(run).iloc[0]
    assert (row["input_size"], row["cache"]) == (PROMPT, "as written")


def test_a_training_that_generates_after_each_epoch(tmp_path: Path, server: Server) -> None:
    run = watched(server, tmp_path, "training")
    assert [(entry.case, entry.passes.timing.num_iterations) for entry in run.entries] == [
        ("generating-train", NUM_REQUESTS * NUM_STEPS), ("generating-decode", NUM_REQUESTS * (OUTPUTS - 1)),
        ("generating-prefill", NUM_REQUESTS)]
    check_generations(run, tmp_path)
    sentence = answer(run).sentence
    assert sentence.startswith("generating-train takes")
    assert "; The first token takes" in sentence
    assert sentence.count("No cause") <= 1


def test_a_forward_that_is_called_by_itself(tmp_path: Path, server: Server) -> None:
    check_times(watched(server, tmp_path, "by_forward"), tmp_path)


def test_a_single_request_by_a_forward_that_is_called_by_itself(tmp_path: Path, server: Server) -> None:
    row = generations(watched(server, tmp_path, "once")).iloc[0]
    assert (row["num_prompts"], row["num_tokens"], row["input_size"]) == (1, OUTPUTS - 1, PROMPT)
    truth = json.loads((tmp_path / "truth.json").read_text())
    # The search for the method is in the script's own time only.
    assert PROMPT_S + SAMPLE_S < row["first_s"] <= truth["first_s"][0]
    assert row["token_s"] == pytest.approx(median(truth["token_s"]), rel=TOLERANCE_FRAC)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_generate_of_transformers_with_an_encoder(tmp_path: Path, server: Server, kind: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'charact[transformers]'")
    run = watched(server, tmp_path, kind)
    check_times(run, tmp_path)
    assert generations(run).iloc[0]["input_size"] == 8 * PROMPT


def test_requests_of_an_encoder_are_counted_before_beams(tmp_path: Path, server: Server) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'charact[transformers]'")
    row = generations(watched(server, tmp_path, "t5-beams")).iloc[0]
    assert (row["num_prompts"], row["num_tokens"]) == (NUM_REQUESTS, NUM_REQUESTS * (OUTPUTS - 1))
    assert (row["input_size"], row["output_size"], row["batch_size"]) == (8 * PROMPT, OUTPUTS, 2)


def test_generate_of_transformers(tmp_path: Path, server: Server) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install 'charact[transformers]'")
    run = watched(server, tmp_path, "transformers")
    check_times(run, tmp_path)
    assert generations(run).iloc[0]["input_size"] == 8 * PROMPT


def test_a_classifier_of_texts_does_not_generate(tmp_path: Path, server: Server) -> None:
    run = watched(server, tmp_path, "classifying")
    assert not is_generation(run)
    assert [(entry.case, entry.passes.timing.num_iterations) for entry in run.entries] == [("generating-infer", 60)]
