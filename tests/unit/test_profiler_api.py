"""The Python API: what is found and what is told, whatever way the block is left, and the run that it writes."""

import os
import subprocess
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import charact
from charact import profiler as api
from charact.core.errors import UserError
from charact.measure.script.spans.event_log_reader import read_event_log
from charact.measure.script.spans.event_log_to_record import script_cases

Cases = dict[str, dict[str, Any]]

pytestmark = pytest.mark.clock


class Clock:
    """The truth: seconds of each part, once an iteration, by the test's own clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, phase: str, sleep_s: float = 0.0) -> Iterator[None]:
        start_s = time.perf_counter()
        time.sleep(sleep_s)
        yield
        self.seconds[phase].append(time.perf_counter() - start_s)


class Sleepy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.01)
        return self.linear(x)


class SleepySGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(0.006)
        return super().step(closure)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Any, Callable[[], Cases]]]:
    """A Profiler whose record is not published, and a function that gives its cases: mode, phases and iterations."""
    def make(**options: Any) -> tuple[charact.Profiler, Callable[[], Cases]]:
        profiler = charact.Profiler("test", tmp_path, skip=0, **options)
        return profiler, lambda: _cases(profiler)

    monkeypatch.setattr(api.Profiler, "_recover", lambda self, begun: None)
    return make


def _cases(profiler: charact.Profiler) -> Cases:
    assert profiler._begun is not None
    found = {}
    for entry, tables in script_cases(read_event_log(profiler._begun.directory), "test", "here", 0, None):
        phases: dict[str, list[float]] = defaultdict(list)
        for row in tables["iterations"]:
            phases[row["phase"]].append(row["host_s"])
        found[entry.mode] = {
            "phases": phases, "entry": entry, "num_iterations": entry.passes.timing.num_iterations}
    return found


def close(found: dict[str, list[float]], truth: dict[str, list[float]], *absent: str) -> bool:
    """Whether phases are, but for 3 % or 2 ms, as they were in the nearest iteration, and whether others are absent.

    Something else may run between two clocks that are read in turn, in most iterations even.
    """
    pairs = {phase: zip(found[phase], seconds, strict=True) for phase, seconds in truth.items()}
    return all(
        min(abs(one - other) - max(0.03 * other, 0.002) for one, other in both) <= 0 for both in pairs.values()
    ) and all(min(found[phase] or [0.0]) <= 0.002 for phase in absent)


class TestFound:
    def test_phases_are_those_of_the_clock_for_what_was_made_before_the_block(self, measured: Any) -> None:
        clock, model = Clock(), Sleepy()
        optimizer = SleepySGD(model.parameters(), lr=0.1)
        # A scheduler keeps hold of the optimizer's step as it was.
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        profiler, cases = measured()
        with profiler:
            for x, y in DataLoader(TensorDataset(torch.ones(12, 4), torch.ones(12, dtype=torch.long)), batch_size=2):
                with clock("forward"):
                    outputs = model(x)
                with clock("loss", 0.004):
                    loss = functional.cross_entropy(outputs, y)
                loss.backward()
                with clock("update"):
                    optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        case = cases()["train"]
        assert case["num_iterations"] == 6
        assert case["entry"].batch_size == 2
        assert close(case["phases"], clock.seconds)

    def test_a_scheduler_that_is_made_in_one_block_does_not_hide_the_steps_of_the_next(self, measured: Any) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in (3, 5):
            profiler, cases = measured()
            with profiler:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                for _ in range(number):
                    model(torch.ones(2, 4)).sum().backward()
                    optimizer.step()
                    scheduler.step()
            assert cases()["train"]["num_iterations"] == number

    def test_a_closure_s_own_time_is_not_the_update_s(self, measured: Any) -> None:
        clock, model = Clock(), Sleepy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> Tensor:
            with clock("other"):
                time.sleep(0.01)
            with clock("forward"):
                outputs = model(torch.ones(2, 4))
            with clock("loss", 0.02):
                loss = outputs.square().mean()
            loss.backward()
            return loss

        profiler, cases = measured()
        with profiler:
            for _ in range(4):
                optimizer.zero_grad()
                optimizer.step(closure)
        case = cases()["train"]
        assert case["num_iterations"] == 4
        assert close(case["phases"], clock.seconds, "update")

    def test_a_compiled_model_is_not_compiled_again(self, measured: Any) -> None:
        from torch._dynamo.testing import CompileCounter

        counter = CompileCounter()
        model = nn.Linear(4, 3)
        compiled = torch.compile(model, backend=counter)
        compiled(torch.ones(2, 4))
        assert counter.frame_count == 1
        profiler, cases = measured()
        with profiler, torch.no_grad():
            for _ in profiler.iterate(range(3)):
                compiled(torch.ones(2, 4))
        without = CompileCounter()
        again = torch.compile(model, backend=without)
        for _ in range(2):
            again(torch.ones(2, 4))
        with torch.no_grad():
            again(torch.ones(2, 4))
        assert counter.frame_count == without.frame_count
        assert cases()["infer"]["num_iterations"] == 3


class TestTold:
    def test_each_batch_is_an_iteration_where_nothing_else_tells(self, measured: Any) -> None:
        clock = Clock()
        profiler, cases = measured()

        def batches() -> Iterator[int]:
            for number in range(5):
                with clock("data", 0.01):
                    pass
                yield number

        with profiler:
            for _ in profiler.iterate(batches()):
                with clock("other", 0.005):
                    pass
        case = cases()["infer"]
        assert case["num_iterations"] == 5
        assert close(case["phases"], clock.seconds)

    def test_steps_of_an_optimizer_tell_more_than_batches(self, measured: Any) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        profiler, cases = measured()
        with profiler:
            for number, x in enumerate(profiler.iterate(torch.ones(8, 2, 4))):
                model(x).sum().backward()
                if number % 2:
                    optimizer.step()
        assert cases()["train"]["num_iterations"] == 4

    def test_what_is_said_wins_over_what_is_found(self, measured: Any) -> None:
        clock, model = Clock(), Sleepy()
        optimizer = SleepySGD(model.parameters(), lr=0.1)
        profiler, cases = measured()
        with profiler:
            for _ in range(4):
                with profiler.phase("data"), clock("data", 0.004):
                    x = torch.ones(2, 4)
                with profiler.phase("loss"):
                    with profiler.phase("communication"), clock("communication", 0.008):
                        pass
                    with clock("loss", 0.002):
                        model(x).sum().backward()
                with profiler.phase("forward"), clock("forward"):
                    optimizer.step()
        case = cases()["train"]
        assert case["num_iterations"] == 4
        assert close(case["phases"], clock.seconds, "update", "backward")

    def test_a_phase_inside_of_a_model_is_not_its_forward_s(self, measured: Any) -> None:
        clock = Clock()
        profiler, cases = measured()

        class Model(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                with profiler.phase("other"), clock("other", 0.02):
                    return x + 1

        with profiler:
            for x in profiler.iterate(torch.ones(4, 2)):
                Model()(x)
        case = cases()["infer"]
        assert close(case["phases"], clock.seconds, "forward")

    def test_a_step_by_hand_is_all_that_ends_an_iteration(self, measured: Any) -> None:
        model = Sleepy()
        critic = torch.optim.SGD(model.parameters(), lr=0.1)
        profiler, cases = measured()
        with profiler:
            for _ in range(4):
                for _ in range(3):
                    model(torch.ones(2, 4)).sum().backward()
                    critic.step()
                profiler.step()
                with torch.no_grad():
                    for x in profiler.iterate(torch.ones(2, 2, 4)):
                        model(x)
        found = cases()
        assert found["train"]["num_iterations"] == 4
        assert found["infer"]["num_iterations"] == 8

    def test_steps_by_hand_measure_what_torch_has_no_part_in(self, measured: Any) -> None:
        clock = Clock()
        profiler, cases = measured()
        with profiler:
            profiler.step()
            for _ in range(4):
                with clock("other", 0.01):
                    pass
                profiler.step()
        case = cases()["infer"]
        assert case["num_iterations"] == 4
        assert close(case["phases"], clock.seconds)

    def test_a_training_without_torch_is_one_when_its_phases_are_named(self, measured: Any) -> None:
        clock = Clock()
        profiler, cases = measured()
        with profiler:
            for _ in range(5):
                for phase in ("data", "forward", "loss", "backward", "update"):
                    with profiler.phase(phase), clock(phase, 0.003):
                        pass
        case = cases()["train"]
        assert case["num_iterations"] == 5
        assert close(case["phases"], clock.seconds)

    def test_a_validation_whose_forward_is_named_is_one(self, measured: Any) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        profiler, cases = measured()
        with profiler:
            for _ in range(3):
                for x in profiler.iterate(torch.ones(4, 2, 4)):
                    with profiler.phase("forward"):
                        outputs = model(x)
                    outputs.sum().backward()
                    optimizer.step()
                for x in profiler.iterate(torch.ones(2, 2, 4)):
                    with profiler.phase("forward"), torch.no_grad():
                        model(x)
        found = cases()
        assert {mode: case["num_iterations"] for mode, case in found.items()} == {"train": 12, "infer": 6}
        assert found["train"]["entry"].num_parameters == 15


class TestTheBlock:
    def test_everything_is_put_back_and_an_exception_propagates(self, measured: Any) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        places = [(torch.nn.Module, "__call__"), (torch.autograd, "backward"), (torch.optim.SGD, "step"),
                  (optimizer, "step"), (torch.Tensor, "to"), (DataLoader, "__iter__"), (torch, "compile")]
        before = [vars(place).get(name) for place, name in places]
        profiler, cases = measured()

        def fail() -> None:
            with profiler:
                for x in profiler.iterate(torch.ones(3, 2, 4)):
                    model(x)
                assert vars(torch.nn.Module)["__call__"] is not before[0]
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            fail()
        assert [vars(place).get(name) for place, name in places] == before
        assert cases()["infer"]["num_iterations"] == 3
        assert read_event_log(profiler._begun.directory).ending == "ZeroDivisionError: mine"

    def test_what_the_program_replaced_meanwhile_stays(self, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "compile", torch.compile)  # puts it back after the test

        def mine() -> None:
            pass

        profiler, _ = measured()
        with profiler:
            torch.compile = mine
        assert torch.compile is mine

    def test_one_watches_at_a_time_and_once(self, measured: Any) -> None:
        first, second = measured()[0], measured()[0]
        with first, pytest.raises(UserError, match="profiled already"), second:
            pass
        with pytest.raises(UserError, match="has been used"), first:
            pass
        with second:
            pass

    def test_the_thread_that_entered_is_watched(self, measured: Any) -> None:
        model = nn.Linear(4, 3)
        profiler, cases = measured()
        raised: list[str] = []

        def predict() -> None:
            with profiler:
                other = threading.Thread(target=complain)
                other.start()
                other.join()
                for x in profiler.iterate(torch.ones(4, 2, 4)):
                    model(x)

        def complain() -> None:
            model(torch.ones(2, 4))
            for wrong in (profiler.step, lambda: next(profiler.iterate([1])),
                          lambda: profiler.phase("loss").__enter__()):
                with pytest.raises(UserError) as error:
                    wrong()
                raised.append(str(error.value))

        thread = threading.Thread(target=predict)
        thread.start()
        thread.join()
        assert len(raised) == 3
        assert all("thread that entered" in reason for reason in raised)
        assert cases()["infer"]["num_iterations"] == 4

    def test_a_forked_child_leaves_the_record_alone(self, measured: Any) -> None:
        profiler, cases = measured()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some Pythons warn of forking beside threads
            with profiler:
                child = os.fork()
                for x in profiler.iterate(torch.ones(3, 2)):
                    nn.Identity()(x)
                if not child:
                    profiler.__exit__(None, None, None)
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
        assert cases()["infer"]["num_iterations"] == 3

    def test_one_that_is_not_enabled_changes_nothing(self, tmp_path: Path) -> None:
        original = vars(torch.nn.Module)["__call__"]
        with charact.Profiler("x", tmp_path, enabled=False) as profiler:
            assert vars(torch.nn.Module)["__call__"] is original
            with profiler.phase("forward"):
                profiler.step()
            assert list(profiler.iterate([1, 2])) == [1, 2]
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(UserError, match="not enabled"):
            _ = profiler.run

    def test_mistakes_are_told_in_one_line(self, measured: Any, tmp_path: Path) -> None:
        profiler, _ = measured()
        for use in (profiler.step, lambda: profiler.phase("loss"), lambda: profiler.iterate([])):
            with pytest.raises(UserError, match="not been entered"):
                use()
        with profiler:
            with pytest.raises(UserError, match="unknown phase 'fowrard': name one of data, forward"), \
                    profiler.phase("fowrard"):
                pass
            with pytest.raises(UserError, match="after the `with` block"):
                _ = profiler.run
            assert "after the `with` block" in profiler._repr_html_()
        with pytest.raises(UserError, match="skip is -1"):
            charact.Profiler("x", tmp_path, skip=-1)
        with pytest.raises(UserError, match="num_iterations is 0"):
            charact.profile(print, num_iterations=0)
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="is a file"), charact.Profiler("x", tmp_path / "file"):
            pass


@pytest.fixture(scope="module")
def profiler(tmp_path_factory: pytest.TempPathFactory) -> charact.Profiler:
    """One whose run was published."""
    model = Sleepy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with charact.Profiler("<b>&my model", tmp_path_factory.mktemp("runs")) as profiler:
        for x in profiler.iterate(torch.ones(8, 2, 4)):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return profiler


class TestTheRun:
    @pytest.mark.slow
    def test_it_lies_on_disk_like_any_other(self, profiler: charact.Profiler) -> None:
        assert charact.load_run(profiler.run.path).manifest == profiler.run.manifest
        assert profiler.run.manifest["status"] == "complete"
        assert profiler.run.manifest["ending"] == "to its end"
        assert (profiler.run.path / "report.html").is_file()
        assert [path.name for path in profiler.run.path.parent.iterdir()] == [profiler.run.run_id]

    def test_its_tables_are_frames(self, profiler: charact.Profiler) -> None:
        assert profiler.iterations["iteration"].nunique() == 6  # of 8, a quarter is left out
        phases = profiler.phases.set_index("phase")
        assert phases["share_frac"].sum() == pytest.approx(1)
        assert phases["share_frac"].idxmax() == "forward"

    def test_a_notebook_shows_it_escaped_and_by_itself(self, profiler: charact.Profiler) -> None:
        html = profiler._repr_html_()
        assert "&lt;b&gt;&amp;my model-train" in html
        assert "<b>&my" not in html
        assert "per iteration" in html
        assert "forward" in html
        for foreign in ("<script", "<style", "http", "class="):
            assert foreign not in html

    @pytest.mark.slow
    def test_a_block_with_nothing_in_it_has_none_and_says_so(
            self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with charact.Profiler("<i>", tmp_path) as profiler:
            pass
        assert "nothing to report" in capsys.readouterr().err
        with pytest.raises(UserError, match=r"^(?!error: ).*called no model of PyTorch"):
            _ = profiler.run
        assert "&lt;i&gt;: " in profiler._repr_html_()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_a_function_is_called_until_its_time_is_known(self, tmp_path: Path) -> None:
        calls: list[float] = []

        def work(seconds: float, *, twice: bool) -> None:
            calls.append(seconds)
            time.sleep(seconds * (1 + twice))

        run = charact.profile(work, 0.01, num_iterations=7, out=tmp_path, twice=True)
        timing = run.entry("work-infer").passes.timing
        assert (timing.num_iterations, timing.ended_by) == (7, "max_iterations")
        assert len(calls) == 7 + timing.num_warmup_iterations
        walls = run.iterations.groupby("iteration")["host_s"].sum()
        assert walls.min() >= 0.02
        assert walls.min() < 0.03

    def test_an_error_of_a_function_propagates(self, tmp_path: Path) -> None:
        def fail() -> None:
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            charact.profile(fail, out=tmp_path)

    def test_the_program_s_process_imports_no_tables_and_no_views(self, tmp_path: Path) -> None:
        code = (
            "import sys, charact\n"
            "charact.Profiler._recover = lambda *_: None\n"
            f"with charact.Profiler('x', {str(tmp_path)!r}) as p:\n"
            "    import torch\n"
            "    for x in p.iterate(torch.ones(3, 2)): torch.nn.Identity()(x)\n"
            "print(sorted({'pandas', 'pyarrow', 'matplotlib', 'rich', 'jinja2'} & set(sys.modules)))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"
        assert done.stderr.startswith(f"charact: wrote {tmp_path}")
