"""A tiny program in the place of `headrace serve`: says what happens to it, and ends as it is told.

    python supervised_worker.py DRAINED_CODE FIRST_CODE FOLDER --device D --ends-with FD [more arguments]

Prints `D ready PID ARGUMENTS`; at SIGTERM or when the pipe FD closes `D drained`, exit code DRAINED_CODE (negative: by
that signal); at SIGINT `D interrupted`, exit code 130. With FIRST_CODE > 0 it ends with that code the first time round;
FOLDER remembers. Python's standard library alone.
"""

import os
import selectors
import signal
import sys
from pathlib import Path


def main() -> int:
    drained_code, first_code, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    arguments = sys.argv[4:]
    device = arguments[arguments.index("--device") + 1]
    lifeline = int(arguments[arguments.index("--ends-with") + 1])
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    say(f"{device} ready {os.getpid()} {' '.join(arguments)}")
    seen = folder / device.replace(":", "-")
    if first_code and not seen.exists():
        seen.touch()
        return first_code
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        selector.register(lifeline, selectors.EVENT_READ)
        ready = [key.fd for key, _ in selector.select()]
    if woken in ready and os.read(woken, 1)[0] == signal.SIGINT:
        say(f"{device} interrupted")
        return 130
    say(f"{device} drained")
    if drained_code < 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -drained_code)
    return drained_code


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())  # at once: others write to the same pipe


if __name__ == "__main__":
    sys.exit(main())
