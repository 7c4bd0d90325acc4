"""The command `nosology`, also as `python -m nosology`."""

import os
import sys
import warnings


def main() -> None:
    """Runs the command line. Ctrl-C while its modules are imported exits with 130, as later."""
    _allow_warnings()
    try:
        from nosology.cli import main as run

        run()
    except KeyboardInterrupt:
        print("nosology: interrupted; no incomplete output was left behind", file=sys.stderr)
        sys.exit(130)


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
