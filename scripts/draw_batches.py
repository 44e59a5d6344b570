"""Draw a batch sweep: J/token and tokens/s against the batch, and energy by phase, one SVG file each.

    python scripts/draw_batches.py FILE.jsonl [FILE.jsonl ...] [-o docs/images] [--ways LIST]

The files are results of ``bench_batches.py`` and ``bench_peers_gpu.py``; replies of ``bench_decode.py``
(--jsonl) give a picture of a single sequence's phases. Of two results of the same the later counts. Ways that were
measured at one batch only stand in no line picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batch_table import OWN_ENGINE, way_of
from log_chart import LogChart, LogSeries, Point, draw_log_chart
from phase_chart import Column, PhaseChart, draw_phase_chart
from results_file import key_of, read_objects, read_results
from sweep_checks import check_reply, check_result

from edgeprec.errors import ConfigError

__all__ = ["draw"]

Record = Mapping[str, Any]
PHASE_WAYS = ("fp16", "int4", "draft K=3", "draft K=5", "draft adaptive")
PHASES = ("prefill", "draft", "verify", "decode")


def main() -> None:
    """Read, draw, write; what goes wrong is one sentence."""
    arguments = _arguments()
    try:
        records, replies = read_sweep(arguments.files), read_replies(arguments.files)
        _check_ways(arguments.ways, records)
        pictures = draw(records, replies, ways=arguments.ways)
        if not pictures:
            raise ConfigError(
                "there is nothing to draw: give the --output of bench_batches.py, with two batches or more"
            )
        _write(pictures, arguments.output)
    except ConfigError as error:
        raise SystemExit(f"draw_batches.py: {error}") from error


def read_sweep(paths: Sequence[Path]) -> list[Record]:
    """Return the results of files that belong to a sweep, the later of two of the same.

    Raises:
        ConfigError: a file cannot be read, or a result cannot be drawn.
    """
    newest: dict[object, Record] = {}
    for path in paths:
        for where, record in read_results(path):
            if record.get("batch") is not None:
                check_result(record, where)
                newest[key_of(record)] = record
    return list(newest.values())


def read_replies(paths: Sequence[Path]) -> list[Record]:
    """Return the replies of ``bench_decode.py`` in files.

    Raises:
        ConfigError: a file cannot be read, or a reply cannot be drawn.
    """
    found = [(where, value) for path in paths for where, value in read_objects(path) if value.get("type") == "reply"]
    for where, reply in found:
        check_reply(reply, where)
    return [reply for _, reply in found]


def _check_ways(ways: Sequence[str] | None, records: Sequence[Record]) -> None:
    known = list(dict.fromkeys(map(way_of, records)))
    unknown = [way for way in ways or () if way not in known]
    if unknown:
        there = ", ".join(known) or "none"
        raise ConfigError(f"--ways names {unknown[0]!r}, which is not in the files: they have {there}")


def _write(pictures: Mapping[str, str], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            (folder / name).write_text(picture, encoding="utf-8")
            print(folder / name)
    except OSError as error:
        raise ConfigError(f"-o {folder} cannot be written: {error.strerror}") from error


def draw(records: Sequence[Record], replies: Sequence[Record], *, ways: Sequence[str] | None) -> dict[str, str]:
    """Return file name -> SVG of what there is data for."""
    chosen = [record for record in records if ways is None or way_of(record) in ways]
    where = _where(records)
    pictures: dict[str, str] = {}
    for name, label, title, *path in (
        ("batch-joules.svg", "joules a token, idle included", "Energy a token by batch", "energy", "joules_per_token"),
        ("batch-speed.svg", "tokens/s of all sequences", "Decoding speed by batch", "tokens_per_s"),
    ):
        series = list(_series(chosen, path))
        if series:
            chart = LogChart(title=f"{title}{where}", x_label="sequences at once", y_label=label, series=series)
            pictures[name] = draw_log_chart(chart)
    columns = list(_batch_phases(chosen, ways or PHASE_WAYS))
    if columns:
        chart_of = {"x_label": "sequences at once", "y_label": "joules a token, FP16 = 100 %"}
        title = f"Energy by phase and batch{where}"
        chart = PhaseChart(title=title, columns=columns, phases=_present(columns), unit=" %", **chart_of)
        pictures["batch-phases.svg"] = draw_phase_chart(chart)
    single = list(_single_phases(replies))
    if single:
        chart_of = {"x_label": "way of decoding, one sequence", "y_label": "joules a token"}
        title = "Energy by phase, one sequence"
        chart = PhaseChart(title=title, columns=single, phases=_present(single), **chart_of)
        pictures["single-phases.svg"] = draw_phase_chart(chart)
    return pictures


def _where(records: Sequence[Record]) -> str:
    gpus = dict.fromkeys(gpu for record in records for gpu in record["device"]["gpus"])
    return f", {', '.join(gpus)}" if gpus else ""


def _series(records: Sequence[Record], path: Sequence[str]) -> Iterator[LogSeries]:
    """Yield a line a way, own ones first; a way of one batch is no line."""
    ordered = sorted(
        records, key=lambda r: (r["engine"] != OWN_ENGINE, r["engine"], r["drafter"] is not None, way_of(r))
    )
    for way in dict.fromkeys(map(way_of, ordered)):
        own = [record for record in ordered if way_of(record) == way]
        points = [point for record in own if (point := _point(record, path)) is not None]
        if len(points) > 1:
            yield LogSeries(way, points, 0 if own[0]["engine"] == OWN_ENGINE else 1)


def _point(record: Record, path: Sequence[str]) -> Point | None:
    found: Any = record
    for name in path:
        found = None if found is None else found[name]
    if not found or not found["mean"]:
        return None
    return Point(record["test"]["sequences"], found["mean"], found["stdev"] or 0.0)


def _batch_phases(records: Sequence[Record], ways: Sequence[str]) -> Iterator[Column]:
    """Yield the parts of each way's joules a token, in percent of FP16's at the same batch."""
    plain = {r["test"]["sequences"]: _joules(r) for r in records if way_of(r) == "fp16"}
    for batch in sorted(plain):
        for way in ways:
            found = next((r for r in records if way_of(r) == way and r["test"]["sequences"] == batch), None)
            base = plain[batch]
            if found is None or not base or found["energy"] is None:
                continue
            energy = found["energy"]
            parts = {phase: energy["by_phase"].get(phase) for phase in PHASES}
            known = {
                phase: 100 * value / energy["tokens"] / base for phase, value in parts.items() if value is not None
            }
            if known:
                yield Column(str(batch), way, known)


def _present(columns: Sequence[Column]) -> list[str]:
    return [phase for phase in PHASES if any(phase in column.parts for column in columns)]


def _joules(record: Record) -> float | None:
    energy = record["energy"]
    return None if energy is None else energy["joules"] / energy["tokens"]


def _single_phases(replies: Sequence[Record]) -> Iterator[Column]:
    for way in dict.fromkeys(reply["way"] for reply in replies):
        own = [reply for reply in replies if reply["way"] == way and reply["joules"] is not None]
        tokens = sum(reply["tokens"] for reply in own)
        parts = {p: sum(reply["joules_by_phase"].get(p) or 0.0 for reply in own) / tokens for p in PHASES if tokens}
        if any(parts.values()):
            name = way.replace("three-level", "3 levels")
            yield Column(name, name, {phase: value for phase, value in parts.items() if value})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.jsonl")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/images"), metavar="FOLDER")
    parser.add_argument("--ways", type=lambda text: [w.strip() for w in text.split(",")], metavar="LIST")
    return parser.parse_args()


if __name__ == "__main__":
    main()
