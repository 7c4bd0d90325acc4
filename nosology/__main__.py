"""The command `nosology`, also as `python -m nosology`."""

import os
import signal
import sys
import time
import warnings

_INTERRUPTED = "nosology: interrupted; no incomplete output was left behind"
_CTRL_C, _TERMINATED = 130, 143  # exit codes: 128 and the number of the signal
_REPEAT_SECONDS = 1.0  # within which a second SIGTERM does not disturb the end: `timeout` sends it twice


def main() -> None:
    """Runs the command line. Ctrl-C while its modules are imported exits with 130, as later; SIGTERM exits with 143."""
    _allow_warnings()
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # a KeyboardInterrupt in a callback of an import would be ignored
        signal.signal(signal.SIGINT, _exit_interrupted)
    from nosology.cli import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sigterm = _Sigterm()
    # A process of torchrun that waits for the others in C++ would not see the signal before they answer.
    is_one_of_several = os.environ.get("WORLD_SIZE", "1") != "1"
    if not is_one_of_several and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        sigterm.handle()
    try:
        run()
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        sys.exit(_TERMINATED if sigterm.came else _CTRL_C)
    except SystemExit as end:
        if end.code == _CTRL_C and sigterm.came:
            sys.exit(_TERMINATED)
        raise


class _Sigterm:
    """Ends this process on SIGTERM (timeout, Slurm, docker stop) as Ctrl-C does, which removes incomplete output."""

    def __init__(self) -> None:
        self.came = 0.0

    def handle(self) -> None:
        """Handles the signal from now on; in forked processes it has its default action, as in all other processes."""
        signal.signal(signal.SIGTERM, self._interrupt)
        os.register_at_fork(after_in_child=self._leave)

    def _interrupt(self, *_: object) -> None:
        before, self.came = self.came, time.monotonic()
        if not before or self.came - before > _REPEAT_SECONDS:
            raise KeyboardInterrupt

    def _leave(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._interrupt:  # not one that a server has set
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_interrupted(*_: object) -> None:
    """Ends the process at once: nothing has been written yet."""
    os.write(2, f"{_INTERRUPTED}\n".encode())
    os._exit(_CTRL_C)


def _allow_warnings() -> None:
    """Makes warnings no errors (PYTHONWARNINGS=error): those of libraries would end every command."""
    if any(option.startswith("error") for option in sys.warnoptions):
        os.environ.pop("PYTHONWARNINGS", None)  # for processes that this one starts
        sys.warnoptions.clear()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)


if __name__ == "__main__":
    main()
