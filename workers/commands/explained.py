"""What can go wrong around a command, told in one sentence: the shared way from named errors to an exit code.

Knows how an error is told that is the user's to mend (`UsageError`, exit code 2) or a failure of something else
(`CommandFailedError`, exit code 1), and that everything else is a bug and keeps its traceback. `--log-level debug`
shows the traceback of all of them. Not a command itself.

The errors' classes (`workers.commands.known_errors`) are loaded when there is an error to be told: all modules that
raise any take longer to load than many a command takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from workers.cli import CommandFailedError, UsageError

__all__ = ["explained"]


@contextmanager
def explained(*failures: type[Exception]) -> Iterator[None]:
    """Raises `UsageError` or `CommandFailedError` for what is known to go wrong, `failures` included.

    A group of exceptions is told as its members are, if all of them are known.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # of our own output: the command line knows what to do
    except Exception as error:
        from workers.commands.known_errors import KNOWN, is_users, sentence

        leaves = list(_leaves(error))
        if not all(isinstance(leaf, (*KNOWN, *failures)) for leaf in leaves):
            raise
        told = "\n".join(dict.fromkeys(map(sentence, leaves)))
        if any(map(is_users, leaves)):
            raise UsageError(told) from error
        raise CommandFailedError(told) from error


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
