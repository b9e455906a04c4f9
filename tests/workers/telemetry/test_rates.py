"""Rates and spreads over looks a second apart."""

from workers.telemetry.rates import Growth, Spread, TenantThroughput
from workers.telemetry.tenant_labels import TenantLabels


def test_a_queue_that_swings_about_its_mean_shows_in_the_variance() -> None:
    calm, swinging = Spread(60), Spread(60)
    for second in range(60):
        calm.look(20)
        swinging.look(40 if second % 2 else 0)
    assert (calm.variance(), swinging.variance()) == (0, 400)


def test_growth_is_of_the_window_alone() -> None:
    growth = Growth(10)
    for second in range(100):
        growth.look(second, 5.0 * max(0, second - 50))
    assert (growth.amount(), growth.rate()) == (50.0, 5.0)


def test_one_look_is_no_rate() -> None:
    growth = Growth(10)
    growth.look(1.0, 1_000.0)
    assert growth.rate() == 0.0


def test_throughput_that_can_be_relied_on_counts_the_seconds_in_which_a_tenant_starves() -> None:
    throughput = TenantThroughput()
    for second in range(200):
        throughput.add("served", 100)
        if second >= 10:
            throughput.add("starved", 100)
        throughput.look(1.0, ["served", "starved"])
    assert throughput.reached() == {"served": 100, "starved": 0}
    assert throughput.mean() == {"served": 100, "starved": 100}


def test_seconds_in_which_a_tenant_wants_nothing_are_not_held_against_it() -> None:
    throughput = TenantThroughput()
    throughput.add("a", 50)
    throughput.look(0.5, ["a"])
    for _ in range(300):
        throughput.look(1.0, [])
    assert throughput.reached() == {"a": 100}
    assert throughput.mean() == {"a": 0}


def test_tenants_beyond_the_bound_are_one() -> None:
    labels = TenantLabels(2, known=["vip"])
    assert [labels.of(tenant) for tenant in ("a", "b", "vip", "a", "c")] == ["a", "other", "vip", "a", "other"]
    assert (labels.known("a"), labels.known("never seen")) == ("a", "other")
