"""Where this program keeps what it can make again: converted models, compiled kernels, a local Kafka."""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """`$HEADRACE_CACHE_DIR`, else `$XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`. Not created here."""
    if own := os.environ.get("HEADRACE_CACHE_DIR"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "headrace"
    return Path.home() / ".cache" / "headrace"
