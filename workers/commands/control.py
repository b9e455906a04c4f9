"""Give orders to the running workers, and see which are in force.

  headrace control list                                  orders that stand, and the workers
  headrace control pause --tenant acme                   nothing of it starts; what runs goes on
  headrace control pause --class p3
  headrace control resume --class p3
  headrace control requeue REQUEST --to p1               if it waits: in another class, under the same id
  headrace control drain WORKER                          it ends in order (`list` names it)
  headrace control quota --tenant acme --limit requests_per_minute=600 --over reject
  headrace control quota --tenant acme --reset           back to the configured one
  headrace control policy fifo                           another queueing discipline, at once
  headrace control policy --tree FILE                    another class tree
  headrace control policy --reset                        back to the configured ones

Orders stand until they are taken back, also for workers that start later. Each returns when every live worker has it:
exit code 1 if one has not within --wait seconds, or can't obey it. (`headrace cancel` ends requests.)
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path

import orjson
import yaml

from scheduling.policies import POLICIES
from topics.catalogue import CLASS_LABELS, Catalogue
from topics.control_log import ControlDesk
from topics.control_records import (
    CANCEL_KEPT_S,
    ControlRecord,
    DrainOrder,
    PauseOrder,
    PolicyOrder,
    QuotaOrder,
    RequeueOrder,
    control_key,
)
from topics.record_producer import RecordRefusedError
from workers.cli import UsageError
from workers.commands.connection import add_kafka_arguments, connection, kafka_config
from workers.commands.control_view import add_wait_argument, print_applied
from workers.commands.explained import explained

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shared = argparse.ArgumentParser(add_help=False)
    add_kafka_arguments(shared)
    add_wait_argument(shared)
    actions.add_parser("list", parents=[shared], help="the orders that stand, and the workers")
    for name, meaning in (("pause", "start nothing of a class or a tenant"), ("resume", "take a pause back")):
        action = actions.add_parser(name, parents=[shared], help=meaning)
        which = action.add_mutually_exclusive_group(required=True)
        which.add_argument("--class", dest="label", choices=CLASS_LABELS)
        which.add_argument("--tenant")
    requeue = actions.add_parser("requeue", parents=[shared], help="let a waiting request wait in another class")
    requeue.add_argument("request", metavar="REQUEST")
    requeue.add_argument("--to", required=True, choices=CLASS_LABELS)
    drain = actions.add_parser("drain", parents=[shared], help="let a worker end in order")
    drain.add_argument("worker", metavar="WORKER")
    quota = actions.add_parser("quota", parents=[shared], help="set a quota, for all workers together")
    whose = quota.add_mutually_exclusive_group(required=True)
    whose.add_argument("--tenant")
    whose.add_argument("--each-tenant", action="store_true", help="that has none of its own")
    whose.add_argument("--everybody", action="store_true", help="all tenants together")
    quota.add_argument(
        "--limit", action="append", default=[], metavar="NAME=NUMBER", help="requests_per_minute=600, cost_per_day=…"
    )
    quota.add_argument("--over", choices=("wait", "demote", "reject"), default="wait", help="what comes beyond it")
    quota.add_argument("--reset", action="store_true", help="back to the configured quota")
    policy = actions.add_parser("policy", parents=[shared], help="set the queueing discipline, or its class tree")
    policy.add_argument("policy", nargs="?", choices=POLICIES, metavar="POLICY", help=", ".join(POLICIES))
    policy.add_argument("--tree", type=Path, metavar="FILE", help="YAML, as below scheduling.tree")
    policy.add_argument("--reset", action="store_true", help="back to what is configured")


def run(arguments: argparse.Namespace) -> int:
    with explained(RecordRefusedError):
        order, withdraw = (None, False) if arguments.action == "list" else _order(arguments)
        return asyncio.run(_control(arguments, order, withdraw))


async def _control(arguments: argparse.Namespace, order: ControlRecord | None, withdraw: bool) -> int:
    config = kafka_config(arguments)
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    async with ControlDesk(connection(config, "headrace-control"), catalogue) as desk:
        if order is None:
            _list(desk, as_json=arguments.json)
            return 0
        if isinstance(order, DrainOrder) and order.worker not in {state.worker for state in desk.live_workers()}:
            raise UsageError(f"no worker {order.worker!r} is alive: `headrace control list` names those that are")
        offset = await (desk.withdraw(control_key(order)) if withdraw else desk.write(order))
        notice = await desk.wait_applied(offset, arguments.wait)
    return print_applied(f"{arguments.action} {control_key(order)}", notice, as_json=arguments.json)


def _order(arguments: argparse.Namespace) -> tuple[ControlRecord, bool]:
    """The order, and whether it is taken back rather than given. Raises `UsageError`."""
    match arguments.action:
        case "pause" | "resume":
            named = {"scope": "tenant", "name": arguments.tenant}
            if arguments.label is not None:
                named = {"scope": "class", "name": arguments.label}
            return PauseOrder.model_validate(named), arguments.action == "resume"
        case "requeue":
            expires_at_ms = int(1000 * (time.time() + CANCEL_KEPT_S))
            return RequeueOrder(request=arguments.request, to=arguments.to, expires_at_ms=expires_at_ms), False
        case "drain":
            return DrainOrder(worker=arguments.worker), False
        case "quota":
            return _quota(arguments), arguments.reset
        case _:
            return _policy(arguments), arguments.reset


def _quota(arguments: argparse.Namespace) -> QuotaOrder:
    scope = "everybody" if arguments.everybody else "each-tenant" if arguments.each_tenant else "tenant"
    limits: dict[str, float] = {}
    for text in arguments.limit:
        name, _, number = text.partition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            raise UsageError(f"--limit {text!r}: write NAME=NUMBER, such as requests_per_minute=600") from None
    document = {"scope": scope, "tenant": arguments.tenant, "limits": limits, "over": arguments.over}
    try:
        return QuotaOrder.model_validate(document)
    except ValueError as error:
        raise UsageError(f"--limit: {', '.join(limits)}: {_first_problem(error)}") from error


def _policy(arguments: argparse.Namespace) -> PolicyOrder:
    if arguments.reset is (arguments.policy is not None or arguments.tree is not None):
        raise UsageError("give a POLICY, a --tree FILE or both; or --reset alone")
    tree = None
    if arguments.tree is not None:
        try:
            tree = yaml.safe_load(arguments.tree.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise UsageError(f"--tree {arguments.tree}: {error}") from error
        if not isinstance(tree, dict):
            raise UsageError(f"--tree {arguments.tree}: it holds no settings of a tree")
    return PolicyOrder(policy=arguments.policy, tree=tree)


def _first_problem(error: ValueError) -> str:
    return str(error).splitlines()[2].strip() if str(error).count("\n") >= 2 else str(error)


def _list(desk: ControlDesk, *, as_json: bool) -> None:
    standing = {key: order.model_dump(exclude_none=True) for key, order in desk.orders.standing.items()}
    workers = desk.live_workers()
    cancels = desk.orders.statistics().cancels
    if as_json:
        document = {"orders": standing, "cancels": cancels, "workers": [state.model_dump() for state in workers]}
        sys.stdout.buffer.write(orjson.dumps(document) + b"\n")
        return
    for key, order in standing.items():
        shown = {name: value for name, value in order.items() if name not in ("version", "scope", "name", "tenant")}
        print(key, *(f"{name}={value}" for name, value in shown.items()))
    print(f"{len(standing)} orders stand, {cancels} cancels are remembered")
    for state in workers:
        problem = "" if state.problem is None else f"  can't obey: {state.problem}"
        print(f"{state.worker}  {state.state}  {','.join(state.classes)}{problem}")
    if not workers:
        print("no worker is alive")
