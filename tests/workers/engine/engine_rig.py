"""An engine on virtual time, with a simulated runner and a staging that answers at once."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduling.priority import PriorityClass
from scheduling.step_time import LinearStepTime
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.record import RecordId
from workers.answers.detokenizer import Detokenizer
from workers.configuration.config import EngineConfig
from workers.configuration.kv_config import KVConfig, PreemptionConfig
from workers.configuration.scheduling_config import SchedulingConfig
from workers.engine.assembly import Assembly, assemble, engine_inbox
from workers.engine.outbox import Outbox, Publication
from workers.intake.embedding import EmbeddingForm
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import Arrival
from workers.intake.sampling import SamplingParams, TokenLogprobs
from workers.intake.staging import Refused, Staged, StageJob
from workers.runners.runner import ModelLimits, ModelRunner
from workers.runs.simulated_runner import SimulatedRunner, VirtualClock

EOS = 7
VOCABULARY = 97
RATES = LinearStepTime(0.01, 0.001, 0.001, 0.0)


class LetterDetokenizer:
    """Token 3 is the letter `d`, and so on round the alphabet."""

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + token % 26) for token in token_ids)

    def flush(self) -> str:
        return ""


def letter_detokenizer() -> Detokenizer:
    return LetterDetokenizer()


def token_bytes(token_id: int) -> bytes:
    return letter_detokenizer().feed([token_id]).encode()


@dataclass
class Rig:
    """Five slots, one of which only P0 may take."""

    engine_config: EngineConfig = field(default_factory=lambda: EngineConfig(max_sequences=5, step_tokens=32))
    policy: str = "htb"
    scheduling: dict[str, object] = field(default_factory=dict)
    """Further settings of the section."""
    num_blocks: int = 64
    observed: bool = True
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    refuse: dict[str, RequestError] = field(default_factory=dict)
    """Request ids that staging refuses."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Of requests whose body ingress did not read."""
    wrap: Callable[[ModelRunner], ModelRunner] = lambda runner: runner
    """What the engine gets in the place of the simulated runner."""
    published: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    logprobs_of: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    endings: dict[str, Publication] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.news = threading.Event()
        """Something is in the outbox."""
        self.outbox = Outbox(1_000_000, self.news.set)
        self.jobs: list[StageJob] = []
        self.answer_staging = True
        self.prompts: dict[str, tuple[int, int]] = {}
        self.runner = SimulatedRunner(
            RATES,
            self.clock,
            ModelLimits(context_tokens=256, vocabulary=VOCABULARY, eos_token_ids=frozenset({EOS})),
            num_blocks=self.num_blocks,
            block_size=4,
        )
        self.inbox = engine_inbox(1_000)
        self.parts: Assembly = assemble(
            self.engine_config,
            SchedulingConfig.model_validate({"policy": self.policy, **self.scheduling}),
            kv_config=KVConfig(),
            preemption=PreemptionConfig(),
            swap=None,
            runner=self.wrap(self.runner),
            rates=RATES,
            max_rows=1_000,
            context_tokens=256,
            outbox=self.outbox,
            inbox=self.inbox,
            stage=self._stage,
            hasher=None,
            new_detokenizer=letter_detokenizer,
            clock=self.clock,
            cpu_clock=self.clock,
            observed=self.observed,
        )

    def arrive(
        self,
        request_id: str,
        *,
        prompt: int = 8,
        output: int = 4,
        priority: PriorityClass = PriorityClass.P1,
        tenant: str = "t",
        partition: int = 0,
        job_id: str | None = None,
        timestamp_ms: int = 0,
        hard_deadline_s: float | None = None,
        choices: int = 1,
    ) -> Arrival:
        """`output` of 0: an embedding is asked for."""
        place = RecordId(f"inference.{priority.label}", partition, len(self.prompts))
        arrival = Arrival(
            id=place,
            timestamp_ms=timestamp_ms,
            epoch=1,
            headers=RequestHeaders(request_id=request_id, job_id=job_id),
            origin_class=priority,
            service_class=priority,
            tenant=tenant,
            flow="",
            arrived_s=self.clock(),
            ttft_deadline_s=None,
            hard_deadline_s=hard_deadline_s,
            body_bytes=4 * prompt,
            max_tokens=output,
            choices=choices,
        )
        self.prompts[request_id] = (prompt, output)
        self.inbox.put(arrival)
        return arrival

    def run(self, turns: int = 10_000) -> None:
        """Turn until nothing is to be done."""
        for _ in range(turns):
            worked = self.parts.engine.step()
            self.take()
            self.parts.scheduler.check_integrity()
            self.parts.index.check_integrity()
            self.parts.engine.check_integrity()
            if not worked and not self.inbox:
                return
        raise AssertionError(f"still work after {turns} turns")

    def run_through(self) -> None:
        """The same, and on to whatever time alone brings."""
        self.run()
        while (due_s := self.parts.engine.next_event()) is not None:
            self.clock.advance(max(0.0, due_s - self.clock()))
            self.run()

    def take(self) -> None:
        for publication in self.outbox.take_all():
            request_id = publication.arrival.headers.request_id
            if publication.prepared is not None and publication.prepared.sequences > 1:
                request_id = f"{request_id}/{publication.prepared.sequence}"
            self.published.setdefault(request_id, []).extend(publication.token_ids)
            self.logprobs_of.setdefault(request_id, []).extend(publication.logprobs)
            self.texts[request_id] = self.texts.get(request_id, "") + (publication.text or "")
            if publication.ending is not None:
                assert request_id not in self.endings, f"{request_id} ended twice"
                self.endings[request_id] = publication
                self.outbox.delivered(publication)

    def _stage(self, job: StageJob) -> None:
        if self.answer_staging:
            self.answer(job)
        else:
            self.jobs.append(job)

    def answer(self, job: StageJob) -> None:
        request_id = job.arrival.headers.request_id
        if request_id in self.refuse:
            self.inbox.put(Refused(job, self.refuse[request_id]))
            return
        prompt, output = self.prompts[request_id]
        prepared = PreparedRequest(
            kind=RequestKind.CHAT if output else RequestKind.EMBEDDING,
            model="m",
            created_s=0,
            prompt_token_ids=tuple(range(prompt)),
            sampling=SamplingParams(seed=len(request_id) + job.sequence, logprobs=self.logprobs),
            max_output_tokens=output,
            eos_token_ids=frozenset({EOS}),
            stop=self.stop,
            stream=True,
            include_usage=False,
            sequence=job.sequence,
            sequences=self.sequences.get(request_id, job.arrival.sequences),
            choices=self.sequences.get(request_id, job.arrival.choices),
            embedding=None if output else EmbeddingForm(2, base64=False),
        )
        self.inbox.put(Staged(job, prepared))
