"""The command line: one table of commands, each in an entry module of its own, loaded by name when it is asked for.

Knows the names, one sentence each, and the exit codes: 0 done, 1 failed, 2 what the user got wrong. Does not know
what a command does.
"""

import argparse
import gc
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from topics.extras import how_to_install
from workers.log_format import LOG_FORMATS, set_up_logging
from workers.models.openmp import bound_spinning

__all__ = ["CommandFailedError", "UsageError", "main"]

log = logging.getLogger(__name__)

COMMANDS = {
    "demo": "Kafka, a worker, a batch flood and an urgent prompt on this machine; ends by itself",
    "dev": "Kafka and a worker on this machine, until Ctrl-C",
    "serve": "run a worker against a Kafka cluster",
    "send": "send one prompt and print the answer as it streams",
    "submit": "submit a file of requests as an offline job",
    "status": "how a job goes",
    "jobs": "list the jobs",
    "results": "write what a job has answered so far",
    "resume": "run the rows of a job that were never run",
    "retry": "run the rows of a job that failed once more",
    "cancel": "end a request, a job or all that a tenant has sent",
    "collect": "gather the results of all jobs into files, until Ctrl-C",
    "usage": "what each tenant has used",
    "control": "pause, drain, quotas and the policy of running workers; what is in force",
    "topics": "create or check the topics",
    "dlq": "list, show and replay dead letters",
    "schema": "print the contract: AsyncAPI, JSON Schemas",
    "simulate": "replay request traces on virtual time, under several policies side by side",
    "top": "show live what the workers do",
    "load": "play request traces against a running stack and measure it",
    "compare": "two runs of load or simulate side by side, with intervals",
    "config": "print the effective configuration with every field's meaning",
    "bench": "measure: engine, urgent, delivery, scheduler, swap, paging, telemetry",
}


LOG_LEVELS = ("debug", "info", "warning", "error")
OWN_PACKAGES = frozenset({"workers", "scheduling", "kvcache", "topics"})


class UsageError(Exception):
    """What the user got wrong, in a sentence that names it and the remedy. Exit code 2, no traceback."""


class CommandFailedError(Exception):
    """What failed though nothing was wrong with the order, in a sentence. Exit code 1, no traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    bound_spinning()  # here, for nothing has imported torch yet
    try:
        return _dispatch(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing more to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(), flush=True)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"headrace: no command {name!r}; the commands are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return _command(name, rest)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in OWN_PACKAGES:
            raise  # a bug
        print(
            f"headrace: `headrace {name}` needs the package {error.name}, which is not installed: "
            f"{how_to_install('worker')}",
            file=sys.stderr,
        )
        return 2


def _loaded(name: str) -> ModuleType:
    """The module, without a thought for garbage: what is loaded stays, and looking through it again and again takes a
    tenth of the time."""
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _command(name: str, rest: Sequence[str]) -> int:
    module = _loaded(f"workers.commands.{name}")
    parser = argparse.ArgumentParser(
        prog=f"headrace {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="YAML configuration file (see `headrace config`)")
    parser.add_argument(
        "--log-level",
        type=str.lower,
        choices=LOG_LEVELS,
        metavar="LEVEL",
        help="debug, info, warning (the default) or error",
    )
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, default="text", help="text (the default), or json: an object a line"
    )
    module.add_arguments(parser)
    parsed = parser.parse_args(rest)
    if parsed.config is not None:
        os.environ["HEADRACE_CONFIG"] = parsed.config
    set_up_logging(parsed.log_level, parsed.log_format)
    return _run(module, parsed)


def _run(module: ModuleType, parsed: argparse.Namespace) -> int:
    try:
        code = module.run(parsed)
    except UsageError as error:
        return _say(error, 2)
    except CommandFailedError as error:
        return _say(error, 1)
    assert isinstance(code, int)
    return code


def _say(error: UsageError | CommandFailedError, code: int) -> int:
    log.debug("why", exc_info=error)
    print(f"headrace: {error}", file=sys.stderr)
    return code


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [
        "Headrace: LLM requests on Kafka topics, scheduled by HTB + SFQ into a continuous-batching engine.",
        "",
        "usage: headrace COMMAND [options]      (headrace COMMAND --help says more)",
        "",
        *(f"  {name:<{width}}  {meaning}" for name, meaning in COMMANDS.items()),
        "",
        "First time here? `headrace demo`.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
