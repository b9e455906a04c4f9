"""What crosses the wire: topics, messages, headers, consumers, producers, the client and a local broker.

Knows Kafka and the OpenAI schemas. Does not know scheduling, models or torch.
"""
