"""The tuning table: what it may hold, what stands in for what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.errors import KernelError
from edgeprec.kernels import tuning
from edgeprec.kernels.tuning import FP16_ROW_LIMITS, INT4_ROW_LIMITS, RowsConfig, WideConfig

TABLE = Path(tuning.__file__).with_name("tuning.json")
POWERS = st.sampled_from([1, 2, 4, 8])


@given(
    wn=POWERS,
    wk=POWERS,
    r=POWERS,
    s=POWERS,
    prefetch=st.sampled_from([0, 8, 64]),
    row_tiles=st.integers(1, 5000),
    k_tiles=st.integers(1, 200),
)
def test_fitted_rows_divide_the_weight(
    wn: int, wk: int, r: int, s: int, prefetch: int, row_tiles: int, k_tiles: int
) -> None:
    """Whatever the table says, the launched sizes divide the tiles, are no larger, and what fits stays."""
    config = RowsConfig(wn=wn, wk=wk, r=r, s=s, prefetch=prefetch)
    fitted = config.fit(row_tiles=row_tiles, k_tiles=k_tiles)
    assert k_tiles % (fitted.wk * fitted.s) == 0
    assert row_tiles % (fitted.wn * fitted.r) == 0
    assert fitted.wn <= wn
    assert fitted.wk <= wk
    assert fitted.prefetch <= 8 * k_tiles
    assert fitted.prefetch & (fitted.prefetch - 1) == 0
    assert fitted.fit(row_tiles=row_tiles, k_tiles=k_tiles) == fitted


@pytest.mark.parametrize(("k_tiles", "split"), [(32, 8), (112, 8), (12, 4), (5, 1)])
def test_fitted_split_divides_the_weight(k_tiles: int, split: int) -> None:
    """A split that does not divide K is halved until it does."""
    assert WideConfig(bn=64, split=8, stages=3, warps=4).fit(k_tiles=k_tiles).split == split


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32, 64, 500])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 4096), (1000, 576), (1, 1)])
def test_an_unknown_device_has_defaults(n: int, k: int, rows: int) -> None:
    """Every shape and row count has sizes; up to 16 rows the kernel whose rows do not depend on each other."""
    row_tiles, k_tiles = -(-n // 16), -(-k // 128)
    config = tuning.int4_config(
        "a GPU of tomorrow",
        n=n,
        k=k,
        rows=rows,
        group_size=64,
        row_tiles=row_tiles,
        k_tiles=k_tiles,
        multiprocessors=16,
    )
    assert isinstance(config, RowsConfig) == (rows <= 16)


@pytest.mark.parametrize("shared_bytes", [99 << 10, 163 << 10, 227 << 10], ids=["SM 86", "SM 87", "SM 90"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (28672, 4096), (1000, 576), (1, 1)])
@pytest.mark.parametrize("name", ["a GPU of tomorrow", "NVIDIA H200"])
def test_an_fp16_row_keeps_its_order_of_sums(name: str, n: int, k: int, shared_bytes: int) -> None:
    """BK and SPLIT do not depend on the rows; tiles that were not measured fit into the shared memory."""
    orders = set()
    for rows in (1, 16, 17, 32, 33, 64, 65, 128, 129, 500):
        config = tuning.fp16_config(name, n=n, k=k, rows=rows, multiprocessors=16, shared_bytes=shared_bytes)
        orders.add((config.bk, config.split))
        assert config.bm in FP16_ROW_LIMITS
        if name != "NVIDIA H200" or (n, k) == (1000, 576):
            assert 2 * (config.bn + config.bm) * config.bk * config.stages <= shared_bytes
            assert config.stages >= 2
    assert len(orders) == 1


def test_the_shipped_table_can_be_read() -> None:
    """Every entry names a kernel, its sizes are powers of two, its keys are shapes and row limits."""
    content = json.loads(TABLE.read_text(encoding="utf-8"))
    assert content["schema_version"] == 2
    for device in content["devices"].values():
        for shape, entries in device["int4"].items():
            assert all(size.isdigit() for size in shape.split("x"))
            assert set(entries) <= {str(limit) for limit in INT4_ROW_LIMITS}
            assert (entries["8"]["wk"], entries["8"]["s"]) == (entries["16"]["wk"], entries["16"]["s"]), shape
            for entry in entries.values():
                config = tuning.parse_int4_config(entry)
                if isinstance(config, RowsConfig):
                    assert all(size & (size - 1) == 0 for size in (config.wn, config.wk, config.r, config.s))
                    assert config.wn * config.wk <= 16
        for entry in device["fp16"].values():
            configs = tuning.parse_fp16_configs(entry)
            assert configs[FP16_ROW_LIMITS[0]].bk == entry["bk"]


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("multiprocessors", [1, 16, 1000])
def test_defaults_keep_the_order_of_a_sum(multiprocessors: int, group_size: int) -> None:
    """An unknown GPU too gives 1..16 rows the same bits: WK and S do not depend on their number."""
    orders = set()
    for rows in range(1, 17):
        config = tuning.int4_config(
            "a GPU of tomorrow",
            n=4096,
            k=4096,
            rows=rows,
            group_size=group_size,
            row_tiles=256,
            k_tiles=32,
            multiprocessors=multiprocessors,
        )
        assert isinstance(config, RowsConfig)
        orders.add((config.wk, config.s))
    assert len(orders) == 1


@pytest.mark.parametrize("name", ["a GPU of tomorrow", "NVIDIA H200"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (4096, 14336), (2048, 8192), (2048, 2048), (49152, 2048)])
@pytest.mark.parametrize("rows", [9, 16])
def test_small_blocks_stream_what_would_leave_the_registers(name: str, n: int, k: int, rows: int) -> None:
    """Unrolled steps of several tiles are for blocks of 128; WK, S and SHARED_X, so the bits, stay."""
    sizes = {"n": n, "k": k, "rows": rows, "row_tiles": n // 16, "k_tiles": k // 128, "multiprocessors": 132}
    tuned = tuning.int4_config(name, group_size=128, **sizes)
    assert isinstance(tuned, RowsConfig)
    for group_size in (32, 64):
        config = tuning.int4_config(name, group_size=group_size, **sizes)
        assert isinstance(config, RowsConfig)
        assert config.stages or config.r * config.s == 1
        assert (config.wk, config.s, config.shared_x) == (tuned.wk, tuned.s, tuned.shared_x)


def test_the_rows_kernel_ends_at_64_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table whose entry for 64 is the rows kernel does not send a prefill of 500 there."""
    entry = {"kernel": "rows", "wn": 1, "wk": 8, "r": 2, "s": 1}
    monkeypatch.setattr(tuning, "_table", lambda: {"X": {"int4": {"4096x4096": {"64": entry}}}})
    sizes = {"n": 4096, "k": 4096, "group_size": 128, "row_tiles": 256, "k_tiles": 32, "multiprocessors": 132}
    assert isinstance(tuning.int4_config("X", rows=64, **sizes), RowsConfig)
    assert isinstance(tuning.int4_config("X", rows=500, **sizes), WideConfig)


@pytest.mark.parametrize("entry", [{}, {"kernel": "fast"}, {"kernel": "rows", "wn": 1}, {"kernel": "wide", "bk": 3}])
def test_a_damaged_entry_is_named(entry: dict[str, object]) -> None:
    """An entry that no kernel understands is an error that shows it."""
    with pytest.raises(KernelError, match="expected kernel rows or wide"):
        tuning.parse_int4_config(entry)


@pytest.mark.parametrize(
    "entry", [{}, {"bk": 128, "split": 1}, {"bk": 128, "split": 1, "tiles": {"32": {"bn": 64}}}, {"tiles": []}]
)
def test_a_damaged_fp16_entry_is_named(entry: dict[str, object]) -> None:
    """The same for the other kernel."""
    with pytest.raises(KernelError, match="expected bk, split and tiles"):
        tuning.parse_fp16_configs(entry)


def test_an_fp16_entry_for_other_rows_is_named() -> None:
    """Tiles for a number of rows that no pass is sorted into would never be used."""
    tiles = {"48": {"bn": 64, "stages": 4, "warps": 4}}
    with pytest.raises(KernelError, match=r"tiles for \[48\] rows"):
        tuning.parse_fp16_configs({"bk": 128, "split": 1, "tiles": tiles})


def test_tall_fp16_tiles_are_used_where_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 64 rows run in blocks of 64 unless the table has tiles for 128."""
    tiles: dict[str, object] = {"32": {"bn": 64, "stages": 4, "warps": 4}}
    entry = {"bk": 128, "split": 2, "tiles": tiles}
    monkeypatch.setattr(tuning, "_table", lambda: {"X": {"fp16": {"4096x4096": entry}}})
    sizes = {"n": 4096, "k": 4096, "multiprocessors": 132, "shared_bytes": 227 << 10}
    assert [tuning.fp16_config("X", rows=rows, **sizes).bm for rows in (16, 64, 100, 500)] == [32, 64, 64, 64]
    tiles["128"] = {"bn": 128, "stages": 3, "warps": 8}
    found = tuning.fp16_config("X", rows=100, **sizes)
    assert (found.bm, found.bn, found.bk, found.split) == (128, 128, 128, 2)
