"""Two runs side by side: ratios, intervals that hold what they should, and what can't be compared."""

import csv
from pathlib import Path
from random import Random

import orjson
import pytest

from workers.cli import main
from workers.runs.run_comparison import ComparisonError, FigureRatio, compare_runs, read_run

COLUMNS = ["request", "class", "tenant", "arrival_s", "output_tokens", "outcome", "ttft_s", "e2el_s"]
STAGES = ["transport_s", "ingress_s", "queue_s", "slot_s", "prefill_s"]


def write(path: Path, ttfts: list[float], *, stages: bool = False, label: str = "p1", first: int = 0) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *(STAGES if stages else [])])
        for number, ttft in enumerate(ttfts):
            row = [first + number, label, "a", number, 5, "finished", ttft, ttft + 1.0]
            writer.writerow([*row, *([ttft / 5] * 5 if stages else [])])
    return path


def noise(seed: int, count: int = 100) -> list[float]:
    random = Random(seed)
    return [random.expovariate(1.0) for _ in range(count)]


def ratio(a: Path, b: Path, figure: str = "TTFT mean") -> FigureRatio:
    return next(found for found in compare_runs(read_run(a), read_run(b))["p1"] if found.figure == figure)


def test_twice_as_slow_for_every_request_is_two_without_doubt(tmp_path: Path) -> None:
    values = noise(1)
    found = ratio(write(tmp_path / "a.csv", values), write(tmp_path / "b.csv", [2 * value for value in values]))
    assert (found.ratio, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    assert found.decided


def test_two_draws_from_one_distribution_are_undecided(tmp_path: Path) -> None:
    found = ratio(write(tmp_path / "a.csv", noise(1)), write(tmp_path / "b.csv", noise(2)))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 < found.high
    assert not found.decided


def test_the_interval_holds_the_true_ratio_about_19_times_in_20(tmp_path: Path) -> None:
    held = 0
    for seed in range(60):
        a = write(tmp_path / "a.csv", noise(seed))
        b = write(tmp_path / "b.csv", [1.5 * value for value in noise(1_000 + seed)], first=1_000)
        (found,) = (one for one in compare_runs(read_run(a), read_run(b), draws=200)["p1"] if one.figure == "TTFT mean")
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.5 <= found.high
    assert 50 <= held <= 60


def test_blocks_of_neighbours_that_are_alike_make_the_interval_wider(tmp_path: Path) -> None:
    random = Random(5)
    bursts = [level for level in (random.expovariate(1.0) for _ in range(10)) for _ in range(10)]
    shuffled = random.sample(bursts, len(bursts))
    flat = write(tmp_path / "flat.csv", [1.0] * 100)
    widths = []
    for name, values in (("bursts", bursts), ("shuffled", shuffled)):
        found = ratio(flat, write(tmp_path / f"{name}.csv", values))
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high - found.low)
    assert widths[0] > 1.5 * widths[1]


def test_unfinished_requests_are_no_part_of_a_latency(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [1.0, 1.0])
    path.write_text(path.read_text() + "2,p1,a,2,5,failed,,\n")
    assert read_run(path).finished.tolist() == [True, True, False]
    assert ratio(path, path).a == 1.0


def test_the_command_shows_the_split_of_live_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "requests-fifo.csv", [1.0, 2.0], stages=True)
    b = write(tmp_path / "requests-htb.csv", [0.5, 1.0], stages=True)
    assert main(["compare", str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    assert "0.50 ×" in shown
    assert all(stage.removesuffix("_s") in shown for stage in STAGES)
    assert main(["compare", str(a), str(b), "--json"]) == 0
    document = orjson.loads(capsys.readouterr().out)
    assert document["by_class"]["p1"]["mean_ttft_split_s"]["b"]["queue"] == pytest.approx(0.15)


def test_a_folder_with_one_run_is_that_run(tmp_path: Path) -> None:
    write(tmp_path / "requests-htb.csv", [1.0])
    assert read_run(tmp_path).name == "htb"
    write(tmp_path / "requests-fifo.csv", [1.0])
    with pytest.raises(ComparisonError, match="name the file itself"):
        read_run(tmp_path)


def test_what_can_not_be_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a.csv", [1.0]), write(tmp_path / "b.csv", [1.0], label="p3")
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    for second, says in (
        (b, "no class in common"),
        (tmp_path / "other.csv", "is no CSV of"),
        (tmp_path / "no", "can't be"),
    ):
        assert main(["compare", str(a), str(second)]) == 2
        assert says in capsys.readouterr().err
