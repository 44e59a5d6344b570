"""Training a toy draft: it learns, it can be killed, and it never goes on with numbers that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export import disk
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.distill_layers import take_layers
from edgeprec.export.distill_model import Decoder, load_decoder
from edgeprec.export.distill_pace import Pace
from edgeprec.export.distill_probe import Probe
from edgeprec.export.distill_samples import Samples
from edgeprec.export.distill_sampling import Row, Sampler
from edgeprec.export.distill_state import TrainingState, load_state
from edgeprec.export.distill_step import TrainingStep
from edgeprec.export.distill_train import TrainingRun, choose_rows
from edgeprec.export.progress import ProgressEvent, silent

CPU = torch.device("cpu")
LENGTH, ROWS, STEPS = 24, 48, 60


class Killed(BaseException):
    """What a simulated crash raises: nothing in the product catches it."""


@pytest.fixture(scope="module")
def teacher(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """Return a toy target of two layers."""
    path = tmp_path_factory.mktemp("toy") / "target"
    checkpoints.make_checkpoint(path, dtype="fp16", hidden_size=32, intermediate_size=48, num_heads=2, num_kv_heads=1)
    return load_decoder(open_checkpoint(str(path)), device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def samples(teacher: Decoder) -> Samples:
    """Return text the toy writes, some of it greedy."""
    sampler = Sampler(teacher, rows=ROWS, length=LENGTH)
    rows = [Row((index + 3,), hot_until=8 if index % 2 else LENGTH) for index in range(ROWS)]
    tokens = sampler.run(rows, LENGTH, torch.Generator().manual_seed(0)).to(torch.int32).numpy()
    return Samples.of_replies(tokens, np.ones(ROWS, np.int32), frozenset())


@pytest.fixture
def make_run(teacher: Decoder, samples: Samples, tmp_path: Path) -> Callable[..., TrainingRun]:
    """Return a function that makes a run of a fresh draft; its state lies in ``tmp_path``."""

    def make(**changes: Any) -> TrainingRun:
        step = TrainingStep(take_layers(teacher, (1,)), teacher, group_size=32, learning_rate=5e-3, argmax_weight=0.3)
        values: dict[str, Any] = {
            "step": step,
            "samples": samples,
            "probe": Probe({"toy": samples.rows(slice(0, 8))}),
            "pace": Pace(steps=STEPS, seconds=1e9),
            "rows_per_step": 16,
            "draft_length": 4,
            "seed": 3,
            "state_path": tmp_path / "state.pt",
            "progress": silent,
            "on_better": lambda state: None,
        }
        return TrainingRun(**values | changes)

    return make


def kill_at(step: int) -> Callable[[ProgressEvent], None]:
    """Return a progress function that crashes when ``step`` steps are done."""

    def progress(event: ProgressEvent) -> None:
        if event.stage.startswith("train") and event.done == step:
            raise Killed

    return progress


def assert_same_run(found: TrainingState, expected: TrainingState) -> None:
    """Compare everything but the clock, bit for bit."""
    for name in ("weights", "best_weights"):
        for key, value in getattr(expected, name).items():
            assert torch.equal(getattr(found, name)[key], value), f"{name} {key}"
    assert (found.step, found.best_step) == (expected.step, expected.best_step)
    curves = [[{k: v for k, v in row.items() if k != "seconds"} for row in s.curve] for s in (found, expected)]
    assert curves[0] == curves[1]


def test_training_lowers_the_divergence(make_run: Callable[..., TrainingRun]) -> None:
    """KL falls, agreement and acceptance rise, and the curve tells it."""
    better: list[float] = []
    state = make_run(on_better=lambda state: better.append(state.best_acceptance)).run()
    first, last = state.curve[1], state.curve[-1]
    assert last["kl_bits"] < 0.75 * first["kl_bits"]
    assert last["agreement"] > first["agreement"] + 0.1
    assert state.best_acceptance > state.curve[0]["acceptance"] + 0.03
    assert better == sorted(set(better))
    assert better[-1] == state.best_acceptance
    assert [row["step"] for row in state.curve] == list(range(0, STEPS + 1, 3))


@pytest.mark.parametrize("killed_at", [1, 7, 44, STEPS])
def test_a_killed_run_ends_with_the_same_weights(
    make_run: Callable[..., TrainingRun], tmp_path: Path, killed_at: int
) -> None:
    """Before the first checkpoint behind the start, between two, and after the last step."""
    expected = make_run(state_path=tmp_path / "whole.pt").run()
    with pytest.raises(Killed):
        make_run(progress=kill_at(killed_at)).run()
    resumed = make_run()
    assert_same_run(resumed.run(), expected)
    for name, value in expected.weights.items():
        assert torch.equal(resumed.step.draft.state_dict()[name], value), name


def test_a_finished_run_is_not_trained_further(make_run: Callable[..., TrainingRun]) -> None:
    """A kill between the last step and the writing of the draft costs nothing."""
    first = make_run().run()
    events: list[ProgressEvent] = []
    assert_same_run(make_run(progress=events.append).run(), first)
    assert events == []


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_state(
    make_run: Callable[..., TrainingRun], tmp_path: Path, bad: float
) -> None:
    """Nothing is learned from it, and the checkpoint on disk is the one before."""
    run = make_run()
    weight = run.step.draft.state_dict()["layers.0.linears.o.weight"]

    def poison(event: ProgressEvent) -> None:
        if event.done == 10:
            weight[0, 0] = bad

    run.progress = poison
    with pytest.raises(EdgePrecError, match=r"not finite at step 11: training stopped, the last good state, of step 9"):
        run.run()
    state = load_state(tmp_path / "state.pt", device=CPU)
    assert state is not None
    assert state.step == 9
    assert all(bool(value.isfinite().all()) for value in state.weights.values())


def test_time_ends_a_run_and_sets_its_learning_rate(make_run: Callable[..., TrainingRun]) -> None:
    """A second a look at the clock: what was spent before counts, and the rate falls with the time that is left."""
    ticks: Iterator[float] = iter(float(tick) for tick in range(10_000))
    run = make_run(pace=Pace(steps=None, seconds=50.0), spent_s=20.0, clock=lambda: next(ticks))
    events: list[ProgressEvent] = []
    run.progress = events.append
    state = run.run()
    assert state.step == 30
    assert (events[0].done, events[-1].done, events[-1].total) == (21, 50, 50)
    assert events[-1].detail.startswith("step 30, loss ")
    (group,) = run.step.optimizer.state()[1]["param_groups"]
    assert group["lr"] == pytest.approx(5e-3 * 0.02, rel=0.3)


def test_a_killed_run_by_time_has_the_time_that_was_left(make_run: Callable[..., TrainingRun]) -> None:
    """The clock goes on where the last checkpoint was, not at the beginning."""

    def run(**changes: Any) -> TrainingRun:
        ticks = iter(float(tick) for tick in range(10_000))
        return make_run(pace=Pace(steps=None, seconds=40.0), clock=lambda: next(ticks), **changes)

    with pytest.raises(Killed):
        run(progress=kill_at(25)).run()
    events: list[ProgressEvent] = []
    assert run(progress=events.append).run().step == 40
    assert events[0].done == 25  # the checkpoint was made after 24 seconds
    assert len(events) == 16


def test_no_time_left_is_said_before_training(make_run: Callable[..., TrainingRun]) -> None:
    """Drawing text may use everything up on a slow machine; the text is kept."""
    with pytest.raises(ConfigError, match="was used up before training began: repeat the command with --resume"):
        make_run(pace=Pace(steps=None, seconds=50.0), spent_s=60.0).run()


def test_a_full_disk_stops_with_a_sentence_and_keeps_the_state_before(
    make_run: Callable[..., TrainingRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on from there once there is room."""
    real, calls = disk.write_at, [0]

    def write(descriptor: int, data: memoryview, *, offset_bytes: int) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise OSError(28, "No space left on device")
        real(descriptor, data, offset_bytes=offset_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_at", write)
        with pytest.raises(EdgePrecError, match="the disk is full"):
            make_run().run()
    state = load_state(tmp_path / "state.pt", device=CPU)
    assert state is not None
    assert state.step == 3
    assert make_run().run().step == STEPS


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 100])
def test_a_damaged_state_is_refused(
    make_run: Callable[..., TrainingRun], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """Not taken for a beginning, and not a traceback."""
    make_run(pace=Pace(steps=2, seconds=1e9)).run()
    path = tmp_path / "state.pt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"state\.pt is damaged"):
        make_run().run()


def test_every_epoch_sees_every_row_once() -> None:
    """In another order each time, decided by the seed."""
    epochs = [np.concatenate([choose_rows(12, 4, seed=5, step=3 * epoch + i) for i in range(3)]) for epoch in (0, 1)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()
    assert choose_rows(12, 4, seed=6, step=0).tolist() != choose_rows(12, 4, seed=5, step=0).tolist()
    assert sorted(choose_rows(3, 64, seed=0, step=9).tolist()) == [0, 1, 2]
