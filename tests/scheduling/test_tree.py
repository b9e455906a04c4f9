from dataclasses import replace
from math import inf

import pytest

from scheduling.default_tree import default_tree
from scheduling.priority import PriorityClass
from scheduling.tree import ClassConfig, LeafConfig, Rate, Slo, TenantsConfig, TreeConfig, TreeError, rates

P0, P1, P2, P3 = PriorityClass


def tree(*classes: ClassConfig, **changes: object) -> TreeConfig:
    return TreeConfig(classes=classes, **changes)  # type: ignore[arg-type]


def test_the_default_gives_rates_by_weight_and_all_slos_of_the_design() -> None:
    default = default_tree(capacity_units_s=3000.0)
    assert rates(default.classes, 3000.0) == [1600.0, 800.0, 400.0, 200.0]
    slos = [default.of(priority).slo for priority in PriorityClass]
    assert slos == [Slo(ttft_s=0.3, tpot_s=0.05), Slo(ttft_s=2.0, e2e_s=30.0, gap_s=2.0), Slo(e2e_s=60.0), Slo()]
    assert default.of(P0).strict_limit == Rate(share=0.5)


def test_explicit_rates_leave_the_rest_to_the_weights() -> None:
    classes = (
        ClassConfig(name="a", priority=P0, rate=Rate(share=0.4)),
        ClassConfig(name="b", priority=P1, rate=Rate(units_s=200)),
        ClassConfig(name="c", priority=P2, weight=3),
        ClassConfig(name="d", priority=P3, weight=1),
    )
    assert rates(classes, 1000.0) == [400.0, 200.0, 300.0, 100.0]


def test_an_over_committed_tree_is_refused_with_the_sum() -> None:
    with pytest.raises(TreeError, match=r"over-committed.*a 70\.0% \+ b 40\.0% = 110\.0%"):
        tree(
            ClassConfig(name="a", priority=P0, rate=Rate(share=0.7)),
            ClassConfig(name="b", priority=P1, rate=Rate(units_s=400)),
        )


def test_strict_limits_count_beside_the_other_rates() -> None:
    with pytest.raises(TreeError, match=r"strict limits and other rates are a 60\.0% \+ b 50\.0% = 110\.0%"):
        tree(
            ClassConfig(name="a", priority=P0, rate=Rate(share=0.1), strict_limit=Rate(share=0.6)),
            ClassConfig(name="b", priority=P1, rate=Rate(share=0.5)),
        )


def test_the_check_goes_down_to_inner_classes() -> None:
    group = ClassConfig(
        name="team",
        rate=Rate(share=0.5),
        children=(
            ClassConfig(name="a", priority=P0, rate=Rate(units_s=400)),
            ClassConfig(name="b", priority=P1, rate=Rate(units_s=200)),
        ),
    )
    with pytest.raises(TreeError, match=r"class team is over-committed.*120\.0% of its own 500 units/s"):
        tree(group)
    tree(group, capacity_units_s=1200.0)


def test_shares_that_add_up_in_thirds_are_no_over_commitment() -> None:
    tree(*(ClassConfig(name=p.label, priority=p, rate=Rate(share=1 / 3)) for p in (P0, P1, P2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Rate, "either a share or units"),
        (lambda: Rate(share=0.5, units_s=3), "either a share or units"),
        (lambda: Rate(share=1.5), "between 0 and 1"),
        (lambda: Rate(units_s=-1), "from 0 up"),
        (lambda: Slo(ttft_s=0), "ttft_s is 0"),
        (lambda: LeafConfig(quantum=0), "quantum is 0"),
        (lambda: LeafConfig(debt_half_life_s=0), "debt_half_life_s is 0"),
        (lambda: TenantsConfig(weights={"acme": 0}), "weight of tenant acme is 0"),
        (lambda: TenantsConfig(quantum=0), "quantum is 0"),
        (lambda: ClassConfig(name="a"), "either a priority class or children"),
        (lambda: ClassConfig(name="a", priority=P0, weight=0), "weight is 0"),
        (lambda: ClassConfig(name="a", priority=P0, lendable=2), "lendable is 2"),
        (lambda: ClassConfig(name="a", priority=P0, borrow_limit=-0.5), "borrow_limit is -0.5"),
        (lambda: ClassConfig(name="a", priority=P0, prio=8), "prio is 8"),
        (lambda: ClassConfig(name="a", priority=P0, quantum=0), "quantum is 0"),
        (lambda: ClassConfig(name="a", priority=P0, max_wait_s=0), "max_wait_s is 0"),
        (lambda: ClassConfig(name="a", priority=P0, burst_s=-1), "burst_s is -1"),
        (tree, "at least one class"),
        (lambda: tree(ClassConfig(name="a", priority=P0), largest_item=0), "largest_item is 0"),
        (lambda: tree(ClassConfig(name="a", priority=P0), capacity_units_s=0), "capacity_units_s is 0"),
        (lambda: tree(ClassConfig(name="a", priority=P0), promote_share=2), "promote_share is 2"),
        (lambda: tree(*(ClassConfig(name="a", priority=p) for p in (P0, P1))), "two classes are called a"),
        (lambda: tree(*(ClassConfig(name=n, priority=P0) for n in "ab")), "p0 is served by a and b"),
        (
            lambda: tree(ClassConfig(name="a", priority=P0, rate=Rate(share=0.5), ceil=Rate(share=0.2))),
            "ceil 20.0% is below its rate",
        ),
        (
            lambda: ClassConfig(name="g", strict_limit=Rate(share=0.1), children=(ClassConfig(name="a", priority=P0),)),
            "strict_limit is for a priority class",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        make()  # type: ignore[operator]


def test_a_tree_has_eight_levels_at_most() -> None:
    def nested(depth: int) -> ClassConfig:
        inner = ClassConfig(name="leaf", priority=P0)
        for number in range(depth):
            inner = ClassConfig(name=f"group-{number}", children=(inner,))
        return inner

    tree(nested(6))
    with pytest.raises(TreeError, match="level 9 of at most 8"):
        tree(nested(7))


def test_a_class_that_is_not_served_is_named_with_those_that_are() -> None:
    only = tree(ClassConfig(name="a", priority=P1))
    with pytest.raises(TreeError, match="no class for p3: it serves p1"):
        only.of(P3)


def test_an_slo_gives_the_deadline_and_none_gives_none() -> None:
    assert Slo(ttft_s=2.0).ttft_deadline_s(10.0) == 12.0
    assert Slo(e2e_s=2.0).ttft_deadline_s(10.0) == inf


def test_named_tenants_have_their_weights() -> None:
    tenants = TenantsConfig(weight=2.0, weights={"acme": 5.0})
    assert (tenants.weight_of("acme"), tenants.weight_of("bolt")) == (5.0, 2.0)


def test_a_changed_tree_is_checked_again() -> None:
    default = default_tree()
    with pytest.raises(TreeError, match="over-committed"):
        replace(default, classes=tuple(replace(child, rate=Rate(share=0.3)) for child in default.classes))
