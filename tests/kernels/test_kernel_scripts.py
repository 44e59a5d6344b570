"""The tuner's candidates and the benchmark's table, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from edgeprec.kernels.tuning import Fp16Config, RowsConfig, WideConfig, parse_int4_config

pytest.importorskip("triton")

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Return the scripts as modules; they find each other as they do when run."""
    monkeypatch.syspath_prepend(SCRIPTS)
    names = ("kernel_timing", "kernel_candidates", "tune_kernels", "bench_kernels")
    yield {name: import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


def test_candidates_survive_the_table(scripts: dict[str, ModuleType]) -> None:
    """What the tuner writes is what the dispatcher reads; sizes are powers of two, at most 16 warps."""
    tune = scripts["tune_kernels"]
    for candidates in tune.INT4_CANDIDATES.values():
        for config in candidates:
            assert parse_int4_config(tune.entry(config)) == config
            if isinstance(config, RowsConfig):
                assert config.wn * config.wk <= 16
                assert all(size & (size - 1) == 0 for size in (config.wn, config.wk, config.r, config.s))
                assert not (config.pinned and config.stages)
                assert config.stages or not config.shared_x
    for config in tune.FP16_CANDIDATES:
        assert Fp16Config(**tune.entry(config)) == config


def test_every_llama_shape_has_candidates(scripts: dict[str, ModuleType]) -> None:
    """No shape is left without a size that fits it as it is."""
    tune, timing = scripts["tune_kernels"], scripts["kernel_timing"]
    for n, k in [*timing.LLAMA_8B.values(), *timing.LLAMA_1B.values()]:
        for limit, candidates in tune.INT4_CANDIDATES.items():
            fitting = [config for config in candidates if tune.fits((n, k, limit, config))]
            assert fitting, f"{n}x{k} with {limit} rows"
            assert all(isinstance(config, RowsConfig | WideConfig) for config in fitting)
        assert any(tune.fits((n, k, 16, config)) for config in tune.FP16_CANDIDATES)


def measured(tune: ModuleType, timing: ModuleType, config: object, time_us: float) -> object:
    """Return a measurement as the tuner makes it."""
    return tune.Measured(config=config, timing=timing.Timing(time_us, time_us, time_us))


def test_8_and_16_rows_get_one_order(scripts: dict[str, ModuleType]) -> None:
    """The fastest of each are left for the pair that loses least; sizes of one order only."""
    tune, timing = scripts["tune_kernels"], scripts["kernel_timing"]
    one, two = RowsConfig(wn=1, wk=4, r=1, s=4), RowsConfig(wn=1, wk=8, r=1, s=1)
    wide, shared = RowsConfig(wn=1, wk=4, r=2, s=2), RowsConfig(wn=1, wk=8, r=2, s=1, stages=4, shared_x=True)
    few = [measured(tune, timing, one, 4.0), measured(tune, timing, two, 4.5), measured(tune, timing, wide, 9.0)]
    many = [measured(tune, timing, wide, 5.0), measured(tune, timing, shared, 6.0)]
    chosen = tune.choose_pair(few, many)
    assert [pick.config for pick in chosen] == [two, shared]


def test_bits_are_worth_three_per_cent_above_16_rows(scripts: dict[str, ModuleType]) -> None:
    """The kernel whose bits do not depend on the batch wins a near draw, not a loss."""
    tune, timing = scripts["tune_kernels"], scripts["kernel_timing"]
    rows, wide = RowsConfig(wn=1, wk=8, r=2, s=1), WideConfig(bn=64, split=4, stages=3, warps=4)
    near = [measured(tune, timing, wide, 10.0), measured(tune, timing, rows, 10.2)]
    far = [measured(tune, timing, wide, 10.0), measured(tune, timing, rows, 10.4)]
    assert tune.choose_wide(near).config == rows
    assert tune.choose_wide(far).config == wide


def test_promising_sizes_of_every_shape_are_compiled_first(scripts: dict[str, ModuleType]) -> None:
    """Lists are mixed tier by tier, and shapes that share a K share their kernels."""
    tune = scripts["tune_kernels"]
    one, two = RowsConfig(wn=1, wk=8, r=2, s=1), RowsConfig(wn=1, wk=4, r=2, s=1)
    lists = [
        [(4096, 4096, 16, one), (4096, 4096, 16, two)],
        [(6144, 4096, 16, one), (6144, 4096, 16, two)],
        [(4096, 14336, 16, one)],
    ]
    cases = tune.by_promise(lists)
    assert cases == [(4096, 4096, 16, one), (4096, 14336, 16, one), (4096, 4096, 16, two)]


def test_the_table_is_replaced_whole(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    """Nothing half-written is left, also not beside the table."""
    path = tmp_path / "tuning.json"
    path.write_text("old")
    scripts["tune_kernels"].write({"schema_version": 1, "devices": {}}, path)
    assert json.loads(path.read_text()) == {"schema_version": 1, "devices": {}}
    assert list(tmp_path.iterdir()) == [path]


def test_the_table_gives_speed_ups_over_cublas(scripts: dict[str, ModuleType]) -> None:
    """A missing peer is a dash, spread is the larger side, share is of the measured read bandwidth."""
    bench, timing = scripts["bench_kernels"], scripts["kernel_timing"]
    layer, (n, k) = "o", timing.LLAMA_8B["o"]
    rows = [
        bench.Row(
            kernel=kernel, layer=layer, n=n, k=k, rows=1, timing=timing.Timing(us, us - 1, us + 2), gb_per_s=1000.0
        )
        for kernel, us in [("cublas fp16", 20.0), ("edgeprec int4", 5.0), ("tinygemm", 10.0)]
    ]
    lines = bench.table(rows, 4000.0).splitlines()
    assert len(lines) == 3
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells[:6] == ["4096x4096", "1", "20.0", "5.00 ±2.00 (4.00x)", "10.00 ±2.00 (2.00x)", "-"]
    assert cells[7:9] == ["1000", "0.25"]
