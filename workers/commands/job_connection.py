"""What every command on jobs begins with: settings, catalogue and the board of jobs; and the arguments they share.

Not a command itself.
"""

import argparse
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from topics.catalogue import Catalogue
from topics.jobs.board import Job, JobBoard
from topics.jobs.errors import JobFailedError, JobMistakeError
from topics.kafka_settings import KafkaSettings
from topics.record_producer import RecordRefusedError
from workers.cli import UsageError
from workers.commands.connection import connection, kafka_config
from workers.commands.explained import explained
from workers.configuration.kafka_config import KafkaConfig

__all__ = ["JobDesk", "duration_s", "explained_jobs", "job_desk", "known_job"]

_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class JobDesk:
    settings: KafkaSettings
    catalogue: Catalogue
    board: JobBoard


@contextmanager
def explained_jobs() -> Iterator[None]:
    """`explained`, with what can go wrong with jobs."""
    with explained(JobFailedError, RecordRefusedError):
        try:
            yield
        except JobMistakeError as error:
            raise UsageError(str(error)) from error


@asynccontextmanager
async def job_desk(arguments: argparse.Namespace, role: str) -> AsyncIterator[JobDesk]:
    """`role` names the connection in the broker's logs."""
    config: KafkaConfig = kafka_config(arguments)
    settings = connection(config, f"headrace-{role}")
    catalogue = Catalogue(prefix=config.topic_prefix, group_prefix=config.group_prefix)
    async with JobBoard(settings, catalogue) as board:
        yield JobDesk(settings, catalogue, board)


def known_job(board: JobBoard, job_id: str) -> Job:
    """Raises `UsageError`."""
    job = board.jobs.get(job_id)
    if job is None:
        raise UsageError(f"there is no job {job_id!r}: `headrace jobs` lists them")
    return job


def duration_s(text: str) -> int:
    """`24h` → 86400; for argparse."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: write a whole number and s, m, h or d, such as 24h")
    return int(found[1]) * _UNIT_S[found[2]]
