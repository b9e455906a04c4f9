"""Begin the next step's decodes before this step's books are closed, on a device that computes by itself.

Knows which rows will go on, and for which of them a forward was begun. Does not know models, nor why a plan is what it
is.

Between two steps Python has a millisecond or more to do: close the books, tell the writers, hear what came in, plan. A
GPU would wait for it. So as soon as a step's tokens are known, the forward of those that go on is begun, and everything
else is done while it runs. The next plan is made as if nothing had been begun. Of its chunks those are begun that have
the same row, place and blocks; they are only sampled. The others are a forward of their own behind it. What was begun
for nobody is dropped: it wrote the KV of a known token to where that belongs.

Chosen over planning with tokens that aren't known yet (asynchronous scheduling): turn, plan and books stay what they
are, and every kind of sampling goes, for it is done when the plan is there.

Drawbacks: what arrives meanwhile waits for one step of decodes more, and its prompt and those decodes are two forwards
instead of one. That is why nothing is begun while a prompt is in the middle: its next piece belongs into one forward
with the decodes. Nor where a block is short: who has to give way is the plan's to say.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvcache.manager import KVCacheManager
from scheduling.plan import Chunk
from workers.runners.errors import OutOfMemory
from workers.runners.runner import SequenceInput
from workers.runners.split_forward import SplitForward

__all__ = ["AheadRunner", "BegunChunk", "RunAhead"]

log = logging.getLogger(__name__)


@runtime_checkable
class AheadRunner(Protocol):
    @property
    def computes_by_itself(self) -> bool:
        """Whether a forward goes on by itself once it was begun."""
        ...

    def begin(self, sequences: Sequence[SequenceInput]) -> None:
        """Begin a forward of sequences that all sample. The next `step` names those it wants by
        `SequenceInput.begun`. Raises `OutOfMemory`: nothing was begun."""
        ...


@dataclass(frozen=True, slots=True)
class BegunChunk:
    place: int
    """In what was begun."""
    guess: Sequence[int]
    """Computed behind its token."""


@dataclass(frozen=True, slots=True)
class _Begun:
    chunk: Chunk
    block_ids: tuple[int, ...]
    taken: BegunChunk


class RunAhead:
    """Owned by the engine thread."""

    def __init__(
        self, runner: AheadRunner, forward: SplitForward, kv: KVCacheManager, clock: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._forward = forward
        self._kv = kv
        self._clock = clock
        self._begun: dict[int, _Begun] = {}
        self.begun_s = 0.0
        """When the latest was."""
        self.used = self.dropped = 0
        """Chunks that were begun: how many a plan wanted, and how many none did."""

    def make_room(self, chunks: Sequence[Chunk]) -> bool:
        """Give each chunk's sequence the block that it needs next, as the next plan would; False: there are too few."""
        short = [chunk for chunk in chunks if len(self._kv.table(chunk.row)) * self._kv.block_size <= chunk.start]
        if self._kv.free_blocks < len(short):
            return False
        for chunk in short:
            grown = self._kv.grow(chunk.row, chunk.start + 1)
            assert grown, f"{self._kv.free_blocks} blocks were free, and {chunk} got none"
        return True

    def begin(self, chunks: Sequence[Chunk], inputs: Sequence[SequenceInput]) -> None:
        """Decodes that come next, if nothing comes between."""
        assert not self._begun, f"{self._begun} is begun and was asked for by no plan"
        if self._forward.most_tokens is not None:
            return  # the device is short of memory: steps are cut
        self.begun_s = self._clock()
        try:
            self._runner.begin(inputs)
        except OutOfMemory as fault:
            log.info("the next step is not begun ahead: %s", fault)
            return
        self._begun = {
            chunk.row: _Begun(chunk, tuple(sequence.block_ids), BegunChunk(place, sequence.guess))
            for place, (chunk, sequence) in enumerate(zip(chunks, inputs, strict=True))
        }

    def take(self, chunks: Sequence[Chunk]) -> Mapping[int, BegunChunk] | None:
        """Of a plan's chunks those that were begun, by place in the plan; None if nothing was."""
        if not self._begun:
            return None
        begun, self._begun = self._begun, {}
        wanted: dict[int, BegunChunk] = {}
        for place, chunk in enumerate(chunks):
            one = begun.get(chunk.row)
            if one is not None and one.chunk == chunk and one.block_ids == tuple(self._kv.table(chunk.row)):
                wanted[place] = one.taken
        self.used += len(wanted)
        self.dropped += len(begun) - len(wanted)
        return wanted
