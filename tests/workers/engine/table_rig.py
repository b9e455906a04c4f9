"""The engine's table of requests with the index that it stands beside, and nothing else."""

from math import inf

from scheduling.index import Index
from scheduling.state import RequestState
from workers.engine.request_table import RequestTable
from workers.intake.request import Arrival


class TableRig:
    def __init__(self) -> None:
        self.index = Index()
        self.table = RequestTable(self.index)

    def add(self, arrival: Arrival) -> int:
        """Its row."""
        row = self.index.add(
            origin=arrival.origin_class,
            service=arrival.service_class,
            tenant=arrival.tenant,
            flow=arrival.flow,
            prompt_tokens=8,
            output_tokens=4,
            arrival_s=arrival.arrived_s,
            ttft_deadline_s=inf if arrival.ttft_deadline_s is None else arrival.ttft_deadline_s,
            hard_deadline_s=inf if arrival.hard_deadline_s is None else arrival.hard_deadline_s,
        )
        self.table.add(row, arrival)
        return row

    def end(self, row: int) -> None:
        self.table.forget(row)
        self.index.move(row, RequestState.CANCELLED)
        self.index.release(row)
