"""llama.cpp's server on a workload of token ids. Runs in an environment of its own.

Knows llama.cpp through xllamacpp, which is its C++ server as a Python module, and GGUF files. Does not know Headrace's
engine, and nothing of it is installed there; `headrace bench engine --peers llama.cpp` runs both.

All requests are sent to its HTTP endpoint at once, each from a thread of its own; it has a slot a request, up to 64,
and context for all of them. Greedy, end tokens ignored, no prompt cache. Everything else is as it ships.

The weights are those of every other engine: the values of the GGUF file, written out in the number format that is
compared. Limit: the wheel is compiled for AVX2 and FMA. On a CPU that has more, llama.cpp compiled there is faster.

    ENVIRONMENT/bin/python -m benchmarks.llamacpp_peer --model GGUF --workload FILE [--requests N] [--dtype float32]

loads the model, then runs once for each line of its input and prints one line of JSON each time: the figures, the
outputs and the peak memory of the process.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from workers.bench.on_request import run_on_request

_SLOTS = 64
_BATCH_TOKENS = 2048
_EVENT = b"data: "


def main() -> None:
    parser = argparse.ArgumentParser(description="llama.cpp's server on a workload of token ids")
    parser.add_argument("--model", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE")
    parser.add_argument("--requests", type=int, metavar="N")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--slots", type=int, default=_SLOTS, metavar="N", help="sequences at once (%(default)s)")
    arguments = parser.parse_args()
    requests = json.loads(arguments.workload.read_bytes())["requests"][: arguments.requests]
    with tempfile.TemporaryDirectory(prefix="headrace-llama-") as scratch:
        file = Path(scratch) / "model.gguf"
        write_unquantised(arguments.model, file, arguments.dtype)
        server = _load(file, requests, min(arguments.slots, len(requests)))

        def answer() -> dict[str, Any]:
            figures = run(server, requests)
            peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
            return figures | {"peak_rss_mb": peak_rss_mb}

        run_on_request(answer)


def write_unquantised(source: Path, target: Path, dtype: str) -> None:
    """The same model with all matrices in float32 or bfloat16; vectors stay float32, as llama.cpp wants them."""
    import gguf

    reader = gguf.GGUFReader(source)
    names = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}
    kinds = {"float32": gguf.LlamaFileType.ALL_F32, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    writer.add_file_type(kinds[dtype])
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        kind = names[dtype] if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _load(file: Path, requests: Sequence[dict[str, Any]], slots: int) -> Any:
    import xllamacpp

    longest = max(len(request["prompt_token_ids"]) + request["max_tokens"] for request in requests)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_parallel = slots
    params.n_ctx = slots * (longest + 16)
    params.n_batch = _BATCH_TOKENS
    threads = len(os.sched_getaffinity(0))
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.cont_batching = True
    params.cache_prompt = False
    params.verbosity = 0
    params.port = 0  # one that is free
    return xllamacpp.Server(params)


def run(server: Any, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures, and each request's output token ids."""
    with ThreadPoolExecutor(len(requests)) as senders:
        started_s = time.perf_counter()
        answers = list(senders.map(lambda request: _complete(server.listening_address, request, started_s), requests))
        wall_s = time.perf_counter() - started_s
    outputs = [tokens for tokens, _first_s in answers]
    output_tokens = sum(map(len, outputs))
    assert output_tokens == sum(request["max_tokens"] for request in requests), f"{output_tokens} tokens were written"
    ordered = sorted(first_s for _tokens, first_s in answers)
    return {
        "output_tokens_s": output_tokens / wall_s,
        "ttft_mean_s": sum(ordered) / len(ordered),
        "ttft_p95_s": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "wall_s": wall_s,
        "output_tokens": output_tokens,
        "outputs": outputs,
    }


def _complete(address: str, request: dict[str, Any], started_s: float) -> tuple[list[int], float]:
    """The token ids, and when the first one came."""
    body = {
        "prompt": request["prompt_token_ids"],
        "n_predict": request["max_tokens"],
        "ignore_eos": True,
        "temperature": 0.0,
        "cache_prompt": False,
        "stream": True,
        "return_tokens": True,
    }
    post = Request(f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    tokens: list[int] = []
    first_s = None
    with urlopen(post) as lines:
        for line in lines:
            if not line.startswith(_EVENT):
                continue
            tokens += json.loads(line.removeprefix(_EVENT))["tokens"]
            if tokens and first_s is None:
                first_s = time.perf_counter() - started_s
    assert first_s is not None, "no tokens came"
    return tokens, first_s


if __name__ == "__main__":
    main()
