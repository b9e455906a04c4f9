"""What goes wrong with a model, by name.

    ModelError (ValueError)         a model that can't be served: found at start, one line with the file and the remedy
    ├── ModelNotFound               no such folder, file, package or repository
    └── UnsupportedModel            it is there, and this worker can't run it
    DeviceError (ValueError)        a device or number format that this machine doesn't have
    EngineFault (RuntimeError)      a step that was not completed; none of its tokens count
    ├── NotFiniteLogits             some sequences' logits are not numbers: those requests fail, the others go on
    ├── GrammarBroken               some sequences' grammars can't be followed: those requests fail, the others go on
    ├── OutOfMemory                 the step asked for more memory than the device has: a smaller one may pass
    ├── NoMemoryForSequence         one sequence is too much however small the step: that request fails
    ├── DeviceLost                  the device answers no more: the process must be replaced
    └── StepHangs                   a step that does not end: likewise

Knows names and what each one asks of its catcher. Does not know requests.
"""

from collections.abc import Sequence

__all__ = [
    "DeviceError",
    "DeviceLost",
    "EndpointError",
    "EngineFault",
    "GrammarBroken",
    "ModelError",
    "ModelNotFound",
    "NoMemoryForSequence",
    "NotFiniteLogits",
    "OutOfMemory",
    "StepHangs",
    "UnsupportedModel",
    "first_line",
]


class ModelError(ValueError):
    """A model that can't be served. The message is one line: what, which file, what to do."""


class ModelNotFound(ModelError):
    """There is no such folder, file, package or repository, or a part of it is missing."""


class UnsupportedModel(ModelError):
    """The model is there, but not of a kind that this worker runs."""


class DeviceError(ValueError):
    """A device or a number format that this machine doesn't have. The message says what it has."""


class EngineFault(RuntimeError):
    """A step that was not completed: none of its tokens count, its KV is written again when it is repeated."""


class NotFiniteLogits(EngineFault):
    """The logits of some sequences are not numbers; their KV blocks hold finite values again."""

    def __init__(self, sequences: Sequence[int], blocks: Sequence[int] = ()) -> None:
        """`sequences`: positions in the step's list of sequences. `blocks`: of theirs, those that held values that
        are no numbers; whoever else shares one of them is lost as well."""
        super().__init__(f"the logits of {len(sequences)} sequence(s) of the step are not numbers: {[*sequences]}")
        self.sequences = tuple(sequences)
        self.blocks = tuple(blocks)


class GrammarBroken(EngineFault):
    """What some sequences may say next can't be computed: it took more work than a token is allowed."""

    def __init__(self, sequences: Sequence[int]) -> None:
        """`sequences`: positions in the step's list of sequences."""
        super().__init__(f"the grammars of {len(sequences)} sequence(s) of the step broke: {[*sequences]}")
        self.sequences = tuple(sequences)


class OutOfMemory(EngineFault):
    """The step asked for more memory than the device has."""


class NoMemoryForSequence(EngineFault):
    """Of one sequence not even a single token can be computed, be the step as small as it may."""

    def __init__(self, message: str, sequence: int) -> None:
        """`sequence`: its position in the step's list of sequences."""
        super().__init__(message)
        self.sequence = sequence


class DeviceLost(EngineFault):
    """The device answers no more (an ECC error, a driver reset): only a new process can go on."""


class StepHangs(EngineFault):
    """The step does not end: only a new process can go on."""


class EndpointError(Exception):
    """An endpoint of this process can't be opened; the message names setting, address, reason and remedy."""


def first_line(error: BaseException) -> str:
    """A library's error in one line, to be quoted in one of ours."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
