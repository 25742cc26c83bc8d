"""Every Triton kernel builds for GPUs that are not here, in few registers and without spills."""

import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from rvtssm.ssm import scan_triton  # noqa: E402

TARGETS = [*(GPUTarget("cuda", arch, 32) for arch in (75, 90, 100)), GPUTarget("hip", "gfx942", 64)]
KERNELS = (scan_triton._forward, scan_triton._backward)
# precision of the products, of the recurrence, complex numbers, a decay that varies by step
VARIANTS = [("bf16", "fp32", True, False), ("fp32", "fp32", True, True)]
MOST_REGISTERS = 168  # so that three programs of four warps fit a multiprocessor of 64 Ki registers


def build(kernel, target: GPUTarget, products: str, recurrence: str, is_complex: bool, varies: bool):
    constants = {"IS_COMPLEX": is_complex, "VARIES": varies, "SEQUENCES": 8, "MODES": 64}
    pointers = {"x": products, "grad": products}
    tensors = (*pointers, "decay", "carried", "before", "sums")
    signature = {
        name: "constexpr" if name in constants else f"*{pointers.get(name, recurrence)}" if name in tensors else "i32"
        for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=target, options={"num_warps": 4})


def usage(built, tmp_path: Path) -> tuple[int, int]:
    """Registers of a thread, and bytes or registers that are spilled to memory."""
    if "amdgcn" in built.asm:
        (registers,) = re.findall(r"\.vgpr_count:\s+(\d+)", built.asm["amdgcn"])
        spilled = re.findall(r"\.[sv]gpr_spill_count:\s+(\d+)", built.asm["amdgcn"])
        return int(registers), sum(map(int, spilled))
    (tmp_path / "kernel.cubin").write_bytes(built.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command: list[str | Path] = [tool, "-res-usage", tmp_path / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = re.findall(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)[-1]
    return int(registers), int(stack) + int(local)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(("target", "variant"), [*zip(TARGETS, VARIANTS * 2, strict=True)], ids=str)
def test_a_kernel_builds_for_a_gpu_that_is_not_here(tmp_path, kernel, target, variant):
    registers, spilled = usage(build(kernel, target, *variant), tmp_path)
    assert 0 < registers <= MOST_REGISTERS
    assert spilled == 0
