"""Ask a question with confluent-kafka: python examples/confluent_client.py HOST:PORT "Why is the sky blue?" [PREFIX]

Read finals with `read_committed`: they are written in transactions, and only then does each request have exactly one.
"""

import json
import sys
import uuid

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition


def main(brokers: str, question: str, prefix: str = "inference") -> None:
    request_id, topic = uuid.uuid4().hex, f"{prefix}.replies"
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"example-{request_id}",  # must be given; nothing is committed to it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        # The ends as they are now, before anything is asked.
        ends = [(number, consumer.get_watermark_offsets(TopicPartition(topic, number))[1]) for number in partitions]
        consumer.assign([TopicPartition(topic, number, end) for number, end in ends])
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 64}
        headers = {"request-id": request_id, "tenant": "examples"}
        producer.produce(f"{prefix}.p1", json.dumps(body), headers=headers)
        producer.flush(10)
        while True:
            record = consumer.poll(1.0)
            if record is None:
                continue
            if record.error():
                raise KafkaException(record.error())
            reply = dict(record.headers() or [])
            if reply.get("request-id") == request_id.encode():
                answer = json.loads(record.value())
                failed = reply["event"] == b"error"
                print(answer["error"]["message"] if failed else answer["choices"][0]["message"]["content"])
                return
    finally:
        consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
