"""Which tenants have series of their own.

Knows names and a bound. A label that has been given stays: a counter can't change its name.
"""

from collections.abc import Iterable
from itertools import islice

__all__ = ["OTHER", "TenantLabels"]

OTHER = "other"


class TenantLabels:
    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        """`known`: those that come first, whenever they come."""
        self._labels: dict[str, str] = {tenant: tenant for tenant in islice(known, limit)}
        self._left = limit - len(self._labels)

    def of(self, tenant: str) -> str:
        """The label of a tenant: its name, or `other`. Owned by one thread."""
        label = self._labels.get(tenant)
        if label is not None:
            return label
        if not self._left:
            return OTHER
        self._left -= 1
        self._labels[tenant] = tenant
        return tenant

    def known(self, tenant: str) -> str:
        """The same without giving a new one. From any thread."""
        return self._labels.get(tenant, OTHER)
