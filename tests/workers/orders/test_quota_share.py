"""A worker's part of each quota follows its part of the partitions."""

from workers.orders.quota_share import ShareOfPartitions


def test_the_part_is_told_when_it_changes() -> None:
    told: list[float] = []
    assigned = [6]
    share = ShareOfPartitions(lambda: assigned[0], 12, 1.0, told.append)
    for owned in (12, 6, 6, 3, 0, 3, 4):
        assigned[0] = owned
        share.look()
    assert told == [0.5, 0.25, 4 / 12]


def test_the_parts_of_all_workers_add_up_to_one() -> None:
    told: dict[str, float] = {}
    owned = {"a": 5, "b": 5, "c": 2}

    def look(name: str) -> None:
        ShareOfPartitions(lambda: owned[name], 12, 1.0, lambda part: told.update({name: part})).look()

    for name in owned:
        look(name)
    assert sum(told.values()) == 1.0
