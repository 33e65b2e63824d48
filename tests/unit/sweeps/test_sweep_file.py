"""A sweep file: which cases it describes, and one line with the number of the line for every mistake."""

from pathlib import Path

import pytest

from charact.commands.sweep.known import COMMANDS, check_cases, check_possible, known_options, problem_of
from charact.commands.sweep.run import run_sweep
from charact.core.errors import UserError
from charact.studies.commands._run import with_data
from charact.studies.study import SCALES, Scale, Study, all_studies
from charact.sweeps.definition import MAX_CASES, Definition, SweepCase, read_definition
from charact.sweeps.slurm import by_node

KNOWN = known_options()


def read(tmp_path: Path, text: str | bytes) -> Definition:
    path = tmp_path / "trial.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_definition(path, KNOWN, problem_of)


def labels(tmp_path: Path, text: str) -> list[str]:
    return [case.label for case in read(tmp_path, text).cases]


def test_every_combination_but_the_excluded_ones_is_a_case(tmp_path: Path) -> None:
    found = read(tmp_path, """
command: profile
matrix:
  workload: [resnet18, vgg16]
  input-sizes: [32, 64]
options: {mode: train, channels-last: true, batch-sizes: [1, 8]}
exclude:
  - {workload: vgg16, input-sizes: 64}
include:
  - {workload: mlp}
repeats: 2
""")
    assert found.name == "trial"
    assert [case.label for case in found.cases if case.repeat == 1] == [
        f"profile {workload} batch-sizes=1,8 channels-last{size} mode=train"
        for workload, size in (("resnet18", " input-sizes=32"), ("resnet18", " input-sizes=64"),
                               ("vgg16", " input-sizes=32"), ("mlp", ""))]
    assert len({case.id for case in found.cases}) == len(found.cases) == 8
    assert found.cases[0].arguments == ["profile", "resnet18", "--batch-sizes=1,8", "--channels-last",
                                        "--input-sizes=32", "--mode=train"]


def test_parts_have_commands_of_their_own(tmp_path: Path) -> None:
    text = """
name: both
parts:
  - {command: ops, matrix: {suite: [vo]}}
  - {command: bricks run, matrix: {suite: [pictures.suite]}, options: {max-rounds: 3}}
"""
    assert labels(tmp_path, text) == ["ops suite=vo", "bricks run pictures.suite max-rounds=3"]


def test_a_case_is_what_it_does_whatever_its_place_in_the_file(tmp_path: Path) -> None:
    one = "command: infer\nmatrix: {workload: mlp, threads: 1}"
    other = "command: infer\nmatrix: {threads: 1}\noptions: {workload: mlp}"
    assert read(tmp_path, one).cases == read(tmp_path, other).cases
    assert SweepCase("infer", (("workload", "mlp"),), 1).id != SweepCase("infer", (("workload", "mlp"),), 2).id


def test_a_type_of_node_is_an_axis_with_options_of_sbatch(tmp_path: Path) -> None:
    found = read(tmp_path, """
command: infer
nodes:
  a100: {partition: gpu, gpus-per-node: 1, exclusive: true}
  any: {}
matrix: {node: [a100, any], workload: [mlp, vgg16]}
exclude: [{node: any, workload: vgg16}]
""")
    assert found.nodes == {"a100": {"partition": "gpu", "gpus_per_node": "1", "exclusive": "true"}, "any": {}}
    assert [(case.node, case.label) for case in found.cases] == [
        ("a100", "infer mlp node=a100"), ("a100", "infer vgg16 node=a100"), ("any", "infer mlp node=any")]
    assert found.cases[0].arguments == ["infer", "mlp"]
    assert found.cases[0].id != found.cases[2].id
    assert {node: len(cases) for node, cases in by_node(found.cases).items()} == {"a100": 2, "any": 1}
    with pytest.raises(UserError, match="which only Slurm has: add --launcher slurm"):
        run_sweep(found, tmp_path / "out", None, dry_run=False, retry=False, quiet=True)


def test_a_case_given_twice_runs_once(tmp_path: Path) -> None:
    text = "command: infer\nmatrix: {workload: [mlp, mlp]}\ninclude: [{workload: mlp}]"
    assert labels(tmp_path, text) == ["infer mlp"]


def test_every_command_has_its_options() -> None:
    assert list(KNOWN) == list(COMMANDS)
    assert {"workload", "input-sizes", "max-seconds"} <= set(KNOWN["profile"])
    assert "suite" in KNOWN["bricks run"]
    assert not {"out", "name", "json"} & {name for names in KNOWN.values() for name in names}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("study", all_studies().values(), ids=lambda study: study.name)
def test_the_command_line_of_every_case_of_a_study_can_be_parsed(study: Study, scale: Scale) -> None:
    found = read_definition(study.sweep_file(scale), KNOWN, problem_of)
    check_cases(found.cases)


def test_a_case_whose_command_line_cannot_be_parsed_is_refused() -> None:
    """A suite of operations is an option, not an argument; a time is a number."""
    assert SweepCase("ops", (("suite", "vo"),), 1).arguments == ["ops", "--suite=vo"]
    check_cases([SweepCase("ops", (("suite", "vo"), ("set", "dmm,smm")), 1)])
    with pytest.raises(UserError, match=r"ops max-seconds=long suite=vo: .*max-seconds.*see charact ops --help"):
        check_cases([SweepCase("ops", (("max-seconds", "long"), ("suite", "vo")), 1)])


@pytest.mark.parametrize(("text", "message"), [
    ("", "is empty: give `command` and `matrix`"),
    ("- 1", "line 1: expected `key: value`, got a list"),
    ("command: profile\nmatrix: [", "line 2: "),
    ("comand: profile", "line 1: unknown key 'comand': did you mean command?"),
    ("matrix: {workload: mlp}", "line 1: object missing required field `command`"),
    ("command: profil\n", "line 1: unknown command 'profil': did you mean profile"),
    ("command: report\n", "line 1: unknown command 'report'"),
    ("command: profile\nmatrix: {workload: mlp, inputsizes: 3}", "line 2: charact profile has no option 'inputsizes': "
                                                               "did you mean input-sizes"),
    ("command: profile\noptions: {out: here}", "line 2: out is set by the sweep: leave it out"),
    ("command: profile\nmatrix: {workload: []}", "describes no case"),
    ("command: infer\nmatrix: {workload: mlp}\nexclude: [{workload: mlp}]", "describes no case"),
    ("command: infer\nmatrix: {workload: mlp}\nexclude: {workload: mlp}", "line 3: expected a list, got `key: value`"),
    ("command: infer\nmatrix: {workload: mlp}\noptions: {workload: vgg16}", "line 3: workload is in `matrix` and in"),
    ("command: infer\ncommand: train", "line 2: command is no key, or is given twice"),
    ("command: infer\nmatrix: {workload: mlp}\nrepeats: 0", "line 3: expected `int` >= 1"),
    ("command: infer\nmatrix: {workload: mlp}\nrepeats: many", "line 3: expected `int`, got `str`"),
    ("command: infer\nmatrix: {workload: mlp, quantize: true}", "line 2: charact infer has no option 'quantize'"),
    ("command: profile\noptions: {workload: mlp, channels-last: false}", "line 2: a flag is either `true` or left out"),
    ("command: profile\noptions: {workload: ''}", "line 2: expected `str` of length >= 1"),
    ("command: profile\noptions: {workload: {a: b}}", "line 2: expected `str | array`, got `key: value`"),
    (f"command: infer\nmatrix: {{workload: mlp, threads: [{', '.join(map(str, range(101)))}], "
     f"batch-sizes: [{', '.join(map(str, range(101)))}]}}", f"cases are more than {MAX_CASES:,}"),
    ("a: " + "[" * 5000, "trial.yaml"),
    ("command: profile\nmatrix: !!python/object:os.system {}", "trial.yaml"),
    (b"command: \xff", "byte 9 is not UTF-8"),
    ("command: profile\nmatrix: {workload: [mlp, resnt18]}",
     "line 2: unknown workload 'resnt18': did you mean resnet18"),
    ("command: train\nmatrix:\n  workload: 'mlp,vg16'\n", "line 3: unknown workload 'vg16': did you mean vgg16"),
    ("command: train\noptions: {workload: mlp, data: mnst}", "line 2: unknown dataset 'mnst': did you mean mnist"),
    ("command: infer\nnodes: {a100: {}}\nmatrix: {workload: mlp, node: a10}",
     "line 3: unknown node 'a10': did you mean a100"),
    ("command: infer\nmatrix: {workload: mlp, node: a10}", "line 2: unknown node 'a10': describe it in `nodes`"),
    ("command: infer\nnodes: [a100]\nmatrix: {workload: mlp}", "line 2: expected `key: value`, got a list"),
    ("command: infer\nnodes: {a100: gpu}\nmatrix: {workload: mlp}", "line 2: expected `key: value`, got `str`"),
    ("command: ops\noptions: {suite: deepbnch}", "line 2: unknown suite 'deepbnch': did you mean deepbench"),
    (b"\0", "trial.yaml"),
    (b"#" * (2**20 + 1), "has more than 1 MiB"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=r"trial\.yaml") as raised:
        read(tmp_path, text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*nothing\.yaml"):
        read_definition(tmp_path / "nothing.yaml", KNOWN)


@pytest.mark.parametrize(("text", "message"), [
    ("command: profile\nmatrix: {workload: [resnet18, resnet50v2], variant: [cifar]}\n",
     "profile resnet50v2 variant=cifar cannot run: resnet50v2 has no variant 'cifar': choose from imagenet, or leave"),
    ("command: train\nmatrix: {workload: [vgg16], input-sizes: [8, 16, 32]}\n",
     "train vgg16 input-sizes=8, and 1 more such cases, cannot run: input size 8 is too small for vgg16"),
    ("command: infer\nmatrix: {workload: [mlp, rnn_lm]}\noptions: {channels-last: true}\n",
     "infer rnn_lm channels-last cannot run: --channels-last orders the axes of images"),
    ("command: profile\nmatrix: {workload: mlp, precision: [fp32, fp16]}\noptions: {device: cpu}\n",
     "profile mlp device=cpu precision=fp16 cannot run: fp16 is not measured on a CPU"),
    ("command: profile\nmatrix: {workload: mlp, data: [synthetic, mnist]}\n",
     "profile mlp data=mnist cannot run: mnist is read from files: name their directory with --data-dir"),
    ("command: ops\nmatrix: {problem: ['gemm:8x8x8', 'gemm:8x8']}\n", "ops problem=gemm:8x8 cannot run: "),
])  # fmt: skip
def test_a_case_that_cannot_be_is_refused_before_the_sweep_starts(tmp_path: Path, text: str, message: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError) as raised:
        run_sweep(read(tmp_path, text), out, None, dry_run=False, retry=False, quiet=True)
    assert message in str(raised.value)
    assert "exclude" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not out.exists()


def test_a_precision_of_another_machine_is_not_refused(tmp_path: Path) -> None:
    cases = read(tmp_path, "command: profile\nmatrix: {workload: mlp, precision: fp16}\n").cases
    check_possible(cases, here=False)


@pytest.mark.parametrize("study", all_studies().values(), ids=lambda study: study.name)
def test_every_case_of_a_quick_study_is_possible(study: Study) -> None:
    cases = [with_data(case, None) for case in read_definition(study.sweep_file("quick"), KNOWN).cases]
    check_possible(cases, here=True)
