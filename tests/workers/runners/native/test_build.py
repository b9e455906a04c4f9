from pathlib import Path

import pytest
import torch

from tests.workers.runners.native_kernels import kernels_or_skip
from workers.runners.native import build
from workers.runners.native.build import NoLibrary, build_library, find_compiler
from workers.runners.native.library import NativeLibrary, load_library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def a_compiler() -> str:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    return compiler


@pytest.mark.usefixtures("a_compiler")
def test_the_library_is_compiled_once_and_then_found(cache: Path) -> None:
    lines: list[str] = []
    first = build_library(lines.append)
    assert isinstance(first, Path)
    assert first.is_relative_to(cache)
    assert len(lines) == 1
    again = build_library(lines.append)
    assert again == first
    assert len(lines) == 1
    assert [*first.parent.iterdir()] == [first], "nothing half made stays"


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_the_reason_and_the_remedy_are_said() -> None:
    assert build_library(environment={"PATH": ""}) == NoLibrary("no C compiler was found (gcc, cc, clang): install gcc")
    assert build_library(environment={"PATH": "", "CC": "tcc"}) == NoLibrary(
        "no C compiler was found (tcc): install gcc"
    )


@pytest.mark.usefixtures("cache", "a_compiler")
def test_what_the_compiler_says_is_quoted_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "sources"
    source.mkdir()
    (source / "broken.c").write_text("int main(void) { return nothing; }\n")
    monkeypatch.setattr(build, "_SOURCES", source)
    refused = build_library()
    assert isinstance(refused, NoLibrary)
    assert "nothing" in refused.reason
    assert "\n" not in refused.reason


@pytest.mark.usefixtures("cache", "a_compiler")
def test_a_change_of_the_sources_makes_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "sources"
    source.mkdir()
    monkeypatch.setattr(build, "_SOURCES", source)
    made = []
    for value in (1, 2):
        (source / "one.c").write_text(f"int one(void) {{ return {value}; }}\n")
        made.append(build_library())
    assert made[0] != made[1]
    assert all(isinstance(library, Path) for library in made)


def test_a_library_that_cannot_be_loaded_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "kernels.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr("workers.runners.native.library.build_library", lambda _on_progress: broken)
    answer = load_library()
    assert isinstance(answer, NoLibrary)
    assert "can't be loaded" in answer.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_panels_hold_every_weight_and_zeros_behind_the_last(dtype: torch.dtype) -> None:
    library: NativeLibrary = kernels_or_skip()
    weights = torch.randn(37, 11).to(dtype)
    packed = library.pack(weights, threads=2)
    unpacked = packed.transpose(1, 2).reshape(-1, 11)
    assert torch.equal(unpacked[:37], weights)
    assert not unpacked[37:].any()
