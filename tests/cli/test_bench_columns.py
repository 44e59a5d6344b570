"""The columns of a benchmark's table and CSV: joules by phase, clocks, and whether a row is whole."""

from __future__ import annotations

from typing import Any

import pytest

from edgeprec.cli.bench_columns import CSV_COLUMNS, csv_values, table_columns


def make_record(**changes: Any) -> dict[str, Any]:
    """Return the parts of a record that columns of energy and clocks take; ``changes`` replace fields at the top."""
    spread = {"mean": 2.0, "stdev": 0.5, "count": 2}
    values: dict[str, Any] = dict.fromkeys(
        ("time", "engine", "engine_device", "threads", "mode", "drafter", "draft_length", "temperature", "repeats")
    )
    values |= dict.fromkeys(("acceptance_rate", "mean_draft_length", "int4_layer_share", "bits_read_per_weight"))
    values |= dict.fromkeys(("device", "model", "server", "test", "batch", "memory", "token_sha256"))
    values |= {
        "versions": {},
        "is_complete": False,
        "tokens_per_s": spread,
        "energy_note": None,
        "energy": {
            "joules_per_token": spread,
            "joules_per_token_above_idle": spread,
            "decode_joules_per_token": {"mean": 1.5, "stdev": 0.25, "count": 2},
            "watts": spread,
            "tokens": 40,
            "by_phase": {"prefill": 20.0, "draft": 20.0, "verify": 40.0, "idle": None},
            **dict.fromkeys(("idle_watts", "rail", "coverage")),
            "is_total": True,
            "source": "nvml",
            "scope": "gpu",
        },
        "clocks": {
            "before_mhz": {"gpu 17000000.gpu": 306.0, "cpu": 1500.0},
            "after_mhz": {"gpu 17000000.gpu": 625.0, "cpu": 1728.0},
            "is_locked": True,
        },
        "hottest_c": {"before": 40.0, "after": 51.5},
    }
    return values | changes


def csv_row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a CSV row by their headers."""
    return dict(zip(CSV_COLUMNS, csv_values(record), strict=True))


def table_row(record: dict[str, Any]) -> dict[str, str]:
    """Return the cells of energy in a row of the table."""
    columns = [column for column in table_columns(has_energy=True) if column.header.startswith("J/")]
    return {column.header: column.cell(record) for column in columns}


def test_joules_a_token_stand_by_phase() -> None:
    """All are divided by the same tokens, so that prefill and decoding add up to the whole."""
    assert table_row(make_record()) == {
        "J/token": "2.0000 ± 0.5000",
        "J/t prefill": "0.5000",
        "J/t decode": "1.5000 ± 0.2500",
    }
    row = csv_row(make_record())
    phases = {name: row[f"{name}_joules_per_token"] for name in ("prefill", "draft", "verify", "decode")}
    assert phases == {"prefill": 0.5, "draft": 0.5, "verify": 1.0, "decode": 1.5}


@pytest.mark.parametrize(
    "energy",
    [None, {**make_record()["energy"], "by_phase": {"prefill": None}}, {**make_record()["energy"], "tokens": 0}],
)
def test_a_phase_that_was_not_measured_is_empty(energy: dict[str, Any] | None) -> None:
    """Never 0."""
    record = make_record(energy=energy)
    assert csv_row(record)["prefill_joules_per_token"] == ""
    assert table_row(record)["J/t prefill"] == "-"


def test_a_part_of_the_device_has_no_joules_in_the_table() -> None:
    """Neither as a whole nor by phase."""
    assert set(table_row(make_record(energy=make_record()["energy"] | {"is_total": False})).values()) == {"-"}


def test_a_csv_row_has_clocks_and_says_whether_it_is_whole() -> None:
    """A row that broke off, or ran at another clock, is told from the others without the JSON."""
    row = csv_row(make_record())
    assert row["is_complete"] is False
    assert (row["clock_domain"], row["clock_before_mhz"], row["clock_after_mhz"]) == ("gpu 17000000.gpu", 306.0, 625.0)
    assert (row["clocks_are_locked"], row["hottest_before_c"], row["hottest_after_c"]) == (True, 40.0, 51.5)
    assert (row["energy_source"], row["energy_scope"]) == ("nvml", "gpu")
    unknown = csv_row(make_record(clocks={"before_mhz": {}, "after_mhz": {}, "is_locked": None}))
    assert {unknown[name] for name in unknown if name.startswith("clock")} == {""}
