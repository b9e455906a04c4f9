"""Prompt prefixes in traces: shared pieces are computed once."""

from dataclasses import replace

from tests.simulation.simulation_rig import P1, P2, engine, figures, request, simulate, stream
from workers.runs.simulation import BlockNames


def test_a_shared_prefix_is_computed_once() -> None:
    first = replace(request(prompt=600, output=4), prefix_hashes=(7, 8), prefix_tokens=512)
    others = [
        replace(request(10.0 + number, P2, prompt=600, output=4), prefix_hashes=(7, 9 + number), prefix_tokens=512)
        for number in range(3)
    ]
    run = simulate(stream([first], others), "htb", engine(step_tokens=1024))
    assert run.batch.prefill_tokens == 600 + 3 * (600 - 512)
    assert run.kv.hit_tokens_by_class[P2] == 3 * 512


def test_what_is_found_is_no_service_and_costs_nothing() -> None:
    twice = [replace(request(10.0 * number), prefix_hashes=(5,), prefix_tokens=64) for number in range(2)]
    run = simulate(stream(twice), "htb")
    assert [record.prompt_computed for record in run.requests] == [64, 64]
    assert run.batch.prefill_tokens == 64 + 16, "of the second prompt one block, as one token at least is computed"
    assert run.ticks.service[-1].tolist() == [64 + 2 * 16], "the second one is served after the last full second"


def test_blocks_are_named_by_the_piece_that_holds_them_or_by_the_request() -> None:
    first, second = (
        replace(item, prefix_hashes=hashes, prefix_tokens=32)
        for item, hashes in zip(stream([request(prompt=80), request(prompt=80)]), ((1, 2, 3), (1, 2, 3)), strict=True)
    )
    names = [list(BlockNames(item, 16)) for item in (first, second)]
    assert names[0][:5] == names[1][:5]
    assert set(names[0][5:]).isdisjoint(names[1][5:])
    assert len(names[0]) == (80 + 16) // 16
    assert len({*names[0], *names[1]}) == 5 + 2


def test_pieces_that_do_not_divide_into_blocks_share_nothing() -> None:
    item = replace(request(prompt=80), prefix_hashes=(1, 2), prefix_tokens=40)
    assert all(name >= 0 for name in BlockNames(item, 16))


def test_a_preempted_request_finds_what_it_had_computed() -> None:
    requests = stream([request(output=2) for _ in range(20)], [request(30.0, P1, output=64) for _ in range(4)])
    run = simulate(requests, "fifo", engine(blocks=18, context_tokens=288, known_lengths=False))
    assert 0 < run.batch.recomputed_tokens < run.batch.lost_tokens
    assert figures(run)["preemptions"] > 0
