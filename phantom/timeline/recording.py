"""A finished run as the reports see it: summary.json and, where it was recorded, the detail."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from netsim.outside import OutsideError, read_json
from phantom.results.run_summary import Summary, summary_from
from phantom.timeline.collectives import Collective, Group, by_member, read_all
from phantom.timeline.links import LinkRecord
from phantom.timeline.spool import NothingRecorded, RankSpool, read_rank

SPOOL = "spool"
COLLECTIVES = "collectives.msgpack"


class NoRun(ValueError):
    """The folder holds no finished run; the text says what is missing."""


@dataclass(frozen=True)
class Recording:
    """`ranks` holds the recorded ranks only.

    `without_record`: ranks that were to record but were killed before they had written anything. `gaps` says
    what else of the record is missing, a sentence each.
    """

    folder: Path
    summary: Summary
    ranks: dict[int, RankSpool] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    links: LinkRecord = field(default_factory=LinkRecord)
    without_record: tuple[int, ...] = ()
    gaps: tuple[str, ...] = ()

    @cached_property
    def collectives_of(self) -> dict[tuple[int, int], list[Collective]]:
        """Collectives by (rank, node id)."""
        return by_member(self.collectives)

    @cached_property
    def collectives_by_rank(self) -> dict[int, list[Collective]]:
        """Collectives that a rank takes part in, by start time."""
        index: dict[int, list[Collective]] = {}
        for collective in self.collectives:
            for rank in dict.fromkeys(collective.ranks):
                index.setdefault(rank, []).append(collective)
        return index

    @cached_property
    def number_of(self) -> dict[int, int]:
        """A number from 1 for each collective object (by its id()), the same for all its members."""
        return {id(collective): number for number, collective in enumerate(self.collectives, start=1)}

    @property
    def step_indices(self) -> list[int]:
        """Steps that were recorded on every recorded rank, ascending."""
        if not self.ranks:
            return []
        common = set.intersection(*({step.index for step in spool.steps} for spool in self.ranks.values()))
        return sorted(common)

    @property
    def extent(self) -> str:
        """Which steps and ranks were recorded, for messages."""
        if not self.ranks:
            return "no rank recorded anything"
        steps, ranks = self.step_indices, sorted(self.ranks)
        held = f"steps {steps[0]} to {steps[-1]}" if steps else "no whole step"
        return f"recorded: {held} of {len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"

    @property
    def counted_bounds_ps(self) -> tuple[int, int] | None:
        """Begin and end of the recorded steps that count: all but step 0 where there are more."""
        indices = self.step_indices
        counted = [index for index in indices if index > 0] or indices
        if not counted:
            return None
        return self.step_bounds_ps(counted[0])[0], self.step_bounds_ps(counted[-1])[1]

    def step_bounds_ps(self, index: int) -> tuple[int, int]:
        """Begin and end of a recorded step over all recorded ranks.

        It ends with its last rank and begins where the one before ended (step 0: with the first kernel).
        """
        ends = [step.end_ps for spool in self.ranks.values() if (step := spool.step(index)) is not None]
        before = [step.end_ps for spool in self.ranks.values() if (step := spool.step(index - 1)) is not None]
        begins = [step.begin_ps for spool in self.ranks.values() if (step := spool.step(index)) is not None]
        if not ends:
            raise KeyError(f"step {index} was not recorded")
        if before:
            return max(before), max(ends)
        return (max(begins) if index > 0 else min(begins)), max(ends)


def read_summary(folder: Path) -> Summary:
    """The summary.json of a run's folder. Raises NoRun where there is none that this program can read."""
    path = folder / "summary.json"
    if not path.exists():
        missing = "it is not a folder" if folder.exists() else "no such folder"
        reason = "no summary.json in it" if folder.is_dir() else missing
        raise NoRun(f"{folder} is not a finished run: {reason}")
    try:
        content = read_json(path)
    except OutsideError as error:
        raise NoRun(f"{error}; simulate the job again") from None
    try:
        return summary_from(content, name=str(path))
    except OutsideError as error:
        raise NoRun(str(error)) from None


def load(folder: Path, *, detail: bool = True) -> Recording:
    """Reads a run's folder; without `detail` only the summary.

    Raises NoRun where there is no readable summary.json, SpoolError for damaged detail.
    """
    summary = read_summary(folder)
    spool = folder / SPOOL
    if not detail or not spool.is_dir():
        return Recording(folder, summary)
    ranks, empty, gaps = {}, [], []
    for file in sorted(spool.glob("rank-*.msgpack")):
        try:
            read = read_rank(file)
        except NothingRecorded:
            empty.append(int(file.stem.rpartition("-")[2]))
        else:
            ranks[read.rank] = read
            if not read.whole:
                gaps.append(f"the record of rank {read.rank} ends early ({file}): what came later is missing")
    log = read_all(spool / COLLECTIVES)
    if ranks and not log.whole:
        gaps.append(
            f"the record of collectives and links is not complete ({spool / COLLECTIVES}): what it lacks "
            "is missing in page, timeline and exports"
        )
    return Recording(
        folder, summary, dict(sorted(ranks.items())), log.groups, log.collectives, log.links,
        tuple(sorted(empty)), tuple(gaps),
    )  # fmt: skip
