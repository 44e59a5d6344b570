"""Compile the attention kernels for GPUs that need not be here: what the compiler refuses, the interpreter lets pass.

    python scripts/compile_attention.py [--sm 80,87,90]

Prints one line per kernel and GPU: whether values left the registers. Ends with exit code 1 where the compiler refuses
a kernel.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from edgeprec.kernels.triton_attention import attention_join_kernel, attention_kernel

HEADS = {"8b": (32, 8, 128), "1b": (32, 8, 64), "135m": (9, 3, 64)}  # of queries, of keys, width of one
TYPES = {
    **dict.fromkeys(("q_ptr", "keys_ptr", "values_ptr", "out_ptr"), "*fp16"),
    **dict.fromkeys(("cos_ptr", "sin_ptr", "q_norm_ptr", "k_norm_ptr", "parts_ptr", "sums_ptr"), "*fp32"),
    **dict.fromkeys(("positions_ptr", "arrived_ptr"), "*i32"),
    **dict.fromkeys(("rows_per_sequence", "capacity", "max_splits"), "i32"),
    **dict.fromkeys(("scale", "eps"), "fp32"),
}


def main() -> int:
    """Compile, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sm", default="80,87,90", help="compute capabilities, comma-separated")
    failed = False
    for capability in (int(text) for text in parser.parse_args().sm.split(",")):
        for name, kernel, fixed in kernels(capability):
            try:
                spilled = ".local" in compiled(kernel, fixed, capability).asm["ptx"]
            except RuntimeError as error:
                failed = True
                print(f"sm_{capability} {name}: {str(error).partition(chr(10))[0]}")
            else:
                print(f"sm_{capability} {name}: {'spills' if spilled else 'ok'}")
    return int(failed)


def kernels(capability: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return names, kernels and compile-time values."""
    found: list[tuple[str, Any, dict[str, Any]]] = []
    has_pdl = capability >= 90
    for name, (heads, kv_heads, width) in HEADS.items():
        shape = {"HEADS": heads, "WIDTH": width, "D": width, "CHUNK": 16, "USE_PDL": has_pdl}
        tile = {"KV_HEADS": kv_heads, "SLOTS": 16, "BLOCK": 64, "STEPS": 2, "HAS_NORM": False}
        for new_rows, joins in ((0, False), (0, True), (1, True), (16, True), (16, False)):
            fixed = shape | tile | {"NEW_ROWS": new_rows, "JOINS": joins}
            found.append((f"{name} attention, new rows {new_rows}, joins {joins}", attention_kernel, fixed))
        found.append((f"{name} join", attention_join_kernel, shape | {"SPLIT": 128}))
    return found


def compiled(kernel: Any, fixed: dict[str, Any], capability: int) -> Any:
    """Return Triton's compiled kernel; pointers are aligned to 16 bytes, as torch's are."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else TYPES[name] for name in names}
    aligned = {
        (index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if signature[name].startswith("*")
    }
    constants = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": 4, "launch_pdl": capability >= 90}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


if __name__ == "__main__":
    sys.exit(main())
