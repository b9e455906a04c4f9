"""`headrace load` from the command line, as far as it goes without a broker."""

from pathlib import Path

import pytest

from workers.cli import main

SYNTHETIC = "synthetic@class=p3,requests=3,prompt=8,output=4"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to play"),
        ([SYNTHETIC, "--speed", "0"], "--speed 0.0: a number above 0"),
        ([SYNTHETIC, "--length-scale", "nan"], "--length-scale nan"),
        ([SYNTHETIC, "--load", "-1"], "--load -1.0: a number above 0"),
        ([SYNTHETIC, "--load", "1.2"], "--load: all requests arrive at once"),
        ([SYNTHETIC, "--policy", "htb", "--policy", "htb"], "--policy htb --policy htb: a policy stands there twice"),
        (["nowhere.csv"], "nowhere.csv: can't be read"),
        (["--mix", "nowhere.txt"], "--mix nowhere.txt: can't be read"),
        ([f"{SYNTHETIC},start=9", "--duration-s", "5"], "no request is due by then"),
    ],
)
def test_what_the_user_got_wrong_is_said(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_mix_file_names_sources_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "day.txt").write_text(f"# a day\n{SYNTHETIC}  # batch\n\nmissing.csv@class=p0\n")
    assert main(["load", "--mix", str(tmp_path / "day.txt")]) == 2
    assert f"{tmp_path / 'missing.csv'}: can't be read" in capsys.readouterr().err
