"""`--mode generate`: what a loop with a stopwatch and the closed form of the cache say, and bad input."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from support.forked import Server
from support.programs import only_record

from charact.analysis.profile.case_summary import case_summary, phase_times
from charact.analysis.profile.generation import generations, is_generation, token_times
from charact.datasets._common.request import DataRequest
from charact.record.reader import Run
from charact.workload.registry import find_workload

PROMPT, OUTPUTS, BATCH = 32, 12, 2
LAYERS, KV_HEADS, HEAD_WIDTH = 4, 2, 32
NETS = """
from torch import nn


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=64))


class Words(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(500, 8), nn.Linear(8, 500))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Run:
    directory = tmp_path_factory.mktemp("generate") / "place"
    directory.mkdir()
    done = server.charact("profile", "llama", "--mode", "generate", "--input-sizes", PROMPT, "--output-sizes", OUTPUTS,
                          "--batch-sizes", BATCH, "--cache", "static,growing", "--max-seconds", 3, "--counters", "none",
                          cwd=directory)
    assert done.returncode == 0, done.stderr
    return only_record(directory)


def test_memory_alone_is_no_generation(tmp_path: Path, server: Server) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    done = server.charact("memory", "llama", "--mode", "decode", "--predict", "--input-sizes", PROMPT, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert not is_generation(only_record(directory))


def test_phases_sum_to_the_wall_and_every_token_is_timed(run: Run) -> None:
    assert run.cases["mode"].tolist() == ["prefill", "prefill", "decode", "decode"]
    phases = phase_times(run).merge(run.cases[["case", "mode"]], on="case").groupby("mode")["phase"].unique()
    assert {mode: set(names) for mode, names in phases.items()} == {
        "prefill": {"data", "forward", "sample", "other"}, "decode": {"forward", "sample", "other"}}
    assert is_generation(run)
    assert generations(run)["whole"].all()
    for _, rows in token_times(run).groupby("case"):
        assert rows["context"].tolist() == list(range(PROMPT, PROMPT + OUTPUTS - 1))


def test_the_cache_has_the_bytes_of_the_closed_form(run: Run) -> None:
    held = run.table("memory").query("category == 'kv_cache'").groupby("case")["bytes"].max()
    bytes_of_a_word = 2 * LAYERS * KV_HEADS * HEAD_WIDTH * BATCH * 4
    for entry in run.entries:
        num_words = PROMPT + OUTPUTS if entry.cache == "static" else PROMPT + (
            OUTPUTS - 1 if entry.mode == "decode" else 0)
        if entry.cache == "growing" and entry.mode == "decode":  # two layers' worth while one is copied
            assert num_words <= held[entry.case] / bytes_of_a_word <= num_words * (1 + 1 / LAYERS)
        else:
            assert held[entry.case] == num_words * bytes_of_a_word


@pytest.mark.clock
def test_times_are_those_of_a_stopwatch(run: Run) -> None:
    workload: Any = find_workload("llama").prepare()
    dataset = workload.dataset(PROMPT, DataRequest(batch_size=BATCH))
    model = workload.model(dataset).eval()
    batch = torch.utils.data.default_collate([dataset[index] for index in range(BATCH)])
    if hasattr(dataset, "collate"):
        batch = dataset.collate([dataset[index] for index in range(BATCH)])
    firsts, furthers = [], []
    with torch.inference_mode():
        for _ in range(12):
            generator = workload.generator(model, OUTPUTS, "static")
            begun = time.perf_counter()
            words = generator.prefill(batch).argmax(-1)
            firsts.append(time.perf_counter() - begun)
            for _ in range(OUTPUTS - 1):
                begun = time.perf_counter()
                words = generator.decode(words).argmax(-1)
                furthers.append(time.perf_counter() - begun)
    row = generations(run).query("cache == 'static'").iloc[0]
    assert row["token_s"] == pytest.approx(median(furthers), rel=0.5)
    assert row["first_s"] == pytest.approx(median(firsts), rel=0.5)
    assert row["request_s"] == pytest.approx(row["first_s"] + (OUTPUTS - 1) * row["token_s"], rel=0.3)
    assert row["all_tokens_per_s"] == pytest.approx(BATCH * OUTPUTS / row["request_s"])


def test_flop_of_a_token_are_those_in_the_middle_of_the_outputs(run: Run) -> None:
    width, heads, inner, words = 256, 8, 688, 4096
    per_layer = 2 * (2 * width**2 + 2 * width * KV_HEADS * (width // heads) + 3 * width * inner)
    num_keys = PROMPT + round(0.5 * (OUTPUTS - 2)) + 1
    expected = BATCH * (LAYERS * (per_layer + 4 * num_keys * width) + 2 * width * words)
    summary = case_summary(run)
    assert summary.loc[summary["mode"] == "decode", "flop"].tolist() == pytest.approx([expected] * 2, rel=1e-6)


def of_own_model(command: str, model: str, *words: Any, directory: Path, server: Server) -> Any:
    """Run a command with a model of `NETS`."""
    directory.mkdir()
    (directory / "nets.py").write_text(NETS)
    return server.charact(command, "--model", f"nets:{model}", "--input-spec", "input_ids=int64[500] S",
                          "--mode", "generate", "--input-sizes", PROMPT, "--output-sizes", OUTPUTS,
                          "--batch-sizes", BATCH, *words, cwd=directory)


def test_a_model_of_transformers(tmp_path: Path, server: Server) -> None:
    pytest.importorskip("transformers")
    done = of_own_model("profile", "tiny_llama", "--cache", "growing,static,none", "--max-seconds", 3, "--counters",
                        "none", directory=tmp_path / "place", server=server)
    assert done.returncode == 0, done.stderr
    run = only_record(tmp_path / "place")
    assert [(entry.mode, entry.cache, entry.status) for entry in run.entries] == [
        (mode, cache, "ok") for mode in ("prefill", "decode") for cache in ("growing", "static", "none")]
    for entry in run.entries:
        assert {entry.passes[name].reason for name in ("timing", "operators", "memory", "flop")} == {None}
    assert generations(run)["whole"].tolist() == [True] * 3
    width, inner, vocabulary = 256, 512, 500
    per_layer = 2 * (2 * width**2 + 2 * width * KV_HEADS * HEAD_WIDTH + 3 * width * inner)
    num_words = PROMPT + round(0.5 * (OUTPUTS - 2)) + 1  # at the decoded token in the middle

    def flop(num_read: int, num_keys: int) -> int:
        return BATCH * (num_read * LAYERS * (per_layer + 4 * num_keys * width) + 2 * width * vocabulary)

    # A word reads a static cache with its empty places, prompts read their own words only.
    assert case_summary(run)["flop"].tolist() == pytest.approx([
        flop(PROMPT, PROMPT), flop(PROMPT, PROMPT), flop(PROMPT, PROMPT),
        flop(1, num_words), flop(1, PROMPT + OUTPUTS), flop(num_words, num_words)], rel=1e-6)


@pytest.mark.parametrize("mask", [(), ("--input-spec", "input_ids=int64[500] S, attention_mask=int64[1:2] S")],
                         ids=["words", "mask"])
def test_the_memory_of_a_model_of_transformers(mask: tuple[str, ...], tmp_path: Path, server: Server) -> None:
    pytest.importorskip("transformers")
    done = of_own_model("memory", "tiny_llama", "--cache", "growing,static,none", *mask, directory=tmp_path / "place",
                        server=server)
    assert done.returncode == 0, done.stderr
    run = only_record(tmp_path / "place")
    peaks = run.table("memory").query("kind == 'peak'").groupby(["case", "method"])["bytes"].sum().unstack()
    assert len(peaks) == 6
    assert peaks["predicted"].to_numpy() == pytest.approx(peaks["measured"].to_numpy(), rel=5e-3)
    held = run.table("memory").query("category == 'kv_cache'").groupby(["method", "case"])["bytes"].max()
    bytes_of_a_word = 2 * LAYERS * KV_HEADS * HEAD_WIDTH * BATCH * 4
    for entry in run.entries:
        if entry.cache == "static" or entry.mode == "prefill":
            num_words = {"static": PROMPT + OUTPUTS, "growing": PROMPT, "none": 0}[entry.cache]
            assert held.get(("predicted", entry.case), 0) == num_words * bytes_of_a_word
            assert held.get(("measured", entry.case), 0) == num_words * bytes_of_a_word


def test_a_model_without_a_cache(tmp_path: Path, server: Server) -> None:
    done = of_own_model("profile", "Words", "--max-iterations", 3, directory=tmp_path / "place", server=server)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert [line.partition(": error (")[0] for line in lines] == [
        f"Words-32+12-b2-{mode}.growing-fp32-cpu" for mode in ("prefill", "decode")]
    assert all("Words keeps nothing from one word to the next" in line and "--cache none" in line for line in lines)


@pytest.mark.parametrize(("words", "message"), [
    (["resnet18", "--mode", "generate"], "resnet18 does not generate: leave --mode generate out"),
    (["llama", "--mode", "generate", "--output-sizes", "0"], "--output-sizes"),
    (["llama", "--output-sizes", "8"], "--output-sizes is for --mode generate"),
    (["llama", "--cache", "growing"], "--cache is for --mode generate"),
    (["llama", "--mode", "generate", "--cache", "paged"], "'paged' is not one of static, growing, int8, none"),
    (["rnn_lm", "--mode", "generate", "--cache", "none"], "rnn_lm does not generate with --cache none: choose from"),
    (["--model", "torch.nn:Identity", "--input-spec", "int64[9] S", "--input-sizes", "5", "--mode", "generate",
      "--cache", "int8"], "Identity does not generate with --cache int8: choose from growing, static, none"),
    (["--model", "torch.nn:Identity", "--input-spec", "3xSxS", "--input-sizes", "5", "--mode", "generate"],
     "Identity has no words to generate from: name them in --input-spec, as in input_ids=int64[500] S"),
    (["transformer_lm", "--mode", "generate", "--input-sizes", "2040", "--output-sizes", "9"],
     "input size 2040 with output size 9 is too large for transformer_lm (takes at most 2048)"),
])
def test_bad_input_is_one_line(words: list[str], message: str, tmp_path: Path, server: Server) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    done = server.charact("profile", *words, cwd=directory)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert message in done.stderr
    assert list(directory.iterdir()) == []
