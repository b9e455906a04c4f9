"""The other ranks of a tensor-parallel worker: started, told what to do, and ended together.

Knows processes, pipes and torch's process group. Does not know what a rank computes
(`workers.runners.parallel_runner`).

Rank 0 is the worker: it alone has consumers, a scheduler and a sampler. The others are processes of its own that follow
its orders, which come by a pipe each; tensors go by torch.distributed (gloo between CPUs, NCCL between GPUs). So a rank
that waits for work waits on a pipe, not in a collective, and any end is seen at once: a follower whose rank 0 is gone
reads the end of its pipe; rank 0 sees a follower's process end. Either way **the whole group ends**, for the weights of
the rank that is gone are nowhere else, and is started again.
"""

import atexit
import multiprocessing
import tempfile
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from workers.runners.errors import DeviceLost

__all__ = ["RankGroup", "join_group"]

_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Ranks may load at different speeds. One that has died is noticed by its process, long before."""
_GOODBYE_S = 5.0


class RankGroup:
    """Rank 0's side. `tell` and `ask` are the engine thread's (and whoever loads the model, before it starts)."""

    def __init__(self, ranks: int, device_type: str, follow: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Start `follow(connection, rank, ranks, rendezvous, *arguments)` in `ranks − 1` processes and join them.

        `follow` is a module's function; what is handed over is pickled. It says its rank when it is about to join.

        Raises `DeviceLost` if one ends before.
        """
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-ranks-")
        rendezvous = Path(self._folder.name) / "store"
        # Not forked: CUDA and thread pools don't survive that.
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        self._closed = threading.Event()
        for rank in range(1, ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=follow,
                args=(theirs, rank, ranks, rendezvous, *arguments),
                name=f"headrace-rank-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        atexit.register(self.close)  # before multiprocessing's own, which would wait for them
        try:
            self.answers()  # all have come up: joining a group that one never joins takes minutes to fail
            join_group(device_type, 0, ranks, rendezvous)
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def tell(self, order: object) -> None:
        """Every follower does this next. Raises `DeviceLost` if one is gone."""
        for rank, connection in enumerate(self._connections, start=1):
            try:
                connection.send(order)
            except OSError as error:
                raise DeviceLost(f"rank {rank} of {self.ranks} is gone: the group must be started again") from error

    def answers(self) -> list[Any]:
        """What the followers say to an order that asks for something, one each. Raises `DeviceLost`."""
        found = []
        for rank, connection in enumerate(self._connections, start=1):
            try:
                found.append(connection.recv())
            except (EOFError, OSError) as error:
                raise DeviceLost(f"rank {rank} of {self.ranks} is gone: the group must be started again") from error
        return found

    def wait_lost(self, timeout_s: float) -> bool:
        """Block until a follower has ended that was not told to, at most so long. Any thread's."""
        ended = wait([process.sentinel for process in self._processes], timeout_s)
        return bool(ended) and not self._closed.is_set()

    def close(self) -> None:
        """The followers end: they read the end of their pipes. Calling it again does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        atexit.unregister(self.close)
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(_GOODBYE_S)
            if process.is_alive():
                process.kill()  # it hangs in a collective whose other side is gone
                process.join(_GOODBYE_S)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._folder.cleanup()


def join_group(device_type: str, rank: int, ranks: int, rendezvous: Path) -> None:
    """Make this process one of the group's. Returns when all have come."""
    torch.distributed.init_process_group(
        "nccl" if device_type == "cuda" else "gloo",
        init_method=rendezvous.as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=_COLLECTIVE_TIMEOUT,
    )
