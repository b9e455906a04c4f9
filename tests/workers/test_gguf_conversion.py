import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from workers import gguf_conversion
from workers.errors import UnsupportedModel
from workers.gguf_conversion import cache_folder, content_fingerprint, convert_gguf

MIB = 2**20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF and what follows")
    return file


def writer(monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]) -> None:
    """Put a writer in the place of transformers, which takes long and needs a true model."""
    monkeypatch.setattr(gguf_conversion, "_write_converted", lambda _file, folder, _on_progress: write(folder))


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/headrace")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert cache_folder() == Path("/var/cache/headrace")
    monkeypatch.setenv("HEADRACE_CACHE_DIR", "/own")
    assert cache_folder() == Path("/own")


def test_a_second_call_finds_the_first_ones_folder(
    cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[Path] = []
    writer(monkeypatch, writes.append)
    first = convert_gguf(gguf_file, lambda _line: None)
    assert convert_gguf(gguf_file, lambda _line: None) == first
    assert len(writes) == 1
    assert first.parent == cache


def test_another_content_is_another_folder(cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer(monkeypatch, lambda folder: None)
    first = convert_gguf(gguf_file, lambda _line: None)
    gguf_file.write_bytes(b"GGUF and what else follows")
    assert convert_gguf(gguf_file, lambda _line: None) != first


def test_two_at_once_convert_once_and_both_get_the_whole_folder(
    cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    writes: list[Path] = []

    def write(folder: Path) -> None:
        writes.append(folder)
        inside.set()
        assert go_on.wait(10)
        (folder / "config.json").write_text("{}")

    writer(monkeypatch, write)
    lines: list[str] = []
    waiting = threading.Event()
    folders: list[Path] = []

    def on_progress(line: str) -> None:
        lines.append(line)
        waiting.set()

    first = threading.Thread(target=lambda: folders.append(convert_gguf(gguf_file, lambda _line: None)))
    second = threading.Thread(target=lambda: folders.append(convert_gguf(gguf_file, on_progress)))
    first.start()
    assert inside.wait(10)
    second.start()
    assert waiting.wait(10)
    assert not [path for path in cache.iterdir() if not path.name.startswith(".")], "nothing to be found half-written"
    go_on.set()
    first.join(10)
    second.join(10)
    assert len(writes) == 1
    assert len(set(folders)) == 1
    assert (folders[1] / "config.json").is_file()
    assert lines == ["Waiting for another process that converts the same model"]


def test_a_failed_conversion_leaves_nothing_and_the_next_one_runs(
    cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise OSError("disk full")

    writer(monkeypatch, fail)
    with pytest.raises(OSError, match="disk full"):
        convert_gguf(gguf_file, lambda _line: None)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    writer(monkeypatch, lambda folder: None)
    assert convert_gguf(gguf_file, lambda _line: None).is_dir()


def test_what_a_killed_process_left_is_cleared(cache: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer(monkeypatch, lambda folder: None)
    target = convert_gguf(gguf_file, lambda _line: None)
    target.rmdir()
    left = cache / f".{target.name}.partial-abc"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    convert_gguf(gguf_file, lambda _line: None)
    assert not left.exists()


def test_the_fingerprint_sees_size_head_and_samples(tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as stream:
        stream.truncate(50 * MIB)
    prints = [content_fingerprint(file)]
    for position in (0, 15 * MIB, 48 * MIB + 7):
        with file.open("r+b") as stream:
            stream.seek(position)
            stream.write(b"x")
        prints.append(content_fingerprint(file))
    with file.open("ab") as stream:
        stream.write(b"x")
    prints.append(content_fingerprint(file))
    assert len(set(prints)) == len(prints)


def test_what_is_no_gguf_is_refused_in_one_line_that_names_the_file(cache: Path, gguf_file: Path) -> None:
    gguf_file.write_bytes(b"something else entirely, but long enough to be read as a header")
    with pytest.raises(UnsupportedModel, match=r"model\.gguf can't be read as GGUF") as caught:
        convert_gguf(gguf_file, lambda _line: None)
    assert "\n" not in str(caught.value)
