"""The row journal: what was synced is there again, and a torn end is cut off."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.jobs.journal import JournalInUseError, RowJournal


def write(path: Path, count: int) -> None:
    with RowJournal(path) as journal:
        assert list(journal.recover()) == []
        for number in range(count):
            journal.append(["r", number], {"text": f"line {number}\t\n"})
        journal.sync()


def heads(path: Path) -> list[int]:
    with RowJournal(path) as journal:
        return [head[1] for _, head, _ in journal.recover()]


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    write(tmp_path / "journal", 3)
    with RowJournal(tmp_path / "journal") as journal:
        found = list(journal.recover())
        assert [head for _, head, _ in found] == [["r", 0], ["r", 1], ["r", 2]]
        assert [journal.payload(place) for place, _, _ in found] == [payload for _, _, payload in found]


@given(data=st.data())
def test_a_torn_end_is_cut_off_and_written_on(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn") / "journal"
    write(path, 5)
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    garbage = data.draw(st.binary(max_size=20))
    path.write_bytes(content[:cut] + garbage)
    whole = content[:cut].count(b"\n")
    with RowJournal(path) as journal:
        found = [head[1] for _, head, _ in journal.recover()]
        # Garbage that happens to be whole lines can't be told from ours; there is none in 20 bytes of these forms.
        assert found[:whole] == list(range(whole))
        place = journal.append(["r", 99], "next")
        assert journal.payload(place) == b'"next"'
    assert heads(path) == [*found, 99]


def test_one_process_writes_it_at_a_time(tmp_path: Path) -> None:
    with RowJournal(tmp_path / "journal"), pytest.raises(JournalInUseError, match="another process"):
        RowJournal(tmp_path / "journal")
    assert heads(tmp_path / "journal") == []
