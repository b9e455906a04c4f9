"""What `headrace config` warns of in a class tree, and how short it is about a tree that can't be read."""

from pathlib import Path

import pytest

from workers.cli import main

TREE = """
scheduling:
  tree:
    classes:
      - {{name: online, priority: p1, burst_s: {burst}, slo: {{e2e_s: 30}}}}
      - {{name: rest, priority: p3, burst_s: 1}}
"""


def config(tmp_path: Path, text: str) -> int:
    (tmp_path / "h.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CONFIG", "")  # what --config sets is set back
        return main(["config", "--config", str(tmp_path / "h.yaml")])


def test_a_burst_that_holds_less_than_an_ordinary_request_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert config(tmp_path, TREE.format(burst=2)) == 0
    told = capsys.readouterr().err
    assert "class online: burst_s = 2 holds less" in told
    assert "Set burst_s to 15 or more" in told
    assert "rest" not in told  # it promises no time


def test_the_shipped_burst_is_not_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert config(tmp_path, TREE.format(burst=10)) == 0
    assert capsys.readouterr().err == ""


def test_a_bad_tree_is_told_in_a_line_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = "\n".join(f"      - {{name: c{number}, priority: p1}}" for number in range(50))
    assert config(tmp_path, f"scheduling:\n  tree:\n    colour: red\n    classes:\n{many}\n") == 2
    told = capsys.readouterr().err
    assert "colour" in told
    assert max(map(len, told.splitlines())) < 400
