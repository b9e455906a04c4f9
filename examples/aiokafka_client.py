"""Ask a question with plain aiokafka: python examples/aiokafka_client.py HOST:PORT "Why is the sky blue?" [PREFIX]

Read finals with `read_committed`: they are written in transactions, and only then does each request have exactly one.
"""

import asyncio
import json
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main(brokers: str, question: str, prefix: str = "inference") -> None:
    request_id = uuid.uuid4().hex
    consumer = AIOKafkaConsumer(
        f"{prefix}.replies", bootstrap_servers=brokers, isolation_level="read_committed", auto_offset_reset="latest"
    )
    producer = AIOKafkaProducer(bootstrap_servers=brokers, enable_idempotence=True)
    async with consumer, producer:
        await consumer.seek_to_end()
        for partition in consumer.assignment():
            await consumer.position(partition)  # a seek happens when it is needed: now, before anything is asked
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64}
        headers = [("request-id", request_id.encode()), ("tenant", b"examples")]
        await producer.send_and_wait(f"{prefix}.p1", json.dumps(body).encode(), headers=headers)
        async for record in consumer:
            reply = dict(record.headers)
            if reply.get("request-id") == request_id.encode():
                answer = json.loads(record.value)
                failed = reply["event"] == b"error"
                print(answer["error"]["message"] if failed else answer["choices"][0]["message"]["content"])
                return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
