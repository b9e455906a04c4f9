"""A GGUF file, dequantised once into a folder in Hugging Face's layout, and kept.

Knows transformers' GGUF reader and the cache of converted models. Does not know what the model is for.

Reading a GGUF takes transformers a while even for a small model (its metadata is parsed in Python); the converted
folder loads in a fraction of a second. So the conversion is kept under the cache folder, by content, in float32:
dequantised values (scale × integer + offset) are not exact in any 16-bit format.

A folder appears complete or not at all: it is written beside its place and renamed. A file lock lets one process
convert while others wait for the result, which matters when `--devices` starts one worker for each of eight
accelerators. The lock ends with its process, however that ends, and the next one clears what it left.

Limit: four bytes a parameter on disk, whatever the GGUF's format.
"""

import copy
import functools
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import torch
from filelock import FileLock, Timeout
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from workers.models.cache_folder import cache_folder
from workers.runners.errors import ModelNotFound, UnsupportedModel, first_line
from workers.runners.transformers_quiet import quiet_transformers

__all__ = ["content_fingerprint", "convert_gguf", "is_converted"]

_FORMAT = b"headrace converted model 1"
"""Part of the fingerprint: change it when what is written changes."""
_MIB = 2**20
_HEAD_MIB = 16
_SAMPLE_EVERY_MIB = 32

OnProgress = Callable[[str], None]


def convert_gguf(file: Path, on_progress: OnProgress) -> Path:
    """The converted folder of a GGUF file; converted now unless it was before.

    Raises `UnsupportedModel` for an architecture or a quantisation that transformers can't read, and for a file that
    is damaged.
    """
    quiet_transformers()
    name = re.sub(r"[^\w.-]+", "-", file.stem)
    target = _converted() / f"{name}-{content_fingerprint(file)}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(target.with_name(f".{target.name}.lock"), on_progress):
        if target.is_dir():
            return target
        for abandoned in target.parent.glob(f".{target.name}.partial-*"):
            shutil.rmtree(abandoned)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        try:
            _write_converted(file, partial, on_progress)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return target


def is_converted(folder: Path) -> bool:
    """Whether `convert_gguf` wrote this folder: all of it, with the version of transformers that it names."""
    return folder.parent == _converted()


def content_fingerprint(file: Path) -> str:
    """16 hexadecimal digits of a file's content: its size, its first 16 MiB, and one MiB in each 32 after that.

    The head holds the metadata, the tokenizer and the list of tensors. Reading a 40 GB file whole would take minutes
    at each start; a file that differs only in MiBs that are not sampled is taken for the same.
    """
    digest = hashlib.blake2b(_FORMAT, digest_size=8)
    size = file.stat().st_size
    digest.update(str(size).encode())
    with file.open("rb") as stream:
        for start_mib in (*range(_HEAD_MIB), *range(_HEAD_MIB, size // _MIB + 1, _SAMPLE_EVERY_MIB)):
            stream.seek(start_mib * _MIB)
            digest.update(stream.read(_MIB))
    return digest.hexdigest()


def _converted() -> Path:
    return cache_folder() / "models"


@contextmanager
def _only_one(lock_file: Path, on_progress: OnProgress) -> Iterator[None]:
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_progress("Waiting for another process that converts the same model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_converted(file: Path, folder: Path, on_progress: OnProgress) -> None:
    place = {"gguf_file": file.name, "local_files_only": True}
    try:
        on_progress(f"Converting {file.name} (once; later starts find the result): reading the tokenizer")
        with _read_once(), _tensors_reported(on_progress):
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **place)
            quantised, loading = AutoModelForCausalLM.from_pretrained(
                str(file.parent), dtype=torch.float32, output_loading_info=True, **place
            )
    except NotImplementedError as error:
        # gguf's own message names the quantisation, or the architecture.
        raise UnsupportedModel(f"{file}: {error}; convert it to another quantisation (Q4_1, Q8_0, F16 …)") from error
    except (ValueError, KeyError, IndexError, TypeError, OSError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{file} can't be read as GGUF ({first_line(error)}): download it again, or use a model that transformers "
            "can read from GGUF"
        ) from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelNotFound(f"{file} lacks {len(missing)} tensors (the first: {missing[0]}): download it again")
    on_progress(f"Converting {file.name}: writing")
    _plain_copy(quantised).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain_copy(quantised: Any) -> Any:
    """The same weights in a model that knows nothing of GGUF: transformers refuses to save one that does."""
    config = copy.deepcopy(quantised.config)
    del config.quantization_config
    # On the meta device: no memory and no random initialisation for tensors that are replaced at once.
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = quantised.generation_config
    return plain


@contextmanager
def _tensors_reported(on_progress: OnProgress) -> Iterator[None]:
    """Report transformers' dequantisation loop to `on_progress`: it draws a bar, and offers no switch for it."""

    def report(tensors: Iterable[Any], **_bar: object) -> Iterator[Any]:
        every = [*tensors]
        for position, tensor in enumerate(every):
            if position % 64 == 0:
                on_progress(f"Converting: dequantised {position} of {len(every)} tensors")
            yield tensor

    with _replaced(modeling_gguf_pytorch_utils, "tqdm", report):
        yield


@contextmanager
def _read_once() -> Iterator[None]:
    """Parse the file's metadata and the table of tensor names once rather than 3 and 400 times: 27 of 48 seconds."""
    reader = functools.cache(gguf.GGUFReader)
    names = functools.cache(gguf.get_tensor_name_map)
    with _replaced(gguf, "GGUFReader", reader), _replaced(gguf, "get_tensor_name_map", names):
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
