"""The head kernels go through the compiler for the GPUs they are made for; the interpreter would not notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from edgeprec.kernels.triton_head import head_join_kernel, head_parts_kernel

capability = {capability}
for kernel, block in ((head_parts_kernel, 2048), (head_join_kernel, 64)):
    fixed = {{"BLOCK": block, "USE_PDL": capability >= 90}}
    types = {{"logits_ptr": "*fp16", "index_ptr": "*i32", "argmax_ptr": "*i32"}}
    types |= dict.fromkeys(("parts_ptr", "margin_ptr", "entropy_ptr"), "*fp32")
    types |= dict.fromkeys(("blocks", "v_size", "row_stride"), "i32") | dict.fromkeys(fixed, "constexpr")
    constants = {{(kernel.arg_names.index(name),): value for name, value in fixed.items()}}
    source = ASTSource(kernel, {{name: types[name] for name in kernel.arg_names}}, constexprs=constants)
    options = {{"num_warps": 4, "launch_pdl": capability >= 90}}
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]
    print(kernel.__name__, "spills" if ".local" in ptx else "ok", "setp.num" in ptx or "0x7C00" in ptx)
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_head_compiles_and_asks_for_nan(capability: int, tmp_path: Path) -> None:
    """In a process of its own, where the interpreter is off: no comparison that finds NaN is optimized away."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(capability=capability)],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["head_parts_kernel ok True", "head_join_kernel ok True"]
