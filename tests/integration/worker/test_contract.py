"""What a worker really writes is what the published contract says: read raw, checked by jsonschema."""

import orjson
import pytest

from tests.integration.conftest import read_topic
from tests.integration.worker.conftest import RunWorker
from tests.topics.contract import Contract
from topics.asyncapi import asyncapi_document
from topics.catalogue import Catalogue
from topics.client import HeadraceClient, RequestFailedError
from topics.headers import RequestHeaders
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model]


async def test_every_record_of_a_worker_is_one_of_the_contract(
    worker_config: WorkerConfig, run_worker: RunWorker
) -> None:
    kafka = worker_config.kafka
    catalogue = Catalogue(prefix=kafka.topic_prefix, group_prefix=kafka.group_prefix)
    async with (
        run_worker(worker_config),
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix) as client,
    ):
        await client.complete("Hi", priority="p0", max_tokens=3, stream=True, stream_options={"include_usage": True})
        prompt = {"prompt": "Once", "max_tokens": 3, "stream": True, "stop": ["zzz"]}
        await client.result(await client.send(prompt, priority="p1", headers=RequestHeaders("a", job_id="j")))
        await client.embed(["Once", "upon"], priority="p2")
        with pytest.raises(RequestFailedError):
            await client.complete("Hi", priority="p2", model="another")
    contract = Contract(asyncapi_document(catalogue, "1"))
    seen: set[str] = set()
    for topic in (*map(catalogue.requests, ("p0", "p1", "p2")), catalogue.deltas, catalogue.replies, catalogue.reports):
        for record in await read_topic(kafka.bootstrap_servers, topic):
            kinds = contract.kinds(topic, record.headers, record.value)
            assert len(kinds) == 1, (topic, record.headers, orjson.loads(record.value))
            seen.update(kinds)
    assert seen == {"request", "delta", "final", "error", "worker-report"}
