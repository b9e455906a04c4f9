"""What the span of a model's work says of the request, in the words of the conventions for generative AI.

Knows prepared requests and attribute names (`workers.telemetry.span_names`). Does not know spans, times or results
(`workers.telemetry.tracing`).
"""

from workers.intake.prompt import PreparedRequest, RequestKind
from workers.telemetry.span_names import NAMES

__all__ = ["OPERATION_NAMES", "PROVIDER", "Value", "request_attributes"]

PROVIDER = "headrace"
OPERATION_NAMES = {
    RequestKind.CHAT: "chat",
    RequestKind.COMPLETION: "text_completion",
    RequestKind.EMBEDDING: "embeddings",
}

Value = str | int | float | bool | tuple[str, ...]
"""Of an attribute."""


def request_attributes(prepared: PreparedRequest) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        NAMES["gen_operation"]: OPERATION_NAMES[prepared.kind],
        NAMES["gen_provider"]: PROVIDER,
        NAMES["gen_request_model"]: prepared.model,
        NAMES["gen_response_model"]: prepared.model,
    }
    if prepared.embedding is not None:
        return attributes | {
            NAMES["gen_dimensions"]: prepared.embedding.dimensions,
            NAMES["gen_encodings"]: ("base64" if prepared.embedding.base64 else "float",),
        }
    return attributes | _drawing(prepared)


def _drawing(prepared: PreparedRequest) -> dict[str, Value]:
    """How a text was to be drawn."""
    sampling = prepared.sampling
    attributes: dict[str, Value] = {
        NAMES["gen_max_tokens"]: prepared.max_output_tokens,
        NAMES["gen_temperature"]: sampling.temperature,
        NAMES["gen_top_p"]: sampling.top_p,
        NAMES["gen_seed"]: _signed(sampling.seed),
        NAMES["gen_stream"]: prepared.stream,
        NAMES["gen_output_type"]: "text",
    }
    if sampling.top_k is not None:
        attributes[NAMES["gen_top_k"]] = sampling.top_k
    if prepared.stop:
        attributes[NAMES["gen_stop"]] = tuple(prepared.stop)
    return attributes


def _signed(seed: int) -> int:
    """The 64 bits as a signed number, as the request's body has it: OTLP's integers are signed."""
    return seed - (1 << 64) if seed >> 63 else seed
