"""A tensor-parallel group without a model: ranks that only wait for orders. Run as a script, it is rank 0."""

import sys
from multiprocessing.connection import Connection
from pathlib import Path

from workers.runners.rank_group import RankGroup, join_group


def follow(orders: Connection, rank: int, ranks: int, rendezvous: Path) -> None:
    orders.send(rank)
    join_group("cpu", rank, ranks, rendezvous)
    try:
        orders.recv()
    except EOFError:
        return


if __name__ == "__main__":
    from tests.workers.runners import idle_rank  # under the name by which the other process finds the function

    group = RankGroup(2, "cpu", idle_rank.follow, ())
    print(*group.process_ids, flush=True)
    sys.stdin.read()
