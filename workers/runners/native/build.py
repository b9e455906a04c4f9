"""The C sources of this folder, compiled for this very CPU on first use and kept under the cache folder.

Knows compilers and files. Does not know what the functions do (`workers.runners.native.library`).

Compiled here and not shipped, because what is fast is what uses all of the CPU's instructions: `-march=native`. It
takes some three seconds. A plain C library, called through ctypes: it needs no headers of Python or torch, and
OpenMP's runtime is the one that torch has loaded already, so both work with one pool of threads (GCC's; clang brings
another one, which is why GCC is looked for first).

The name of the kept library holds a hash of the sources, the flags, the compiler and the CPU: whatever of it changes,
a new one is made. It appears complete or not at all, so any number of processes may start at once.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.models.cache_folder import cache_folder

__all__ = ["NoLibrary", "build_library", "find_compiler"]

_SOURCES = Path(__file__).parent
_FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",  # a * b + c is one instruction, rounded once
    "-fno-math-errno",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
_COMPILERS = ("gcc", "cc", "clang")
_TIMEOUT_S = 120.0
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class NoLibrary:
    """There are no kernels on this machine, and why: an expected answer, torch computes everything then."""

    reason: str


def find_compiler(environment: Mapping[str, str] = os.environ) -> str | None:
    """`$CC` where it is set, else the first of gcc, cc and clang on the PATH."""
    for name in (environment["CC"],) if environment.get("CC") else _COMPILERS:
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    return None


def build_library(
    on_progress: Callable[[str], None] = lambda _line: None, environment: Mapping[str, str] = os.environ
) -> Path | NoLibrary:
    """The compiled library; compiled now unless it was before."""
    compiler = find_compiler(environment)
    if compiler is None:
        wanted = environment.get("CC") or ", ".join(_COMPILERS)
        return NoLibrary(f"no C compiler was found ({wanted}): install gcc")
    sources = sorted(_SOURCES.glob("*.c"))
    try:
        library = cache_folder() / "native" / f"kernels-{_fingerprint(compiler)}.so"
        if library.is_file():
            return library
        on_progress(f"Compiling the CPU kernels with {compiler} (once; later starts find them)")
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=library.parent) as scratch:
            made = Path(scratch) / library.name
            command = [compiler, *_FLAGS, "-o", str(made), *map(str, sources), "-lm"]
            finished = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            if finished.returncode != 0:
                return NoLibrary(f"{compiler} could not compile them: {_what_it_said(finished.stderr)}")
            made.rename(library)
    except (OSError, subprocess.SubprocessError) as error:
        return NoLibrary(f"they could not be compiled ({error})")
    return library


def _fingerprint(compiler: str) -> str:
    """16 hexadecimal digits of all that decides what comes out."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted([*_SOURCES.glob("*.c"), *_SOURCES.glob("*.h")]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_TIMEOUT_S, check=True).stdout
    digest.update("\0".join(_FLAGS).encode() + version)
    digest.update(_cpu())
    return digest.hexdigest()


def _cpu() -> bytes:
    """What `-march=native` looks at: the cache folder may be shared between machines."""
    if not _CPUINFO.is_file():
        return os.uname().machine.encode()
    wanted = ("vendor_id", "cpu family", "model\t", "model name", "flags", "Features", "CPU part")
    lines = [line for line in _CPUINFO.read_text().splitlines() if line.startswith(wanted)]
    return "\n".join(dict.fromkeys(lines)).encode()


def _what_it_said(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "it gave no reason")
