"""What the attributes of our spans are called: OpenTelemetry's semantic conventions ≈ 1.44, and names of our own.

Knows names. Does not know which span has which attribute (`workers.telemetry.tracing`).
"""

from workers.telemetry.trace_identity import KEPT

__all__ = ["NAMES"]

NAMES = {
    "system": "messaging.system",
    "destination": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
    "group": "messaging.consumer.group.name",
    "client": "messaging.client.id",
    "operation": "messaging.operation.name",
    "operation_type": "messaging.operation.type",
    "offset": "messaging.kafka.offset",
    "message_id": "messaging.message.id",
    "conversation_id": "messaging.message.conversation_id",
    "body_size": "messaging.message.body.size",
    "error_type": "error.type",
    "gen_operation": "gen_ai.operation.name",
    "gen_provider": "gen_ai.provider.name",
    "gen_request_model": "gen_ai.request.model",
    "gen_max_tokens": "gen_ai.request.max_tokens",
    "gen_temperature": "gen_ai.request.temperature",
    "gen_top_p": "gen_ai.request.top_p",
    "gen_top_k": "gen_ai.request.top_k",
    "gen_seed": "gen_ai.request.seed",
    "gen_stream": "gen_ai.request.stream",
    "gen_stop": "gen_ai.request.stop_sequences",
    "gen_output_type": "gen_ai.output.type",
    "gen_dimensions": "gen_ai.embeddings.dimension.count",
    "gen_encodings": "gen_ai.request.encoding_formats",
    "gen_response_id": "gen_ai.response.id",
    "gen_response_model": "gen_ai.response.model",
    "gen_finish_reasons": "gen_ai.response.finish_reasons",
    "gen_first_chunk": "gen_ai.response.time_to_first_chunk",
    "gen_input_tokens": "gen_ai.usage.input_tokens",
    "gen_output_tokens": "gen_ai.usage.output_tokens",
    "gen_cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "batch_count": "messaging.batch.message_count",
    "message_key": "messaging.kafka.message.key",
    # Ours.
    "class": "headrace.class",
    "tenant": "headrace.tenant",
    "flow": "headrace.flow",
    "wait": "headrace.wait",
    "preemptions": "headrace.preemptions",
    "suspended": "headrace.suspended",
    # Of one suspension. Times are in seconds.
    "swapped": "headrace.suspension.swapped",
    "usable": "headrace.suspension.room_usable",
    "resume_queue": "headrace.suspension.resume_queue",
    "swap_estimate": "headrace.suspension.swap_estimate",
    "recompute_estimate": "headrace.suspension.recompute_estimate",
    "suspension_cost": "headrace.suspension.cost",
    "recomputed_tokens": "headrace.suspension.recomputed_tokens",
    "steps": "headrace.steps",
    "attempt": "headrace.attempt",
    "missed": "headrace.slo.missed",
    "dispatch_reason": "headrace.dispatch.reason",
    "dispatch_victims": "headrace.dispatch.victims",
    "dispatch_passed": "headrace.dispatch.passed",
    "kept": KEPT,
}
"""The one table of attribute names: the conventions still move."""
