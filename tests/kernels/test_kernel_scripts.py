"""The tuner's candidates and the benchmark's table, without a GPU."""

from __future__ import annotations

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
    names = ("kernel_timing", "tune_kernels", "bench_kernels")
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
