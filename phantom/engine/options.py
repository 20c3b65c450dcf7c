"""Switches of the engine."""

from __future__ import annotations

from dataclasses import dataclass

PS_PER_S = 10**12


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How the engine runs. All real-time limits are seconds of the host's clock, never of virtual time.

    `lookahead`: advance the network ahead of the horizon and roll it back where that was too early. Results
    are the same to the bit either way. `secondary_silence_s`: a thread clock other than the main one that
    has said nothing for so long, while it alone keeps network events from happening, no longer holds the
    horizon. `main_silence_s`: the same for a rank's main clock. `attach_silence_s`: the same for a rank
    that has not attached, from the last record of any rank on (ranks that never use a device never attach;
    others may spend minutes before they do). `stall_silence_s`: with no event left at all, silent secondary
    clocks count as stuck after so long, so that a deadlock is reported although a worker thread's clock was
    never ended. `outside_grace_s`: how long ranks may wait for store keys that no rank has posted before
    that counts as a deadlock (a process outside the job may be about to post them). `join_grace_s`: the same
    where a rank waits for the end of a thread or of a pool's work item, which may itself wait for something
    real (a process that writes a checkpoint, a download). `speculation_events`: bound of the number of events
    kept beyond the horizon.
    """

    lookahead: bool = True
    secondary_silence_s: float = 1.0
    main_silence_s: float = 30.0
    attach_silence_s: float = 300.0
    stall_silence_s: float = 30.0
    outside_grace_s: float = 5.0
    join_grace_s: float = 300.0
    speculation_events: int = 4096
