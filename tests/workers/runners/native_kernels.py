"""The compiled kernels for tests: built once by whoever asks first, or the test is skipped with the reason."""

import pytest

from workers.runners.native.library import NativeLibrary, load_library

__all__ = ["kernels_or_skip"]


def kernels_or_skip() -> NativeLibrary:
    library = load_library()
    if not isinstance(library, NativeLibrary):
        pytest.skip(library.reason)
    return library
