"""How much is tried, and what no example may exceed."""

from __future__ import annotations

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

HANG_S = 5
MEMORY_BYTES = 500 << 20
EXAMPLES = int(os.environ.get("PHANTOM_FUZZ_EXAMPLES", "15"))
"""Per test; `make fuzz` sets more."""

FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=timedelta(seconds=HANG_S),
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
