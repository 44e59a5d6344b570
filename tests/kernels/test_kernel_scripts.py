"""The tuner's candidates and the benchmark's table, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from edgeprec.kernels.tuning import Fp16Config, RowsConfig, WideConfig, parse_fp16_configs, parse_int4_config

pytest.importorskip("triton")

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Return the scripts as modules; they find each other as they do when run."""
    monkeypatch.syspath_prepend(SCRIPTS)
    names = ("kernel_timing", "kernel_candidates", "kernel_musts", "tune_kernels", "bench_kernels")
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
        found: dict[str, dict[str, object]] = {"fp16": {}}
        tune.put_fp16(found, "1x1", 32, config)
        for limit in (64, 128):
            for tiles in tune.fp16_tiles(config.bk, config.split, limit):
                tune.put_fp16(found, "1x1", limit, tiles)
                assert parse_fp16_configs(found["fp16"]["1x1"]) | {32: config, limit: tiles} == parse_fp16_configs(
                    found["fp16"]["1x1"]
                )


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
    wide, tall = RowsConfig(wn=1, wk=4, r=2, s=2), RowsConfig(wn=1, wk=8, r=2, s=1, stages=4)
    shared = RowsConfig(wn=1, wk=8, r=2, s=1, stages=4, shared_x=True)
    few = [measured(tune, timing, one, 4.0), measured(tune, timing, two, 4.5), measured(tune, timing, wide, 9.0)]
    many = [measured(tune, timing, config, us) for config, us in ((wide, 5.0), (shared, 5.5), (tall, 6.0))]
    chosen = tune.choose_pair(few, many)
    assert [pick.config for pick in chosen] == [two, tall]


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


def test_another_order_of_sums_drops_the_tiles_of_the_old_one(scripts: dict[str, ModuleType]) -> None:
    """All tiles of a shape have one BK and one SPLIT, whatever is tuned when; only 32 rows change them."""
    tune = scripts["tune_kernels"]
    found: dict[str, dict[str, object]] = {"fp16": {}}
    one = Fp16Config(bn=64, bm=32, bk=128, split=1, stages=4, warps=4)
    more = Fp16Config(bn=128, bm=128, bk=128, split=1, stages=3, warps=8)
    tune.put_fp16(found, "4096x4096", 32, one)
    tune.put_fp16(found, "4096x4096", 128, more)
    assert parse_fp16_configs(found["fp16"]["4096x4096"]) == {32: one, 128: more}
    offered = [case[3] for case in tune.fp16_cases(found, 4096, 4096, 64)]
    assert {(config.bk, config.split) for config in offered} == {(128, 1)}
    assert {config.split for *_, config in tune.fp16_cases(found, 4096, 4096, 64, any_order=True)} == {1, 2, 4}
    tune.put_fp16(found, "4096x4096", 32, replace(one, split=2))
    assert parse_fp16_configs(found["fp16"]["4096x4096"]) == {32: replace(one, split=2)}


def test_the_table_is_replaced_whole(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    """Nothing half-written is left, also not beside the table."""
    path = tmp_path / "tuning.json"
    path.write_text("old")
    scripts["tune_kernels"].write({"schema_version": 1, "devices": {}}, path)
    assert json.loads(path.read_text()) == {"schema_version": 1, "devices": {}}
    assert list(tmp_path.iterdir()) == [path]


def test_the_tuner_goes_on_from_its_table(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run writes the shapes asked for in one order and says ratios; a second run times those entries first."""
    tune, timing, path = scripts["tune_kernels"], scripts["kernel_timing"], tmp_path / "tuning.json"
    first: list[object] = []

    class FakeArena:
        def int4(self, n: int, k: int) -> list[int]:
            return [n, k]

        fp16 = int4

    def time_cases(cases: Iterable[tuple[int, int, int, object]], weights: object, deadline_s: object) -> list[object]:
        found = [measured(tune, timing, case[3], 5.0 + len(tune.short(case[3])) % 7) for case in cases]
        first.append(found[0].config)
        return found

    for name, fake in {
        "Arena": FakeArena,
        "time_cases": time_cases,
        "compile_cases": lambda cases, until_s: set(cases),
        "cublas_us": lambda n, k, m, weights: 10.0,
    }.items():
        monkeypatch.setattr(tune, name, fake)
    monkeypatch.setattr(tune.torch.cuda, "get_device_name", lambda: "a new GPU")
    monkeypatch.setattr(tune.torch.cuda, "empty_cache", lambda: None)
    arguments = ["tune", "--shapes", "4096x4096,6144x4096", "--rows", "16,64", "--limit-s", "60", "-o", str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    tune.main()
    held = json.loads(path.read_text())["devices"]["a new GPU"]
    assert set(held["int4"]) == set(held["fp16"]) == {"4096x4096", "6144x4096"}
    for entry in held["fp16"].values():
        assert set(entry["tiles"]) == {"32", "64", "128"}
    for entries in held["int4"].values():
        assert set(entries) == {"8", "16", "64"}
        few, many = parse_int4_config(entries["8"]), parse_int4_config(entries["16"])
        assert tune.order(few) == tune.order(many)
    assert "us (2.00x)" in capsys.readouterr().out
    first.clear()
    tune.main()
    assert first[:2] == [parse_int4_config(held["int4"]["4096x4096"][limit]) for limit in ("8", "16")]


def test_verdicts_come_of_what_time_allows(
    scripts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no time left every shape still stops after its first rows, says so, and is judged."""
    bench, timing, path = scripts["bench_kernels"], scripts["kernel_timing"], tmp_path / "out.jsonl"

    class FakePool:
        def __init__(self, *arguments: object, **keywords: object) -> None:
            self.map = lambda function, cases: []

        def __enter__(self) -> FakePool:
            return self

        def __exit__(self, *arguments: object) -> None:
            return None

    class FakeArena:
        def int4(self, n: int, k: int) -> list[int]:
            return [n, k]

        fp16 = int4

    made: list[tuple[int, int]] = []
    clock = iter(float(second) for second in range(0, 100_000, 10))
    launches = {"cublas fp16": (lambda i: i, 20), "edgeprec int4": (lambda i: i, 4), "tinygemm": (lambda i: i, 8)}
    for name, fake in {
        "ProcessPoolExecutor": FakePool,
        "Arena": FakeArena,
        "tinygemm_weights": lambda n, k: ([], None),
        "environment": lambda: {"device": "a GPU"},
        "read_bandwidth_gb_per_s": lambda: 4000.0,
        "gemlite_layers": lambda n, k: made.append((n, k)) or [n],
        "must_launches": lambda *arguments: launches | {"gemlite": (lambda i: i, 12)} if arguments[-1] else launches,
        "measure": lambda launch, copies: timing.Timing(float(copies), float(copies), float(copies)),
    }.items():
        monkeypatch.setattr(bench, name, fake)
    monkeypatch.setattr(bench.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(clock))
    bench.bench_musts(300.0, path, uses_gemlite=True)
    assert made == list(timing.LLAMA_8B.values())  # it ships no schedule for a head
    said = capsys.readouterr().out
    assert "rows and what follows left out" in said
    assert "INT4, 1 rows, 4096x4096            5.00x (5.00..5.00), must 2.75x met by 82 %" in said
    assert "INT4 over gemlite, 1 rows, 4096x4096 3.00x" in said
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds[0] == "environment"
    assert {"timing", "verdict"} <= set(kinds)


@pytest.mark.parametrize(
    ("is_wanted", "is_there", "says"), [(True, True, False), (True, False, True), (False, False, False)]
)
def test_a_missing_gemlite_is_said(
    scripts: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_wanted: bool,
    is_there: bool,
    says: bool,
) -> None:
    """Verdicts without a peer's figures do not pass for all of them, unless one left it out oneself."""
    monkeypatch.setattr(scripts["bench_kernels"], "has_gemlite", lambda: is_there)
    assert scripts["bench_kernels"].takes_gemlite(is_wanted=is_wanted) is (is_wanted and is_there)
    assert ("gemlite is not installed, its figures are left out" in capsys.readouterr().out) is says


def test_the_must_table_has_what_was_timed(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    """Rows that time did not allow are absent, kernels that were not timed are dashes; lines come back as JSON."""
    bench, timing = scripts["bench_kernels"], scripts["kernel_timing"]
    times = {("cublas fp16", 16, 4096, 4096): timing.Timing(13.0, 12.0, 14.0)}
    times["edgeprec int4", 16, 4096, 4096] = timing.Timing(6.5, 6.4, 6.6)
    lines = bench.must_table(times).splitlines()
    assert lines[2:] == ["| 4096x4096 | 16 | 13.0 | 6.50 (2.00x) | - | - | - |"]
    bench.write_lines(tmp_path / "out.jsonl", [{"kind": "a"}, {"kind": "b"}])
    assert [json.loads(line)["kind"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ["a", "b"]


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
