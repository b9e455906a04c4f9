"""`headrace simulate` from the command line: its files, the same bytes for a seed, errors that name the remedy."""

import re
from pathlib import Path

import orjson
import pytest

from workers.cli import main

DATA = Path(__file__).parents[2] / "data"
CONVERSATION = f"{DATA / 'azure_2023_conv.csv'}@class=p0:0.3+p1:0.7,tenants=2,limit=20"
BATCH = "synthetic@class=p3,requests=10,prompt=64,output=16"


def simulate(*arguments: str) -> int:
    return main(["simulate", CONVERSATION, BATCH, "--seed", "3", *arguments])


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies at one load, with everything."""
    out = tmp_path_factory.mktemp("out")
    assert simulate("--policy", "htb", "--policy", "fifo", "--load", "1.3", "--alone", "--out", str(out)) == 0
    return out


def test_every_run_has_its_files(outputs: Path) -> None:
    runs = ["htb-1.3", "fifo-1.3"]
    expected = {"results.json", "report.html"}
    expected |= {f"{run}.png" for run in runs} | {f"requests-{run}.csv" for run in runs}
    assert {path.name for path in outputs.iterdir()} == expected
    assert all((outputs / f"{run}.png").read_bytes().startswith(b"\x89PNG") for run in runs)
    assert len((outputs / "requests-htb-1.3.csv").read_text().splitlines()) == 31


def test_results_are_in_vllms_names(outputs: Path) -> None:
    results = orjson.loads((outputs / "results.json").read_bytes())
    assert [(run["policy"], run["load"]) for run in results["runs"]] == [("htb", 1.3), ("fifo", 1.3)]
    for run in results["runs"]:
        assert run["completed"] == 30
        for name in ("request_throughput", "request_goodput", "output_throughput", "percentiles_ttft_ms"):
            assert name in run
            assert all(name in group for group in run["by_class"].values())
        assert run["fairness"]["all"]["parties"] == 3
        slowdown = run["slowdown"]
        assert slowdown["by_class"].keys() == {"p0", "p1", "p3"}
        assert all(group["mean_ttft_slowdown_at_its_share"] > 0 for group in slowdown["by_tenant"].values())


def test_a_class_alone_is_never_slower_than_in_company(outputs: Path) -> None:
    results = orjson.loads((outputs / "results.json").read_bytes())
    for run in results["runs"]:
        assert run["slowdown"]["by_class"]["p0"]["mean_ttft_slowdown_alone"] >= 0.99


def test_the_report_needs_no_other_file(outputs: Path) -> None:
    report = (outputs / "report.html").read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,22})', report)
    assert sources == ["data:image/png;base64,"] * 2
    assert (report.count("<table>"), report.count("</table>")) == (4, 4)


def test_the_same_seed_gives_the_same_bytes(outputs: Path, tmp_path: Path) -> None:
    assert simulate("--policy", "htb", "--load", "1.3", "--jobs", "1", "--out", str(tmp_path)) == 0
    for name in ("htb-1.3.png", "requests-htb-1.3.csv"):
        assert (tmp_path / name).read_bytes() == (outputs / name).read_bytes()
    again, before = (orjson.loads((folder / "results.json").read_bytes()) for folder in (tmp_path, outputs))
    assert again["settings"] == before["settings"]
    assert again["runs"][0] == {name: value for name, value in before["runs"][0].items() if name != "slowdown"}


def test_json_goes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert simulate("--policy", "fifo", "--json", "--jobs", "1") == 0
    results = orjson.loads(capfdbinary.readouterr().out)
    assert results["settings"]["requests"] == 30
    assert results["runs"][0]["load"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.csv"], "nowhere.csv: can't be read"),
        (["a.csv@colour=red"], "no key 'colour' here"),
        ([f"{DATA / 'vidur_arxiv.csv'}"], "give rate=REQUESTS_A_SECOND"),
        ([BATCH, "--load", "0"], "--load 0.0: a part of the capacity"),
        ([BATCH, "--kv-tokens", "8"], "--kv-tokens 8: less than one block of 16 tokens"),
        ([BATCH, "--max-tokens", "0"], "--max-tokens 0: at least 1"),
        ([BATCH, "--step-time", "warp"], "step-time model 'warp'"),
        ([BATCH, "--staging-ms", "-1"], "--staging-ms -1.0"),
        ([BATCH, "--jobs", "0"], "--jobs 0: at least 1"),
    ],
)
def test_what_the_user_got_wrong_is_said(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert says in capsys.readouterr().err
