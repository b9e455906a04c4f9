"""Request ids that are answered where one client reads."""

from aiokafka.partitioner import DefaultPartitioner

from topics.own_partition import OwnPartition


def test_an_id_is_held_where_a_producer_puts_its_replies() -> None:
    own = OwnPartition.draw(deltas=5, replies=3)
    put = DefaultPartitioner()
    for _ in range(20):
        key = own.new_id().encode()
        assert put(key, list(range(5)), list(range(5))) == own.delta_partition
        assert put(key, list(range(3)), list(range(3))) == own.reply_partition


def test_an_id_of_another_place_is_not_held() -> None:
    own = OwnPartition(deltas=2, replies=2, delta_partition=0, reply_partition=0)
    other = OwnPartition(deltas=2, replies=2, delta_partition=1, reply_partition=1)
    assert own.holds(own.new_id())
    assert not own.holds(other.new_id())


def test_of_one_partition_everything_is_held() -> None:
    assert OwnPartition.draw(deltas=1, replies=1).holds("anything")
