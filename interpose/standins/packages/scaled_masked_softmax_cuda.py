"""Stand-in of Apex's scaled_masked_softmax kernel."""

from typing import Any

from interpose.standins import softmax
from interpose.standins.surface import missing_names


def forward(scores: Any, mask: Any, scale: Any) -> Any:
    """One kernel over scores and mask."""
    return softmax.forward(scores, mask)


def backward(grad: Any, out: Any, scale: Any) -> Any:
    """In place on the gradient."""
    return softmax.backward(grad, out)


def get_batch_per_block(query_length: int, key_length: int, batches: int, heads: int) -> int:
    """Rows of scores per thread block (scaled_masked_softmax.h): four warps, two rows each up to 128 keys."""
    elements = 1
    while elements < key_length:
        elements *= 2
    warp = min(elements, 32)
    return (128 // warp) * (2 if elements <= 128 else 1)


__getattr__ = missing_names(__name__)
