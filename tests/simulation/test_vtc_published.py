"""The comparison with the published VTC runs: their figures, the fit, their admission rule."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import vtc_published
from benchmarks.vtc_admission import StaggeredKV
from benchmarks.vtc_fit import FittedMachine, fit_machine
from benchmarks.vtc_results import ServedRun, read_published, run_figures
from kvcache.manager import KVCacheManager
from scheduling.index import Index
from scheduling.priority import PriorityClass
from scheduling.step_time import LinearStepTime

DATA = Path(__file__).parents[1] / "data"


def served(*requests: tuple[str, float, float, float], prompt: int = 100, output: int = 50) -> ServedRun:
    """Client, arrival, first token, end."""
    clients, arrivals, firsts, ends = zip(*requests, strict=True)
    return ServedRun(
        np.array(clients),
        np.array(arrivals),
        np.full(len(requests), prompt),
        np.full(len(requests), output),
        np.array(firsts),
        np.array(ends),
    )


def test_a_published_file_is_read_with_its_times() -> None:
    run = read_published(DATA / "vtc_fcfs_overload.csv")
    assert len(run.client) == 100
    assert (run.client[0], run.arrival_s[0]) == ("8-1", 0.6502)
    assert run.first_token_s[0] == pytest.approx(0.6502 + 0.9351)
    assert run.end_s[0] == pytest.approx(0.6502 + 12.5054)
    assert set(run.cost.tolist()) == {256 + 2 * 256}


def test_a_file_without_times_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vtc_arena.csv is not a published result: 'ttft_s'"):
        read_published(DATA / "vtc_arena.csv")


def test_the_accumulated_gap_is_between_the_most_and_the_least_served() -> None:
    # a gets its 200 units from 0 to 10 s, b its from 10 to 20 s: at 10 s they are 200 apart.
    figures = run_figures(served(("a", 0.0, 0.0, 10.0), ("b", 0.0, 10.0, 20.0)), horizon_s=100.0)
    assert figures.accumulated_gap == pytest.approx(200)
    assert figures.weighted_throughput == pytest.approx(4.0)
    assert figures.mean_ttft_s == {"a": 0.0, "b": 10.0}


def test_who_asks_for_little_is_not_said_to_be_short_of_it() -> None:
    a = [("a", 10.0 * number, 10.0 * number, 10.0 * number + 10) for number in range(30)]
    b = [("b", 100.0 * number, 100.0 * number, 100.0 * number + 100) for number in range(3)]
    calm = run_figures(served(*a, *b), horizon_s=300.0)
    late = [("b", 100.0 * number, 300.0, 310.0) for number in range(3)]
    starved = run_figures(served(*a, *late), horizon_s=300.0)
    assert calm.windowed_gap < starved.windowed_gap


MACHINE = FittedMachine(LinearStepTime(30e-3, 0.25e-3, 0.5e-3, 0.0), 20 * 512, 20, 0.0, 11.0)


def flood(requests: int, rate: float) -> ServedRun:
    arrivals = np.arange(requests) / rate
    clients = np.array([f"8-{number % 3 and 1}" for number in range(requests)])
    tokens = np.full(requests, 256)
    return ServedRun(clients, arrivals, tokens, tokens, arrivals, arrivals)


def test_the_fit_finds_the_machine_that_made_a_run() -> None:
    machine = fit_machine(vtc_published.simulate(flood(120, 4.5), MACHINE, "fifo", None))
    assert machine.pool_tokens == MACHINE.pool_tokens
    assert machine.step_time.fixed_s == pytest.approx(30e-3, rel=0.1)
    assert machine.step_time.per_decode_sequence_s == pytest.approx(0.5e-3, rel=0.2)
    assert machine.step_time.per_prefill_token_s == pytest.approx(0.25e-3, rel=0.2)
    assert machine.mean_error_s < 0.02 * machine.mean_decode_s


def test_htb_shares_a_flood_evenly_where_fifo_does_not() -> None:
    run = flood(120, 4.5)
    horizon_s = float(run.arrival_s.max())
    fifo, htb = (run_figures(vtc_published.simulate(run, MACHINE, name, None), horizon_s) for name in ("fifo", "htb"))
    assert htb.accumulated_gap < fifo.accumulated_gap / 2
    assert htb.weighted_throughput == pytest.approx(fifo.weighted_throughput, rel=0.02)


def index_of(rows: int, tenants: int) -> Index:
    index = Index(capacity=rows)
    for number in range(rows):
        index.add(
            origin=PriorityClass.P1,
            tenant=f"t{number % tenants}",
            flow="f",
            prompt_tokens=100,
            output_tokens=100,
            arrival_s=0.0,
        )
    return index


def admitted(kv: KVCacheManager, rows: int, grown: int) -> int:
    """How many requests of 100 + 100 tokens fit if each has got `grown` tokens before the next comes."""
    for row in range(rows):
        if kv.allocate(row, 100, owner_class=1, predicted_tokens=200) is None:
            return row
        for held in range(row + 1):
            length = 100 + min(99, (row - held + 1) * grown)
            assert kv.grow(held, length)
    return rows


def test_their_admission_reckons_with_the_order_of_ends() -> None:
    index = index_of(30, tenants=1)
    theirs = admitted(StaggeredKV(index, 1100), 30, grown=15)
    everybodys_longest = admitted(KVCacheManager(1100, 1, firm=True), 30, grown=15)
    assert everybodys_longest == 5
    assert theirs > everybodys_longest


def test_requests_in_lockstep_gain_nothing_by_it() -> None:
    index = index_of(30, tenants=1)
    assert admitted(StaggeredKV(index, 1100), 30, grown=0) == 5


def test_each_tenants_adapter_takes_its_part_of_their_pool() -> None:
    assert admitted(StaggeredKV(index_of(30, tenants=30), 1100), 30, grown=0) == 4


def test_the_command_needs_the_run_to_fit_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vtc_published.main([str(tmp_path)]) == 2
    assert "has no FCFS__overload.csv" in capsys.readouterr().err


def test_the_command_prints_published_and_ours_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "FCFS__overload.csv").write_bytes((DATA / "vtc_fcfs_overload.csv").read_bytes())
    assert vtc_published.main([str(tmp_path), "--policy", "fifo", "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "published FCFS" in shown
    assert "ours fifo" in shown
    assert (tmp_path / "out.json").stat().st_size > 500
