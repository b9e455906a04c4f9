"""What a request takes in memory that waits without its payload: all that the worker knows of it, measured.

A third of it is the client's own words, packed: request id, trace, row. The rest is columns, most of them what
scheduling looks at (`tests/scheduling/test_index.py` has those alone).
"""

import gc
import tracemalloc
import uuid

import orjson

from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import RATES, Rig, letter_detokenizer
from topics.headers import RequestHeaders
from topics.record import InboundRecord, RecordId
from workers.configuration.config import IngressConfig
from workers.configuration.kv_config import KVConfig, PreemptionConfig
from workers.configuration.scheduling_config import SchedulingConfig
from workers.engine.assembly import assemble, engine_inbox
from workers.engine.outbox import Outbox
from workers.intake.ingress import Ingress
from workers.intake.payloads import Payloads, Sender
from workers.intake.request import Arrival

ROWS = 4_000
BODY = orjson.dumps({"messages": [{"role": "user", "content": "word " * 100}], "max_tokens": 64})


def record(number: int) -> InboundRecord:
    """As a row of a job comes from aiokafka: no string in it is shared with another record's."""
    headers = RequestHeaders(
        request_id=str(uuid.UUID(int=number * 7919)),
        tenant="acme",
        traceparent=f"00-{number:032x}-{number:016x}-01",
        job_id="job-1",
        custom_id=f"row-{number}",
    )
    pairs = tuple((name.encode().decode(), bytes(bytearray(value))) for name, value in headers.encode())
    return InboundRecord(RecordId("inference.p1", 0, number), number, b"key", bytes(bytearray(BODY)), pairs)


def sender_of(_record: InboundRecord) -> Sender:
    raise AssertionError("nothing is read again")


def test_a_waiting_request_takes_a_quarter_of_a_kilobyte_beside_its_payload() -> None:
    rig = Rig()
    inbox = engine_inbox(2 * ROWS)
    parts = assemble(
        rig.engine_config,
        SchedulingConfig(),
        kv_config=KVConfig(),
        preemption=PreemptionConfig(),
        swap=None,
        runner=rig.runner,
        rates=RATES,
        max_rows=2 * ROWS,
        context_tokens=256,
        outbox=Outbox(1_000_000, lambda: None),
        inbox=inbox,
        stage=lambda _job: None,
        hasher=None,
        new_detokenizer=letter_detokenizer,
        clock=rig.clock,
        cpu_clock=rig.clock,
    )
    payloads = Payloads(1, sender_of)

    def accept(arrival: Arrival, came: InboundRecord) -> None:
        payloads.keep(arrival, came)
        inbox.put(arrival)

    def refuse(refusal: object) -> None:
        raise AssertionError(refusal)

    slos = {PriorityClass.P1: 2.0}
    ingress = Ingress(
        IngressConfig(),
        default_reply_topic="r",
        trust_tenant_header=True,
        ttft_slo_s=slos,
        accept=accept,
        refuse=refuse,
    )
    ingress.take(PriorityClass.P1, 1, record(0))
    parts.engine.step()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, ROWS + 1):
        ingress.take(PriorityClass.P1, 1, record(number))
        if number % 500 == 0:
            parts.engine.step()
    parts.engine.step()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    bytes_a_row = (after - before) / ROWS
    columns = parts.index.statistics().column_bytes / parts.index.statistics().rows
    print(f"\n{bytes_a_row:.0f} bytes a row, {columns:.0f} of them in columns")
    assert payloads.statistics().evicted == ROWS + 1
    assert bytes_a_row < 260
