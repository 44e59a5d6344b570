"""Build TensorRT engines of the whole demo pair, without a GPU, and print what they hold.

    python scripts/build_demo_engines.py [BUNDLE] [--sms sm86,sm89,sm120] [--context 2048] [--segment-layers 4]

Works on a copy in a temporary folder unless --keep DIR is given. Needs edgeprec[export,tensorrt].
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from pathlib import Path

from edgeprec.bundle import Bundle
from edgeprec.bundle_verify import verify_bundle
from edgeprec.cli.cache import cache_folder
from edgeprec.engine_file import EngineFile
from edgeprec.export.progress import ProgressEvent
from edgeprec.export.tensorrt import EngineSettings, build_engines
from edgeprec.tensorrt_library import parse_sms


def main() -> None:
    """Build, verify and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", nargs="?", type=Path, default=cache_folder() / "smollm2-135m.edgeprec")
    parser.add_argument("--sms", default="sm86,sm89,sm120")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--segment-layers", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="where the copy with its engines goes")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgeprec-") as scratch:
        root = flags.keep or Path(scratch, flags.bundle.name)
        shutil.copytree(flags.bundle, root)
        settings = EngineSettings(
            sms=parse_sms(flags.sms), context_tokens=flags.context, layers_per_segment=flags.segment_layers
        )
        start = time.monotonic()
        bundle = build_engines(Bundle.open(root), settings, progress=show)
        print(f"\nbuilt in {time.monotonic() - start:.0f} s, at most {peak_mib():,} MiB")
        report(bundle)


def show(event: ProgressEvent) -> None:
    """Print one line a segment."""
    if not event.detail.partition(": ")[2].startswith("Building"):
        return
    print(f"{event.stage}: {event.done + 1} of {event.total}, {event.detail}", flush=True)


def report(bundle: Bundle) -> None:
    """Print the engines and the bytes of each segment beside those of its weights."""
    for engine in bundle.to_summary()["engines"]:
        print(engine)
    for name in sorted({engine.file for engine in bundle.manifest.engines}):
        plans = EngineFile.open(bundle.path(name)).header.plans
        for place in plans:
            ratio = place.length_bytes / place.weight_bytes
            print(f"{place.segment.name:>20} {place.length_bytes:>12,} {place.weight_bytes:>12,} {ratio:.2f}")
        total, weights = sum(place.length_bytes for place in plans), sum(place.weight_bytes for place in plans)
        print(f"{name}: {total:,} bytes for {weights:,} bytes of weights, {total / weights:.3f}")
    verify_bundle(Bundle.read_manifest(bundle.root)).require()
    print("every byte verified")


def peak_mib() -> int:
    """Return the most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


if __name__ == "__main__":
    main()
