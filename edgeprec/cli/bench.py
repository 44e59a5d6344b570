"""``edgeprec bench``: speed, acceptance and joules of a bundle, one row a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeprec.cli.bench_options import bench_options, tuning_options
from edgeprec.cli.common import json_option, quiet_option
from edgeprec.cli.session_options import bundle_argument, open_session, replayed_file, session_options

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle
    from edgeprec.runtime.benchmark_case import Case
    from edgeprec.runtime.benchmark_peer import Peer
    from edgeprec.runtime.session import Session

__all__ = ["bench_command"]


class _BenchCommand(click.Command):
    """Keeps its command line, which every result carries."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["edgeprec.command"] = ("edgeprec", "bench", *args)
        return super().parse_args(ctx, args)


@click.command("bench", cls=_BenchCommand, short_help="Measure speed, acceptance and joules.")
@bundle_argument
@bench_options
@session_options
@json_option
@quiet_option
@click.pass_context
def bench_command(ctx: click.Context, /, **values: Any) -> None:
    """Measure the model in BUNDLE, one row a test, in the layout of llama-bench.

    pp512 is the prefill of 512 tokens, tg128 the decoding of 128, "@ d4096" behind 4096 that lie in the cache. A list
    is 1,2,4 or a range: 1-8, 1-8+2, 1-64*2. Acceptance depends on the text, so --prompts decodes real prompts. Results
    appear one by one, and Ctrl-C keeps those there are.

    \b
    Examples:
      edgeprec bench pair.edgeprec
      edgeprec bench pair.edgeprec -p 0 -n 128 --mode fp16,exact --draft-length adaptive,1-5 -r 3
      edgeprec bench pair.edgeprec --prompts small -n 128 --save results.jsonl
      edgeprec bench pair.edgeprec --prompts small --against http://127.0.0.1:8000/v1 --require-energy
    """
    from edgeprec.bundle import Bundle
    from edgeprec.cli.bench_idle_flags import check_flags
    from edgeprec.cli.bench_plan import make_cases, peer_cases
    from edgeprec.cli.bench_run import connect
    from edgeprec.cli.output_guard import require_apart
    from edgeprec.runtime.benchmark_peer_case import peer_runs

    cases = make_cases(values)
    check_flags(ctx)
    if values["as_json"]:
        values["output"] = "json"
    require_apart({"--save": values["save"]}, inputs=_inputs(values), bundle=values["bundle"])
    against = peer_cases(values) if values["against"] is not None else []
    for case in against:
        peer_runs(case)
    bundle = Bundle.open(values["bundle"])
    peer = connect(values, against)
    with open_session(values["bundle"], _with_room(values, cases, bundle)) as session:
        _measure(session, bundle, values, cases, against, peer, command=ctx.meta["edgeprec.command"])


bench_command.params += tuning_options()


def _inputs(values: Mapping[str, Any]) -> dict[str, Path | None]:
    """Return the files a measurement reads, by their flags."""
    prompts = None if values["prompts"] is None else Path(values["prompts"])
    return {
        "--prompts": prompts,
        "--against-key-file": values["against_key_file"],
        "--sensor": replayed_file(values["sensor"]),
    }


def _with_room(values: Mapping[str, Any], cases: Sequence[Case], bundle: Bundle) -> dict[str, Any]:
    """Ask for slots for the most sequences, and raise the context where the tests need more than the default."""
    from edgeprec.runtime.engines import default_context

    needed = max(case.context_tokens for case in cases)
    asked = {**values, "slots": max(case.sequences for case in cases)}
    if values["context_tokens"] is not None or needed <= default_context(bundle):
        return asked
    longest = min(model.architecture.max_positions for model in bundle.models)
    return {**asked, "context_tokens": min(needed, longest)}


def _measure(
    session: Session,
    bundle: Bundle,
    values: Mapping[str, Any],
    cases: Sequence[Case],
    against: Sequence[Case],
    peer: Peer | None,
    *,
    command: tuple[str, ...],
) -> None:
    from edgeprec.cli.bench_facts import circumstances, measure_idle, why_no_total
    from edgeprec.cli.bench_output import open_output, opened_file, shows_bars
    from edgeprec.cli.bench_run import Bench, require_energy
    from edgeprec.cli.progress import progress_bars, working
    from edgeprec.errors import DeviceError
    from edgeprec.runtime.benchmark import session_runs
    from edgeprec.runtime.benchmark_case import require_room

    reason = why_no_total(session)
    if values["require_energy"] and reason is not None:
        raise DeviceError(f"--require-energy: no total can be measured: {reason}")
    if values["require_energy"] and peer is not None and peer.energy_note is not None:
        raise DeviceError(f"--require-energy: {peer.energy_note}")
    for case in cases:
        session_runs(session, case)
    output = open_output(values["output"], has_energy=reason is None)
    has_bars = not values["quiet"] and shows_bars(values["output"])
    with opened_file(values["save"]) as save:
        with working("measuring power at rest", is_quiet=not has_bars):
            idle = measure_idle(session, values["idle_seconds"])
        about = circumstances(session, bundle, values, command=command, idle=idle)
        with progress_bars(is_quiet=not has_bars) as show:

            def emit(record: Mapping[str, Any]) -> None:
                save(record)
                output.add(record)

            bench = Bench(session, about, emit=emit, show=show, total=len(cases) + len(against))
            require_room(cases, bench.corpus, context_tokens=session.info.context_tokens)
            try:
                bench.run_own(cases)
                if peer is not None:
                    bench.run_peer(peer, against)
            finally:
                output.close()
    if not values["quiet"]:
        click.echo("\n".join(_remarks(bench.records, idle, reason)), err=True)
    if values["require_energy"]:
        require_energy(bench.records)


def _remarks(records: Sequence[Mapping[str, Any]], idle: Mapping[str, Any], reason: str | None) -> Iterator[str]:
    """Yield what the numbers rest on."""
    if reason is not None:
        yield f"energy not measured: {reason}"
    elif idle["watts"] is None:
        yield f"idle power not measured: {idle['note']}"
    else:
        note = f" ({idle['note']})" if idle["note"] else ""
        yield f"idle power {idle['watts']:.2f} W over {idle['seconds']:g} s, model loaded{note}"
    yield from _switches(records)
    for record in records:
        notes = dict.fromkeys(_notes(record, has_energy=reason is None))
        yield from (f"{record['test']['name']} {record['mode'] or record['engine']}: {note}" for note in notes)


def _switches(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say what it costs to go to another plan, batch or number of rows, as captured so far."""
    graphs = next((record["graphs"] for record in reversed(records) if record.get("graphs") is not None), None)
    if graphs is not None and graphs["captured"]:
        yield (
            f"{graphs['captured']} kinds of passes captured as CUDA graphs, {graphs['mean_ms']:.0f} ms each (largest "
            f"{graphs['largest_ms']:.0f}): what a switch to a new plan, batch or number of rows costs once; "
            f"{graphs['dropped']} dropped"
        )


def _notes(record: Mapping[str, Any], *, has_energy: bool) -> Iterator[str]:
    batch = record["batch"]
    if batch is not None and batch["tokens_per_round"] is not None:
        yield (
            f"{batch['tokens_per_s_per_sequence']:.2f} tokens/s a sequence, {batch['tokens_per_round']:.2f} tokens a "
            f"round, {batch['mean_sequences']:.1f} sequences in a round"
        )
    yield from record["notes"]
    yield from record["fallbacks"]
    if record["energy_note"] is not None and has_energy:
        yield f"energy: {record['energy_note']}"
