"""A crowd of requests on an engine with a real runner: what each of them said, and what was done to it meanwhile."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvcache.block_hash import BlockHasher
from kvcache.storage import CopyTiming, KVStorage, SwapSpace
from kvcache.swap_plan import BlockCopy, Direction
from scheduling.preemption_rules import PreemptionMode
from scheduling.priority import PriorityClass
from scheduling.step_time import LinearStepTime
from scheduling.swap_rule import SwapRates
from tests.workers.engine.engine_rig import letter_detokenizer
from topics.headers import RequestHeaders
from topics.record import RecordId
from workers.bench.recorded_steps import RecordingRunner
from workers.configuration.config import EngineConfig
from workers.configuration.kv_config import KVConfig, PreemptionConfig
from workers.configuration.scheduling_config import SchedulingConfig
from workers.engine.assembly import Assembly, assemble, engine_inbox
from workers.engine.messages import Dropped, Revoked
from workers.engine.outbox import Outbox
from workers.engine.run_ahead import AheadRunner
from workers.engine.timeline import Timeline
from workers.intake.embedding import EmbeddingForm
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import Arrival
from workers.intake.sampling import SamplingParams
from workers.intake.staging import Staged, StageJob
from workers.runners.runner import Embedding, ModelRunner, SequenceInput
from workers.runners.swap_space import BlockSwapper, SwapPool
from workers.runs.simulated_runner import VirtualClock

REVOKED_PARTITION = 1
SMALL_POOL = 14
"""Blocks: far too few for eight requests."""
LARGE_POOL = 200
OFTEN = 1.2
"""Evictions a turn."""
SHARED_TOKENS = 32
P0, P1, P2, P3 = PriorityClass
Said = dict[str, tuple[list[int], str]]
"""By request: its tokens, and how it ended."""


@dataclass(frozen=True)
class Wish:
    request_id: str
    priority: PriorityClass
    turn: int
    """Of the engine, at which it arrives."""
    prompt: tuple[int, ...]
    output: int
    """0: it is to be embedded."""
    sampling: SamplingParams
    stop: tuple[str, ...]
    revoked: bool


def crowd(count: int, vocabulary: int, seed: int = 20261129, embedded: Collection[int] = ()) -> list[Wish]:
    """Half of them share the beginning of their prompt with others; greedy or seeded; some have stop strings, some are
    taken back in the middle. `embedded`: numbers of those that are to be embedded."""
    draw = random.Random(seed)
    beginnings = [tuple(draw.randrange(3, vocabulary) for _ in range(SHARED_TOKENS)) for _ in range(4)]
    wishes = []
    for number in range(count):
        own = tuple(draw.randrange(3, vocabulary) for _ in range(draw.randrange(5, 25)))
        shared = draw.choice(beginnings) if draw.random() < 0.5 else ()
        greedy = draw.random() < 0.5
        wishes.append(
            Wish(
                request_id=f"r{number}",
                priority=draw.choices([P0, P1, P2, P3], weights=[8, 20, 32, 40])[0],
                turn=number // 2,
                prompt=shared + own,
                output=draw.randrange(3, 13) * (number not in embedded),
                sampling=SamplingParams(temperature=0.0 if greedy else 0.8, top_p=1.0 if greedy else 0.95, seed=number),
                stop=("qj", "zx", "v") if draw.random() < 0.15 else (),
                revoked=draw.random() < 0.05,
            )
        )
    return wishes


@dataclass
class Seen:
    """What was done to the requests."""

    preempted: set[str] = field(default_factory=set)
    histogram: Counter[str] = field(default_factory=Counter)
    most_preemptions: int = 0


class CorruptingSwapper:
    """Spoils one block that was swapped out before it comes back, and only that one."""

    def __init__(self, space: SwapSpace) -> None:
        self.space = space
        self.spoiled = False

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            if copy.direction is Direction.IN and not self.spoiled:
                self.space.places.view(torch.float32)[copy.places[0]].neg_()
                self.spoiled = True
            self.space.copy([copy])

    def take_timings(self) -> list[CopyTiming]:
        return self.space.take_timings()


class BegunAhead(RecordingRunner):
    """What it begins is done when it is begun, and its results are asked for later, as a device's are."""

    computes_by_itself = True

    def begin(self, sequences: Sequence[SequenceInput]) -> None:
        assert isinstance(self._runner, AheadRunner)
        self._runner.begin(sequences)


class Crowd:
    def __init__(
        self,
        runner: ModelRunner,
        storage: KVStorage,
        wishes: Sequence[Wish],
        *,
        blocks: int,
        mode: PreemptionMode,
        prefix_cache: bool = True,
        swap_places: int = 0,
        swap_bytes_s: float = 1e9,
        evictions_a_turn: float = 0.0,
        make_swapper: Callable[[SwapSpace], BlockSwapper] = lambda space: space,
        ahead: bool = False,
    ) -> None:
        """`blocks`: of the pool, as the scheduler is told; the storage may have more. `evictions_a_turn`: beside those
        that the scheduler decides on. `ahead`: next steps are begun ahead, as on a device that computes by itself."""
        self.wishes = {wish.request_id: wish for wish in wishes}
        self.clock = VirtualClock()
        self.outbox = Outbox(1 << 30, lambda: None)
        self.inbox = engine_inbox(1_000)
        self.said: Said = {}
        self.seen = Seen()
        self.partial: dict[str, list[int]] = {}
        self.embeddings: dict[str, Embedding] = {}
        self.hasher: BlockHasher | None = None
        if prefix_cache:
            self.hasher = BlockHasher(runner.block_size, model="m", adapter="", dtype="float32")
        swap = None
        if swap_places:
            space = SwapSpace(storage, swap_places, self.clock)
            rates = SwapRates(storage.statistics().block_bytes, swap_bytes_s, swap_bytes_s)
            swap = SwapPool(make_swapper(space), swap_places, rates)
        self.parts: Assembly = assemble(
            EngineConfig(max_sequences=8, step_tokens=24, step_max_ms=10_000),
            SchedulingConfig(),
            kv_config=KVConfig(prefix_cache=prefix_cache),
            preemption=PreemptionConfig(mode=mode, budget=100_000),
            swap=swap,
            runner=(BegunAhead if ahead else RecordingRunner)(runner, self.clock, num_blocks=blocks),
            rates=LinearStepTime(0.01, 0.001, 0.001, 0.0),
            max_rows=1_000,
            context_tokens=80,
            outbox=self.outbox,
            inbox=self.inbox,
            stage=self._stage,
            hasher=self.hasher,
            new_detokenizer=letter_detokenizer,
            clock=self._now,
            cpu_clock=self._now,
        )

        self.adversary = random.Random(evictions_a_turn) if evictions_a_turn else None
        self.evictions_a_turn = evictions_a_turn

    def _evict_somebody(self) -> None:
        """What the scheduler would do seldom, at any moment, to anybody: so that every state is met often."""
        scheduler = self.parts.scheduler
        if self.adversary is None:
            return
        count = int(self.evictions_a_turn + self.adversary.random())
        running = [sequence for sequence in scheduler._running if not sequence.strict]
        for victim in self.adversary.sample(running, min(count, len(running))):
            scheduler._suspensions.evict(victim, victim, self._now())

    def run(self) -> Said:
        pending = sorted(self.wishes.values(), key=lambda wish: wish.turn)
        turn = 0
        stay = {wish.request_id for wish in self.wishes.values() if not wish.revoked}
        while pending or not stay <= self.said.keys():
            while pending and pending[0].turn <= turn:
                self._arrive(pending.pop(0))
            if turn % 10 == 9:
                for priority in PriorityClass:
                    self.inbox.put(Revoked(f"inference.{priority.label}", REVOKED_PARTITION, 1))
                self.inbox.put(Dropped(frozenset(_place(wish) for wish in self.wishes.values() if wish.revoked)))
            self._evict_somebody()
            self.parts.engine.step()
            self._take()
            turn += 1
            assert turn < 20_000, f"{len(self.said)} of {len(self.wishes)} ended after {turn} turns"
        self.parts.scheduler.check_integrity()
        return {request_id: self.said[request_id] for request_id in sorted(stay)}

    def _now(self) -> float:
        """Passes by itself, and equally in every run."""
        self.clock.advance(0.001)
        return self.clock()

    def _arrive(self, wish: Wish) -> None:
        self.inbox.put(
            Arrival(
                id=_place(wish),
                timestamp_ms=0,
                epoch=1,
                headers=RequestHeaders(request_id=wish.request_id),
                origin_class=wish.priority,
                service_class=wish.priority,
                tenant="t",
                flow="",
                arrived_s=self.clock(),
                ttft_deadline_s=None,
                hard_deadline_s=None,
                body_bytes=4 * len(wish.prompt),
                max_tokens=wish.output,
            )
        )

    def _stage(self, job: StageJob) -> None:
        wish = self.wishes[job.arrival.headers.request_id]
        prepared = PreparedRequest(
            kind=RequestKind.CHAT if wish.output else RequestKind.EMBEDDING,
            model="m",
            created_s=0,
            prompt_token_ids=wish.prompt,
            sampling=wish.sampling,
            max_output_tokens=wish.output,
            eos_token_ids=frozenset({2}),
            stop=wish.stop,
            stream=True,
            include_usage=False,
            embedding=None if wish.output else EmbeddingForm(8, base64=False),
        )
        names = () if self.hasher is None else tuple(self.hasher.names(wish.prompt, "t"))
        self.inbox.put(Staged(job, prepared, names))

    def _take(self) -> None:
        for publication in self.outbox.take_all():
            request_id = publication.arrival.headers.request_id
            tokens, _ = self.said.get(request_id, ([], ""))
            ending = publication.ending
            if ending is None:
                self.partial.setdefault(request_id, []).extend(publication.token_ids)
                continue
            tokens = [*self.partial.pop(request_id, []), *publication.token_ids]
            assert ending.error is None, f"{request_id}: {ending.error}"
            self.said[request_id] = (tokens, str(ending.reason))
            if ending.embedding is not None:
                self.embeddings[request_id] = ending.embedding
            self._note(self.wishes[request_id], ending.timeline)
            self.outbox.delivered(publication)

    def _note(self, wish: Wish, timeline: Timeline) -> None:
        seen = self.seen
        if timeline.suspensions:
            seen.preempted.add(wish.request_id)
        seen.most_preemptions = max(seen.most_preemptions, timeline.preemptions)
        for suspension in timeline.suspensions:
            in_prefill = suspension.computed_tokens < len(wish.prompt)
            seen.histogram["mid-prefill" if in_prefill else "mid-decode"] += 1
            seen.histogram["embedding"] += not wish.output
            seen.histogram["swapped" if suspension.swapped else "recomputed"] += 1
            if len(wish.prompt) >= SHARED_TOKENS + 5:
                seen.histogram["shared prefix"] += 1


def _place(wish: Wish) -> RecordId:
    partition = REVOKED_PARTITION if wish.revoked else 0
    return RecordId(f"inference.{wish.priority.label}", partition, int(wish.request_id[1:]))


def said_undisturbed(runner: ModelRunner, storage: KVStorage, wishes: Sequence[Wish]) -> Said:
    alone = Crowd(runner, storage, wishes, blocks=LARGE_POOL, mode=PreemptionMode.NONE, prefix_cache=False)
    said = alone.run()
    assert not alone.seen.preempted
    return said


def check_disturbed(
    runner: ModelRunner,
    storage: KVStorage,
    wishes: Sequence[Wish],
    said: Said,
    mode: PreemptionMode,
    kinds: set[str],
    **settings: Any,
) -> None:
    """The same crowd in a small pool says the same, although most of it is suspended; `kinds` happen often."""
    disturbed = Crowd(runner, storage, wishes, blocks=SMALL_POOL, mode=mode, evictions_a_turn=OFTEN, **settings)
    assert disturbed.run() == said
    histogram = disturbed.seen.histogram
    print(mode.value, len(disturbed.seen.preempted), "preempted:", dict(histogram))
    assert len(disturbed.seen.preempted) >= 150
    for kind in {"mid-prefill", "mid-decode", "shared prefix"} | kinds:
        assert histogram[kind] >= 30, f"{kind}: {histogram}"


def check_embeddings(
    runner: ModelRunner, storage: KVStorage, model: Any, vocabulary: int, mode: PreemptionMode, **swapping: Any
) -> None:
    """Half of a crowd is embedded beside the other half's answers, suspended in mid-prefill, and finds beginnings in
    the prefix cache: each vector is what `model` says of the text alone."""
    wishes = crowd(120, vocabulary, embedded=range(0, 120, 2))
    disturbed = Crowd(runner, storage, wishes, blocks=SMALL_POOL, mode=mode, evictions_a_turn=OFTEN, **swapping)
    disturbed.run()
    histogram = disturbed.seen.histogram
    print(mode.value, dict(histogram))
    assert histogram["embedding"] >= 20, histogram
    assert sum(disturbed.parts.kv.statistics().hit_tokens_by_class.values()) > 500
    stay = {wish.request_id for wish in wishes if not wish.output and not wish.revoked}
    assert stay <= disturbed.embeddings.keys()
    for request_id, embedding in disturbed.embeddings.items():
        prompt = torch.tensor([disturbed.wishes[request_id].prompt])
        with torch.inference_mode():
            want = model.base_model(prompt, use_cache=False).last_hidden_state[0, -1]
        scale = float(want.abs().max())
        torch.testing.assert_close(torch.from_numpy(embedding) / scale, want / scale, atol=1e-4, rtol=0)


def said_with_a_spoiled_block(runner: ModelRunner, storage: KVStorage, wishes: Sequence[Wish]) -> Said:
    return Crowd(
        runner,
        storage,
        wishes,
        blocks=SMALL_POOL,
        mode=PreemptionMode.SWAP,
        swap_places=LARGE_POOL,
        evictions_a_turn=OFTEN,
        make_swapper=CorruptingSwapper,
    ).run()
