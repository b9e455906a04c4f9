"""Send one prompt and print the answer as it streams.

  headrace send "Why is the sky blue?"
  headrace send --priority p0 --tenant acme --max-tokens 64 --temperature 0 "Name three rivers."
  echo "Summarise: …" | headrace send -

With --json: one line for each piece of text, then one for the whole answer.
"""

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import Any

import orjson
from opentelemetry.trace import Tracer

from topics.client import HeadraceClient, Stream
from topics.stage_times import STAGES
from workers.cli import UsageError
from workers.commands.client_tracing import client_tracer
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_arguments(parser)
    parser.add_argument("prompt", help="the user's message; - reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="a system message before it")
    parser.add_argument("--priority", choices=("p0", "p1", "p2", "p3"), default="p1", help="p0 is the most urgent (p1)")
    parser.add_argument("--tenant", help="who pays")
    parser.add_argument("--flow", help="what the scheduler is fair between inside a tenant: a user, a session")
    parser.add_argument("--model", help="the model's name; the worker's own where absent")
    parser.add_argument("--max-tokens", type=int, help="longest answer")
    parser.add_argument("--temperature", type=float, help="0 is greedy (1)")
    parser.add_argument("--top-p", type=float, help="nucleus sampling (1)")
    parser.add_argument("--seed", type=int, help="the same seed gives the same answer")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="how long to wait for the answer (300)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")


def run(arguments: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if not prompt.strip():
        raise UsageError("the prompt is empty: give it as an argument, or on standard input with -")
    with explained():
        _print_end(asyncio.run(_send(arguments, prompt)), as_json=arguments.json)
    return 0


async def _send(arguments: argparse.Namespace, prompt: str) -> Stream:
    messages = [{"role": "user", "content": prompt}]
    if arguments.system:
        messages.insert(0, {"role": "system", "content": arguments.system})
    names = ("model", "max_tokens", "temperature", "top_p", "seed", "stop")
    body: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    async with AsyncExitStack() as stack:
        tracer = await stack.enter_async_context(client_tracer("headrace-send"))
        client = await _connect(arguments, tracer, stack)
        stream = await client.stream(
            messages, priority=arguments.priority, tenant=arguments.tenant, flow=arguments.flow, **body
        )
        async for delta in stream:
            if arguments.json:
                _print_json({"text": delta.text, "tokens": delta.token_ids})
            else:
                print(delta.text, end="", flush=True)
    return stream


async def _connect(arguments: argparse.Namespace, tracer: Tracer | None, stack: AsyncExitStack) -> HeadraceClient:
    config = kafka_config(arguments)
    client = HeadraceClient(
        connection(config, "headrace-send"),
        topic_prefix=config.topic_prefix,
        timeout_s=arguments.timeout_s,
        tracer=tracer,
    )
    try:
        return await stack.enter_async_context(client)
    except LookupError as error:  # on entering: a topic is not there
        raise UsageError(str(error)) from error


def _print_end(stream: Stream, *, as_json: bool) -> None:
    answer = stream.answer
    assert answer is not None
    if as_json:
        _print_json(
            {
                "answer": answer.body,
                "seconds": answer.ended_s - answer.sent_s,
                "stages": None if answer.stages is None else asdict(answer.stages),
            }
        )
    else:
        first = (
            "" if answer.first_delta_s is None else f"first text after {answer.first_delta_s - answer.sent_s:.2f} s, "
        )
        used = answer.usage
        print(
            f"\n\n[{answer.finish_reason}; {first}{answer.ended_s - answer.sent_s:.2f} s; "
            f"{used['prompt_tokens']} + {used['completion_tokens']} tokens; {answer.request_id}]",
            file=sys.stderr,
        )
        if answer.stages is not None:
            reached = ((name, getattr(answer.stages, name)) for name in STAGES)
            print(
                "[" + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in reached if seconds is not None) + "]",
                file=sys.stderr,
            )


def _print_json(document: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(document) + b"\n")
    sys.stdout.buffer.flush()
