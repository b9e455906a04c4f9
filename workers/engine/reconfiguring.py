"""Changes of the configuration while the engine runs: quotas, class tree, policy, what is paused.

Knows which parts each change concerns. Does not know where it comes from (`workers.orders.live_scheduling`), nor
requests: all that is queued and in flight stays. Owned by the engine thread.
"""

import logging

from scheduling.accounting import AccountedQdisc
from scheduling.batch import BatchScheduler
from scheduling.index import Index
from scheduling.intake import Intake
from scheduling.policies import change_quotas, switch_policy
from scheduling.tree import TreeConfig, TreeError
from workers.engine.messages import NewPolicy, NewQuotas, NewTree, PausedClasses, QuotaShare, Reconfiguration

__all__ = ["Reconfiguring"]

log = logging.getLogger(__name__)


class Reconfiguring:
    def __init__(self, scheduler: BatchScheduler, qdisc: AccountedQdisc, index: Index, intake: Intake) -> None:
        self._scheduler = scheduler
        self._qdisc = qdisc
        self._index = index
        self._intake = intake
        self._quota_share = 1.0
        """This worker's part, which outlives the quotas that it is a part of."""

    def take(self, change: Reconfiguration, now: float) -> None:
        match change:
            case QuotaShare(share):
                self._quota_share = share
                self._qdisc.divide_quotas(share, now)
            case NewTree(tree):
                self._reload(tree, now)
            case NewPolicy(policy, tree, strict, quotas, paused):
                switch_policy(self._qdisc, policy, self._index, tree, now, quotas, paused)
                self._qdisc.divide_quotas(self._quota_share, now)
                self._intake.set_quotas(quotas)
                self._scheduler.set_strict(strict)
            case NewQuotas(quotas, paused):
                change_quotas(self._qdisc, self._index, now, quotas, paused)
                self._qdisc.divide_quotas(self._quota_share, now)
                self._intake.set_quotas(quotas)
            case PausedClasses(classes):
                self._scheduler.set_paused(classes)

    def _reload(self, tree: TreeConfig, now: float) -> None:
        try:
            self._qdisc.reload(tree, now)
        except TreeError as error:
            log.error("the class tree stays as it was: %s", error)
        else:
            log.info("a new class tree is in force")
