"""The command `nosology`, also as `python -m nosology`."""

import os
import signal
import sys
import warnings

_INTERRUPTED = "nosology: interrupted; no incomplete output was left behind"


def main() -> None:
    """Runs the command line. Ctrl-C while its modules are imported exits with 130, as later."""
    _allow_warnings()
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:  # a KeyboardInterrupt in a callback of an import would be ignored
        signal.signal(signal.SIGINT, _exit_interrupted)
    from nosology.cli import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        sys.exit(130)


def _exit_interrupted(*_: object) -> None:
    """Ends the process at once: nothing has been written yet."""
    os.write(2, f"{_INTERRUPTED}\n".encode())
    os._exit(130)


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
