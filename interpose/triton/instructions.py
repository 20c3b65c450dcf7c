"""How many fp32 additions an operation of a Triton kernel is worth, per element.

Throughputs per multiprocessor and clock from the CUDA C++ Programming Guide, "Throughput of Native Arithmetic
Instructions" (compute capability 8.0 and 9.0): 32-bit additions and products 64 or 128, special functions 16,
conversions 16 to 64. Library functions as the instructions that libdevice's code takes, counted roughly.
"""

from __future__ import annotations

import re

from interpose.triton.ir import Operation

_SPECIAL = 8.0  # 16 of 128 lanes
_WEIGHTS = {
    "arith.divf": 8.0, "arith.remf": 16.0,
    "math.exp": 9.0, "math.exp2": _SPECIAL, "math.log": 9.0, "math.log2": _SPECIAL, "math.sqrt": _SPECIAL,
    "math.rsqrt": _SPECIAL, "math.sin": 12.0, "math.cos": 12.0, "math.erf": 24.0, "math.tanh": 20.0,
    "tt.precise_sqrt": 10.0, "tt.precise_divf": 10.0,
    "arith.divsi": 4.0, "arith.divui": 4.0, "arith.remsi": 5.0, "arith.remui": 5.0,
    "tt.reduce": 2.0, "tt.scan": 6.0, "tt.histogram": 8.0, "tt.gather": 4.0,
    "arith.truncf": 1.0, "arith.extf": 0.5, "arith.sitofp": 2.0, "arith.uitofp": 2.0, "arith.fptosi": 2.0,
    "arith.fptoui": 2.0, "tt.fp_to_fp": 1.0, "arith.select": 1.0,
}  # fmt: skip
# Integer work on tiles is mostly addresses, which the compiler folds into vector accesses.
_FREE = frozenset(
    [
        *("arith.constant", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.make_range", "tt.reshape"),
        *("tt.trans", "tt.addptr", "tt.load", "tt.store", "tt.dot", "tt.dot_scaled", "scf.for", "scf.while"),
        *("scf.if", "tt.call", "arith.extsi", "arith.extui", "arith.trunci", "tt.bitcast", "arith.bitcast"),
        *("tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_store", "gpu.barrier"),
        *("tt.make_tensor_descriptor", "tt.get_program_id", "tt.get_num_programs"),
    ]
)
_LIBRARY = {
    "exp": 10.0, "log": 12.0, "erf": 24.0, "tanh": 20.0, "pow": 40.0, "rsqrt": 8.0, "sqrt": 8.0, "fabs": 1.0,
    "abs": 1.0, "floor": 1.0, "ceil": 1.0, "rint": 1.0, "fma": 1.0, "sin": 20.0, "cos": 20.0, "tan": 24.0,
    "atan": 24.0, "log1p": 20.0, "expm1": 16.0, "isinf": 1.0, "isnan": 1.0, "max": 1.0, "min": 1.0,
    "signbit": 1.0,
}  # fmt: skip


def instruction_weight(operation: Operation) -> float:
    """Additions per element of the operation's largest tile."""
    name = operation.name
    if name in _FREE:
        return 0.0
    if name in _WEIGHTS:
        return _WEIGHTS[name]
    if name == "tt.extern_elementwise":
        match = re.search(r'symbol = "__nv_(\w+?)f?"', operation.text)
        return _LIBRARY.get(match.group(1), 20.0) if match else 20.0
    if name.startswith("arith.") and name.endswith("i"):
        return 0.25
    return 1.0
