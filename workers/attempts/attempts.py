"""What is known of each request's attempts, and what follows: who may begin, who is suspected, who is given up.

Knows this worker's requests from their record to their terminal reply: which attempt it is, how far it is noted to have
come. Does not know Kafka (`topics.progress_journal`), text, or why a crash counts (`topics.attempt_notes`).

- A request is **begun** when the scheduler hands it out to be prepared and run. Its note is written while its prompt is
  tokenised, one batched write for all that are handed out in a turn, and it goes on when both are done. So only what a
  worker has begun can be blamed for its end, and on an idle machine nobody waits longer than the acknowledgement. Of
  what may have been begun before the note comes first (`workers.attempts.inherited`).
- While it runs, notes say how far it has come: of a suspect as soon as it has come further than ever before, which
  clears it; of others now and then. What is noted so survives a crash without suspicion.
- Who was running at a crash is a **suspect** (`workers.attempts.suspects`); one that three crashes count against is
  given up.
- Partitions that are given back in order leave no blame: a last note says that nobody runs the request. What is run all
  the same, in case the partition comes back, is carried (`workers.attempts.carried`).

Owned by the event loop; `stage` is the engine thread's, `staged` the staging thread's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from scheduling.priority import PriorityClass
from topics.assignment import PartitionEpoch
from topics.attempt_notes import AttemptNote, PriorAttempts
from topics.progress_journal import ProgressJournal
from topics.record import RecordId
from workers.answers.reply_stream import StreamStart
from workers.attempts.begun import Begun, LastWords
from workers.attempts.carried import Carried
from workers.attempts.certain_start import CertainStart
from workers.attempts.inherited import Inherited
from workers.attempts.note_writing import NoteWriting
from workers.attempts.start_gate import ArrivalKey, StartGate, arrival_key
from workers.attempts.start_queue import StartQueue
from workers.attempts.suspects import Suspects
from workers.intake.request import Arrival
from workers.intake.staging import Refused, Staged, StageJob

__all__ = ["MOST_CRASHES", "AttemptStatistics", "Attempts"]

log = logging.getLogger(__name__)

MOST_CRASHES = 3
"""A request that so many crashes count against is given up."""
_NOTE_EVERY_S = 0.5
"""Of a request that nobody suspects: what it does within this time before a crash makes it a suspect."""


@dataclass(frozen=True, slots=True)
class AttemptStatistics:
    begun: int
    """Not ended."""
    suspects: int
    repeated: int
    """Attempts that were not the first, since the start."""
    given_up: int


class Attempts:
    def __init__(
        self,
        journal: ProgressJournal,
        *,
        accept: Callable[[Arrival], None],
        resume: Callable[[Arrival], None],
        drop: Callable[[frozenset[RecordId]], None],
        stage: Callable[[StageJob], None],
        let_in: Callable[[Staged | Refused], None],
        go_on: Callable[[Staged], None],
        give_up: Callable[[Arrival, PriorAttempts], None],
        answered: Callable[[Arrival, PriorAttempts | None], bool],
        on_broken: Callable[[BaseException], None],
        call_soon: Callable[[Callable[[], None]], object],
        full: Callable[[PriorityClass], bool],
        certain: Callable[[PriorityClass], bool],
        log_end: Callable[[Arrival], int | None],
        carries: bool = True,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`accept` queues an arrival in the engine, `stage` has its prompt prepared, `let_in` hands the prompt on;
        `go_on`, in its place, of a stream that an earlier attempt has begun. `resume`, in the place of `accept`: it may
        be running, since before its partition was taken away; `drop`: of these nobody wants that any more. `answered`:
        that attempt has its answer, and it is given now. `call_soon`: on the event loop, from any thread. `on_broken`:
        the journal takes nothing any more. `full`: no more records of the class come for now. `certain`: its partitions
        are still this worker's, for sure. `log_end`: of the arrival's partition, as far as is known. `carries`: what
        runs goes on while its partition is away."""
        self._journal = journal
        self._notes = NoteWriting(journal, on_broken)
        self._accept = accept
        self._resume = resume
        self._carries = carries
        self._let_in = let_in
        self._go_on = go_on
        self._give_up = give_up
        self._answered = answered
        self._call_soon = call_soon
        self._full = full
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._gate = StartGate(let_in, self._run_again)
        self._suspects = Suspects()
        self._last_of: dict[tuple[str, int], ArrivalKey] = {}
        """The newest record of each partition that is this worker's."""
        self._prior: dict[ArrivalKey, PriorAttempts] = {}
        """Of arrivals that were not begun here yet."""
        self._begun: dict[ArrivalKey, Begun] = {}
        self.carried = Carried(self._begun, drop)
        self._inherited = Inherited(stage, log_end)
        self._start = CertainStart(
            *(self._gate, self._notes, journal, self._begun, self.carried),
            certain=certain,
            on_noted=self._inherited.noted,
            on_broken=on_broken,
        )
        self._on_its_way: dict[RecordId, tuple[Arrival, PriorAttempts | None] | None] = {}
        """Whose terminal reply is being delivered. Not None: its record has come back meanwhile."""
        self._asked: dict[ArrivalKey, list[StageJob]] = {}
        """Sequences of arrivals whose attempt is not written yet."""
        self._due = StartQueue(journal, call_soon=call_soon, begin=self._begin_due, emptied=self._begin_held)
        self._repeated = self._given_up = 0

    # --- a record comes ---------------------------------------------------------------------------------------------

    def take(self, arrival: Arrival) -> None:
        """It goes on, waits for what becomes of its answer, or is taken up anew."""
        prior, place = self._journal.prior(arrival.id), (arrival.id.topic, arrival.id.partition)
        if place not in self._last_of:
            self._inherited.first(arrival)
        self._last_of[place] = arrival_key(arrival)
        goes_on = self.carried.come(arrival.id)
        if goes_on is not None and self.carried.renew(goes_on, arrival, prior):
            self._notes.write_again(goes_on)
            self._resume(arrival)
            return
        if arrival.id in self._on_its_way:
            # Under an assignment that is over. Whether it gets out, or can be given again, is known soon.
            self._on_its_way[arrival.id] = (arrival, prior)
        else:
            self._take(arrival, prior)

    def _take(self, arrival: Arrival, prior: PriorAttempts | None) -> None:
        """Queue it, keep it until its turn comes, give it up, or give the answer that it has."""
        if self._answered(arrival, prior):
            self._queue_suspects()
            return
        if prior is None:
            self._accept(arrival)
            if len(self._suspects):
                self._queue_suspects()
            return
        self._prior[arrival_key(arrival)] = prior
        if prior.crashes >= MOST_CRASHES:
            self._given_up += 1
            self._suspects.give_up(arrival_key(arrival))
            self._give_up(arrival, prior)
        elif prior.crashes:
            self._suspects.add(arrival, prior.crashes)
        else:
            self._accept(arrival)
        self._queue_suspects()

    # --- it is begun ------------------------------------------------------------------------------------------------

    def stage(self, job: StageJob) -> None:
        """The engine's: this request is to be prepared and run."""
        self._inherited.put(job)
        self._due.put(job)

    def staged(self, message: Staged | Refused) -> None:
        """The staging thread's: its prompt is prepared, or can't be."""
        self._gate.staged(message)

    def _begin_due(self, job: StageJob) -> None:
        """There is room for its note."""
        arrival, key = job.arrival, arrival_key(job.arrival)
        if not self._is_ours(key):
            # The engine had not heard yet that the partition has gone: a note would stand in another's way.
            self._drop(job)
            return
        asked = self._asked.setdefault(key, [])
        asked.append(job)
        if key in self._begun:
            self._open(key)  # with another of its sequences
        elif len(asked) == 1:
            prior = self._prior.get(key)
            if prior is None or not prior.crashes or self._suspects.may_begin(arrival):
                self._begin(arrival)

    def _begin_held(self) -> None:
        """The suspect whose turn it is, if it has been handed out."""
        if not len(self._suspects):
            return
        if not self._journal.has_room:
            self._due.look_when_there_is_room()
        elif (held := self._suspects.take_held()) is not None:
            self._begin(held)

    def _is_ours(self, key: ArrivalKey) -> bool:
        record, epoch = key
        newest = self._last_of.get((record.topic, record.partition))
        return newest is not None and newest[1] == epoch

    def _withdraw(self, key: ArrivalKey) -> None:
        """What ended, or went to another worker, before it was begun never begins: nothing would take its note away."""
        asked = self._asked.pop(key, None)
        for job in (*self._due.withdraw(key), *(asked or ())):
            self._drop(job)
        if asked is not None:
            self._suspects.withdraw(key)

    def _drop(self, job: StageJob) -> None:
        if not self._inherited.drop(job):
            self._gate.dropped(job)

    def _withdraw_all(self, whose: Callable[[ArrivalKey], bool] = lambda _: True) -> None:
        for key in [key for key in (*self._due.keys(), *self._asked) if whose(key)]:
            self._withdraw(key)

    def _begin(self, arrival: Arrival) -> None:
        key = arrival_key(arrival)
        prior = self._prior.pop(key, None)
        if prior is None:
            note = AttemptNote(attempt=1, begun_ms=self._wall_ms())
        else:
            note = prior.next()
            self._repeated += 1
        written = self._notes.write(arrival, note)
        if written is None:
            return
        self._begun[key] = Begun(arrival, note, self._monotonic_s(), written, suspect=note.crashes > 0)
        self._open(key)

    def _open(self, key: ArrivalKey) -> None:
        """Let in what is asked for when the attempt's note is acknowledged."""
        begun = self._begun[key]
        for job in self._asked.pop(key, ()):
            self._start.when_noted(job, begun)

    def confirmed(self) -> None:
        """A group has just said that this worker is a member, and so that a class's partitions are its own."""
        self._start.confirmed()

    def _run_again(self, message: Staged | Refused) -> None:
        """On either thread."""
        if isinstance(message, Staged) and message.prepared.stream:
            self._call_soon(partial(self._go_on, message))
        else:
            self._let_in(message)

    # --- it runs ----------------------------------------------------------------------------------------------------

    def number(self, arrival: Arrival) -> int:
        """Which attempt this is."""
        key = arrival_key(arrival)
        if (begun := self._begun.get(key)) is not None:
            return begun.note.attempt
        prior = self._prior.get(key)
        return 1 if prior is None else prior.note.attempt + 1

    def begun_ms(self, arrival: Arrival) -> int:
        """When its first attempt began; now, where that is not known any more."""
        begun = self._begun.get(arrival_key(arrival))
        return self._wall_ms() if begun is None else begun.note.begun_ms

    def reached(self, arrival: Arrival) -> int:
        """Tokens that earlier attempts are noted to have come to."""
        begun = self._begun.get(arrival_key(arrival))
        return 0 if begun is None else begun.note.reached

    def starts(self, arrival: Arrival, start: StreamStart) -> None:
        """It takes its stream up there. What was told before is no progress of this attempt."""
        begun = self._begun.get(arrival_key(arrival))
        if begun is not None:
            begun.start = start
            begun.note = replace(begun.note, reached=max(begun.note.reached, len(start.token_ids)))

    def start_of(self, arrival: Arrival) -> StreamStart:
        begun = self._begun.get(arrival_key(arrival))
        return StreamStart() if begun is None else begun.start

    def progressed(self, arrival: Arrival, tokens: int) -> None:
        """So many tokens of the answer are there."""
        begun = self._begun.get(arrival_key(arrival))
        if begun is None or begun.ending or tokens <= begun.note.tokens or self.carried.is_away(begun):
            return
        begun.tokens = tokens
        now_s = self._monotonic_s()
        clears = begun.suspect and tokens > begun.note.reached and not begun.note.got_on
        if not clears and now_s < begun.noted_s + _NOTE_EVERY_S:
            return
        if not self._journal.has_room or not begun.written.done():
            return  # the next token comes soon
        written = self._notes.write(arrival, replace(begun.note, tokens=tokens))
        if written is None:
            return
        begun.note, begun.noted_s, begun.written = replace(begun.note, tokens=tokens), now_s, written
        if begun.suspect:
            begun.written.add_done_callback(partial(self._on_noted, begun))

    def _on_noted(self, begun: Begun, written: "asyncio.Future[RecordId]") -> None:
        if not written.cancelled() and written.exception() is None and begun.note.got_on:
            # A crash from now on is somebody else's, or is not counted: the next suspect may begin.
            begun.suspect = False
            self._next_suspect(arrival_key(begun.arrival))

    # --- it ends ----------------------------------------------------------------------------------------------------

    def ending(self, arrival: Arrival) -> LastWords:
        """Its terminal reply is on its way: nothing more is noted."""
        key = arrival_key(arrival)
        self._on_its_way.setdefault(arrival.id, None)
        self._withdraw(key)
        begun = self._begun.get(key)
        if begun is not None:
            begun.ending = True
            written = None if begun.written.done() else begun.written
            return LastWords((self._journal.tombstone(arrival.id, begun.note.attempt),), written)
        # It ended before it was begun here; somebody may have begun it elsewhere.
        return self._last_of_prior(arrival.id, self._prior.pop(key, None))

    def refused(self, record: RecordId) -> LastWords:
        """The record that was just handed out will be no arrival."""
        if (goes_on := self.carried.come(record)) is not None:
            self.carried.give_up([goes_on])
        return self._last_of_prior(record, self._journal.prior(record))

    def _last_of_prior(self, record: RecordId, prior: PriorAttempts | None) -> LastWords:
        return LastWords() if prior is None else LastWords((self._journal.tombstone(record, prior.note.attempt),))

    def settled(self, record: RecordId, epoch: int) -> None:
        """Its terminal reply is delivered, or another's to give, or kept in case its record comes back."""
        key = (record, epoch)
        if (begun := self._begun.pop(key, None)) is not None:
            self.carried.ended(begun)
        self._next_suspect(key)
        came_back = self._on_its_way.pop(record, None)
        if came_back is not None and self._is_ours(arrival_key(came_back[0])):
            self._take(*came_back)

    def revoke(self, partition: PartitionEpoch, cut: Collection[RecordId] = ()) -> None:
        """The partition is given back. What is begun of it goes on, in case it returns; suspects, `cut` and what has
        several sequences do not. See `given_back`."""
        self._journal.forget(partition.topic, partition.partition)
        self._suspects.forget(partition.topic, partition.partition)

        def was_of(key: ArrivalKey) -> bool:
            return (key[0].topic, key[0].partition, key[1]) == partition

        self._withdraw_all(was_of)
        newest = self._last_of.get((partition.topic, partition.partition))
        if newest is not None and was_of(newest):
            del self._last_of[partition.topic, partition.partition]
        waiting = self._start.take_waiting()
        going_on: list[Begun] = []
        dropped: list[Begun] = []
        for key in [key for key in (*self._begun, *self._prior) if was_of(key)]:
            self._prior.pop(key, None)
            begun = self._begun.get(key)
            if begun is not None:
                self._notes.write_last(begun)
                goes_on = self._carries and begun.may_go_on and key[0] not in cut
                (going_on if goes_on else dropped).append(begun)
            self._next_suspect(key)
        self.carried.give_up(dropped)
        self.carried.leave(partition.topic, partition.partition, going_on)
        self._start.look_again(waiting)

    def give_back(self) -> None:
        """The worker ends in order, with all that it has not answered; its engine has stopped."""
        self._withdraw_all()
        for begun in self._begun.values():
            if not self.carried.is_away(begun):
                self._notes.write_last(begun)

    async def given_back(self) -> None:
        """Return when the last notes of what was given back are acknowledged."""
        await self._notes.given_back()

    # --- suspects ---------------------------------------------------------------------------------------------------

    def _queue_suspects(self) -> None:
        for arrival in self._suspects.take_for_engine(self._may_go):
            self._accept(arrival)

    def _may_go(self, arrival: Arrival, crashes: int) -> bool:
        fewest = self._journal.fewest_crashes_left(arrival.id.topic, arrival.id.partition)
        return fewest is None or fewest >= crashes or self._full(arrival.origin_class)

    def _next_suspect(self, key: ArrivalKey) -> None:
        if not len(self._suspects):
            return
        self._suspects.leave(key)
        self._queue_suspects()
        self._begin_held()

    def statistics(self) -> AttemptStatistics:
        return AttemptStatistics(len(self._begun), len(self._suspects), self._repeated, self._given_up)
