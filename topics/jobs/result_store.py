"""Where a collector puts the files of jobs: a folder, or a URL that `fsspec` knows.

Knows places and how a file gets there whole. Does not know what is in the files. Blocks.

In a folder, each job's journal stands beside its files, so another collector that sees the same folder goes on with it.
With a URL the journals are local (`spool`), and files are uploaded under another name and moved to theirs; a collector
that takes a job over on another machine reads the job's replies from their beginning.
"""

import shutil
from pathlib import Path
from typing import Any

from topics.extras import how_to_install
from topics.jobs.input_file import InputError

__all__ = ["ResultStore"]

_CHUNK_BYTES = 2**20


class ResultStore:
    def __init__(self, target: str, spool: Path) -> None:
        """Raises `InputError` for a URL that can't be used."""
        self._url: str | None = None
        self._filesystem: Any = None
        self._folder = Path(target)
        if "://" in target:
            try:
                import fsspec

                self._filesystem, self._url = fsspec.core.url_to_fs(target)
            except ModuleNotFoundError as error:
                raise InputError(f"{target} needs fsspec: {how_to_install('batch')}") from error
            except (ValueError, ImportError) as error:
                raise InputError(f"{target}: {error}") from error
            self._folder = spool
            self._target = target.rstrip("/")

    def journal_path(self, job_id: str) -> Path:
        return self._folder / job_id / "journal"

    def local_path(self, job_id: str, name: str) -> Path:
        """Where a file is written before `publish`."""
        return self._folder / job_id / name

    def publish(self, job_id: str, name: str) -> str:
        """Put the file at `local_path` where it belongs, and say where that is. Raises `OSError`."""
        path = self.local_path(job_id, name)
        if self._url is None:
            return str(path.absolute())
        place = f"{self._url.rstrip('/')}/{job_id}/{name}"
        self._filesystem.makedirs(place.rpartition("/")[0], exist_ok=True)
        with path.open("rb") as source, self._filesystem.open(f"{place}.part", "wb") as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)
        self._filesystem.mv(f"{place}.part", place)
        return f"{self._target}/{job_id}/{name}"
