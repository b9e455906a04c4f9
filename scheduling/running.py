"""The requests that were admitted: how far each is computed, and which hold a sequence slot.

Knows token counts and classes of admitted requests. Does not know blocks, tokens or why somebody was admitted or
evicted. Owned by `scheduling.batch.BatchScheduler` alone: nobody else changes a sequence.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from scheduling.priority import PriorityClass

__all__ = ["RunningSequence", "RunningSet"]


@dataclass(slots=True, eq=False)
class RunningSequence:
    """An admitted request, from its first admission to its end, also while it is preempted."""

    row: int
    service: PriorityClass
    strict: bool
    order: int
    """Counts first admissions: smaller was admitted earlier. A preempted sequence keeps it, and so its place."""
    prompt_tokens: int
    max_output_tokens: int
    """0: it ends with its prompt."""
    predicted_output_tokens: int
    block_names: Sequence[int] = ()
    """Of what its whole blocks contain (`kvcache.block_hash`), a live list that grows with its tokens."""
    computed_tokens: int = 0
    """Tokens whose KV is in the blocks."""
    output_tokens: int = 0
    """Tokens sampled so far."""
    first_token_s: float | None = None
    """When it was sampled."""
    decoding: bool = False
    """The prompt (or the recomputation) is computed, each step gives a token: state DECODE."""
    preemptions: int = 0
    protected_until: int = 0
    """Not a victim again before more tokens than this are computed: what it had when it was last preempted."""
    sat_out: int = 0
    """Steps in a row that a decoding sequence was left out of, for a strict prompt."""
    causer: "RunningSequence | None" = None
    """Of the preemption that it has not come back from: who needed the room, and is charged for the work done twice."""
    gave_up_tokens: int = 0
    """Computed when it was last preempted."""
    swapped: bool = False
    """Its last preemption was by swap."""
    ended: bool = False

    @property
    def known_tokens(self) -> int:
        """Prompt and output: all but the last sampled token are computed in a decoding sequence."""
        return self.prompt_tokens + self.output_tokens

    @property
    def remaining_tokens(self) -> int:
        """Known and not computed."""
        return self.prompt_tokens + self.output_tokens - self.computed_tokens

    @property
    def expected_tokens(self) -> int:
        """What the prediction says it will reach; what is known already, where that is more."""
        return self.prompt_tokens + max(self.predicted_output_tokens, self.output_tokens)

    @property
    def most_computed_tokens(self) -> int:
        """The most that was ever computed of it, counting no token twice."""
        return max(self.computed_tokens, self.protected_until)

    @property
    def protected(self) -> bool:
        return self.preemptions > 0 and self.computed_tokens <= self.protected_until

    def give_up(self, causer: "RunningSequence", *, swapped: bool) -> None:
        """Its blocks are gone."""
        self.preemptions += 1
        self.protected_until = self.most_computed_tokens
        self.gave_up_tokens = self.computed_tokens
        self.causer = causer
        self.swapped = swapped
        self.computed_tokens = 0
        self.decoding = False
        self.sat_out = 0


class RunningSet:
    """The sequences that hold a slot and blocks, in the order of their first admission."""

    def __init__(self) -> None:
        self._sequences: list[RunningSequence] = []
        self._by_row: dict[int, RunningSequence] = {}
        self._strict = 0
        self._counts = [0] * len(PriorityClass)

    def add(self, sequence: RunningSequence) -> None:
        assert sequence.row not in self._by_row, f"row {sequence.row} runs already"
        self._sequences.insert(self._position(sequence.order), sequence)
        self._by_row[sequence.row] = sequence
        self._strict += sequence.strict
        self._counts[sequence.service] += 1

    def remove(self, sequence: RunningSequence) -> None:
        del self._by_row[sequence.row]
        removed = self._sequences.pop(self._position(sequence.order))
        assert removed is sequence, f"rows {removed.row} and {sequence.row} have one place"
        self._strict -= sequence.strict
        self._counts[sequence.service] -= 1

    def demote(self, sequence: RunningSequence, service: PriorityClass) -> None:
        assert sequence.row in self._by_row, f"row {sequence.row} does not run"
        assert not sequence.strict, f"{sequence} is strict"
        self._counts[sequence.service] -= 1
        sequence.service = service
        self._counts[service] += 1

    def count_sat_out(self, computed: Collection[int]) -> None:
        """A step has run, with these rows: how many in a row each decode was left out of."""
        for sequence in self._sequences:
            sequence.sat_out = sequence.sat_out + 1 if sequence.decoding and sequence.row not in computed else 0

    def get(self, row: int) -> RunningSequence | None:
        return self._by_row.get(row)

    def __getitem__(self, row: int) -> RunningSequence:
        return self._by_row[row]

    def __contains__(self, row: int) -> bool:
        return row in self._by_row

    def __iter__(self) -> Iterator[RunningSequence]:
        """In order of admission. The set must not change meanwhile."""
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def strict(self) -> int:
        """How many of them are of strict classes."""
        return self._strict

    def count(self, service: PriorityClass) -> int:
        """How many of them are of this service class."""
        return self._counts[service]

    def _position(self, order: int) -> int:
        return bisect_left(self._sequences, order, key=_order)

    def check_integrity(self) -> None:
        orders = [sequence.order for sequence in self._sequences]
        assert orders == sorted(set(orders)), f"not in order of admission: {orders}"
        assert self._by_row == {sequence.row: sequence for sequence in self._sequences}, "rows and sequences differ"
        assert self._strict == sum(sequence.strict for sequence in self._sequences), "strict sequences miscounted"
        for priority in PriorityClass:
            counted = sum(sequence.service == priority for sequence in self._sequences)
            assert counted == self._counts[priority], f"{counted} of {priority!r} run, {self._counts[priority]} counted"
        for sequence in self._sequences:
            assert sequence.computed_tokens < sequence.known_tokens, f"{sequence}: nothing left to compute"
            if sequence.decoding:
                assert sequence.remaining_tokens == 1, f"{sequence}: a decode has one token to compute"


def _order(sequence: RunningSequence) -> int:
    return sequence.order
