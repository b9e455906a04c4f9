"""Create or check the topics.

headrace topics create     create what is missing; what is there is compared, never changed
headrace topics check      say what is wrong; exit code 1 if a worker would not start
headrace topics list       the topics, what each is for and how it is set up
"""

import argparse
import asyncio
import sys
from dataclasses import replace
from typing import Any

import orjson

from topics.admin import KafkaAdmin
from topics.catalogue import Catalogue, Severity, TopicProblem, check_topics, create_missing_topics
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.explained import explained

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("create", "check", "list"))
    add_kafka_arguments(parser)
    parser.add_argument("--partitions", type=int, metavar="N", help="of the request and reply topics (create; 8)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    config = kafka_config(arguments)
    if arguments.partitions is not None and arguments.partitions < 1:
        raise UsageError(f"--partitions {arguments.partitions}: at least 1")
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    if arguments.partitions is not None:
        catalogue = replace(catalogue, request_partitions=arguments.partitions, reply_partitions=arguments.partitions)
    if arguments.action == "list":
        return _list(catalogue, as_json=arguments.json)
    with explained():
        return asyncio.run(_ask(arguments, KafkaAdmin(connection(config, "headrace-topics")), catalogue))


async def _ask(arguments: argparse.Namespace, admin: KafkaAdmin, catalogue: Catalogue) -> int:
    async with admin:
        if arguments.action == "check":
            problems = tuple(await check_topics(admin, catalogue))
            report: dict[str, Any] = {}
            if not problems and not arguments.json:
                print("all topics are there and set up as a worker needs them")
        else:
            created = await create_missing_topics(admin, catalogue)
            problems = created.problems
            report = {"created": created.created, "existing": created.existing}
            if not arguments.json:
                for name in created.created:
                    print(f"created   {name}")
                for name in created.existing:
                    print(f"is there  {name}")
    if arguments.json:
        _print_json(report | {"problems": [_problem(problem) for problem in problems]})
    else:
        for problem in problems:
            print(problem, file=sys.stderr)
    return 1 if any(problem.severity is Severity.ERROR for problem in problems) else 0


def _list(catalogue: Catalogue, *, as_json: bool) -> int:
    specs = catalogue.specs()
    if as_json:
        _print_json(
            [
                {
                    "name": spec.name,
                    "partitions": spec.partitions,
                    "configs": dict(spec.configs),
                    "purpose": spec.purpose,
                }
                for spec in specs
            ]
        )
        return 0
    for spec in specs:
        settings = ", ".join(f"{name}={value}" for name, value in spec.configs.items())
        print(f"{spec.name:<22} {spec.partitions:>3} partitions  {spec.purpose}\n{'':<22} {settings}")
    return 0


def _problem(problem: TopicProblem) -> dict[str, str]:
    return {"topic": problem.topic, "severity": problem.severity.value, "message": problem.message}


def _print_json(document: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
