"""Options that commands share: what each parser refuses, in one line, and what it reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from charact.commands._shared.options import (
    check_data,
    check_name,
    check_own_options,
    parse_choices,
    parse_list,
    parse_lora,
    parse_ranks,
    parse_sizes,
)
from charact.core.errors import UserError
from charact.measure.counters import chosen_sources


def own(*workloads: str, **given: Any) -> None:
    """Check options of the user's model, and of workloads, by their names without dashes."""
    options = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    mine = ("--model", "--model-args", "--input-spec", "--loss", "--optimizer", "--learning-rate")
    check_own_options({name: options.get(name) for name in mine},
                      {"WORKLOADS": workloads, **{name: options[name] for name in options if name not in mine}})


@pytest.mark.parametrize(("parse", "words"), [
    (lambda: parse_sizes("0", "--sizes"), "--sizes: 0 is not positive"),
    (lambda: parse_sizes("-32", "--sizes"), "--sizes: -32 is not positive"),
    (lambda: parse_sizes("1e3", "--sizes"), "--sizes: '1e3' is not a whole number (as in 32,224 or 32:224:32)"),
    (lambda: parse_sizes("9" * 30, "--sizes"), f"--sizes: {'9' * 30} is too large (at most 1,000,000,000)"),
    (lambda: parse_sizes("9" * 2000, "--sizes"), f"--sizes: '{'9' * 2000}' is not a whole number"),
    (lambda: parse_sizes("", "--sizes"), "--sizes is empty: give at least one value"),
    (lambda: parse_sizes("32,,64", "--sizes"), "--sizes '32,,64' has an empty item between commas: remove it"),
    (lambda: parse_sizes("32:224", "--sizes"), "--sizes: '32:224' is not a range; write start:end:step"),
    (lambda: parse_sizes("224:32:32", "--sizes"), "--sizes: range 224:32:32 ends before it starts"),
    (lambda: parse_sizes("1:10001:1", "--sizes"), "--sizes: range 1:10001:1 has over 10000 values"),
    (lambda: parse_list(",", "--names"), "--names is empty: give at least one value"),
    (lambda: parse_choices("a,c", "--names", ["a", "b"]), "--names: 'c' is not one of a, b"),
    (lambda: check_data("synthetic", Path(), None), "--data-dir is for real data: select it with --data"),
    (lambda: check_data("mnist", None, "classes=5"), "--synthetic is for synthetic data, not for mnist"),
    (lambda: check_name(" "), "--name is empty: give the run a name"),
    (lambda: chosen_sources(["hots"]), "--counters: 'hots' is not one of auto, none, "),
    (lambda: chosen_sources(["host", "none"]), "--counters: none cannot be combined with other sources"),
    (lambda: parse_ranks("fsdp2", None), "--parallel fsdp2 needs the number of ranks: add --nproc 8"),
    (lambda: parse_ranks(None, "2"), "--nproc 2 needs --parallel: add --parallel ddp or --parallel fsdp2"),
    (lambda: parse_ranks("fsdp", "2"), "--parallel: 'fsdp' is unknown: did you mean fsdp2"),
    (lambda: parse_ranks("tensor", "2"), "--parallel: 'tensor' is unknown: use ddp or fsdp2"),
    (lambda: parse_ranks("ddp", "2,1"), "--nproc 1 is a single process: leave --parallel and --nproc out"),
    (lambda: parse_ranks("ddp", "0"), "--nproc: 0 is not positive"),
    (lambda: parse_lora("0", ["train"], None), "--lora: 0 is not positive"),
    (lambda: parse_lora("8", ["infer", "decode"], None), "--lora is for training: add train to --mode"),
    (lambda: parse_lora("8", ["train"], "ddp"), "--lora and --parallel exclude each other"),
    (lambda: parse_ranks("ddp", "65537"), "--nproc 65537 is more than 65,536 ranks: give fewer"),
    (own, "give a workload, as in charact profile resnet50, or your own model with --model"),
    (lambda: own(learning_rate=0.0), "--learning-rate is for your own model: add --model"),
    (lambda: own("resnet18", input_spec="3xSxS"), "--input-spec is for your own model: add --model"),
    (lambda: own("resnet18", model="nets:Net"), "--model replaces workloads: measure workloads in a separate run"),
    (lambda: own(model="nets:Net"), "--model needs its inputs: add --input-spec, as in --input-spec 3xSxS"),
    (lambda: own(model="nets:Net", input_spec="S", variant="cifar"), "--variant is for the built-in workloads"),
])
def test_what_cannot_be_is_refused_in_one_line(parse: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse()
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_lists_and_ranges_are_read_in_order_without_duplicates() -> None:
    assert parse_sizes("64, 32,32:96:32", "--sizes") == [64, 32, 96]
    assert parse_sizes("1:10000:1", "--sizes") == list(range(1, 10_001))
    assert parse_list("b, a,b", "--names") == ["b", "a"]
    assert parse_ranks("fsdp2,ddp", "4,1,2", with_one=True) == [
        (None, 1), ("fsdp2", 4), ("fsdp2", 2), ("ddp", 4), ("ddp", 2)]


def test_options_that_agree_are_taken() -> None:
    own("resnet18", variant="cifar")
    assert parse_lora("16,4", ["train", "infer"], None) == [16, 4]
    assert parse_lora(None, ["infer"], "ddp") == [0]
    own(model="nets:Net", input_spec="S", learning_rate=0.1)
    check_data("mnist", Path(), None)
    check_data("synthetic", None, "classes=5")
    check_name(None)
    assert [source.name for source in chosen_sources(["host"])] == ["host"]
