"""Silence for a library that talks on standard error: progress bars, advice, deprecations.

Knows transformers' and huggingface_hub's switches. What a user must hear is raised by name (`workers.runners.errors`),
and progress is told by the callbacks of `workers.models.model_source`.
"""

import huggingface_hub
from transformers.utils import logging

__all__ = ["quiet_transformers"]


def quiet_transformers() -> None:
    """Idempotent; for the whole process."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    huggingface_hub.utils.disable_progress_bars()
    huggingface_hub.utils.logging.set_verbosity_error()
