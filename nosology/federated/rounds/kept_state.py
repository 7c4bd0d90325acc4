"""What a site keeps from round to round: optimizer state, personal layers, and what compression has left out.

It is in the state of the Flower context. A repeated round starts from the state before it. Personal layers are also in
a file, if the node config has a folder for them: the state of a context is lost when the site or the run restarts.
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecord, Context

from nosology.federated.rounds import messages
from nosology.federated.rounds.federation_setup import Arrays
from nosology.federated.rounds.personal_layers import load_personal, mark, marked, save_personal

FOLDER = "personal"  # in the node config: the folder of the files of personal layers
RESIDUAL = "residual/"  # before the names of what compression has left out
_KEPT, _ROUND, _PREVIOUS = "kept", "round", "previous-kept"  # in the state: of the last round, its number, before it


class KeptState:
    """The kept arrays of a site. initial: personal layers before the first round; empty without personal layers."""

    def __init__(self, context: Context, setup: str, number: int, initial: Arrays):
        self.state, self.setup, self.number, self.initial = context.state, setup, number, initial
        folder = str(context.node_config.get(FOLDER) or "")
        self.folder = Path(folder) if folder and initial else None

    def before_round(self) -> Arrays:
        """The arrays at the start of the round."""
        if _KEPT in self.state and self.state.config_records[_ROUND]["round"] != self.number:
            self.state[_PREVIOUS] = self.state[_KEPT]
        elif _KEPT not in self.state and (saved := self._saved()):
            self.state[_PREVIOUS] = messages.to_record(saved)
        return messages.from_record(self.state.array_records[_PREVIOUS]) if _PREVIOUS in self.state else {}

    def latest(self) -> Arrays:
        """The arrays of the last round in which the site has trained."""
        return messages.from_record(self.state.array_records[_KEPT]) if _KEPT in self.state else self._saved()

    def _saved(self) -> Arrays:
        return mark(load_personal(self.folder, self.setup, self.number)) if self.folder else {}

    def personal(self, kept: Arrays) -> Arrays:
        """The personal layers among kept arrays; the initial ones if there are none."""
        return marked(kept) or self.initial

    def save(self, arrays: Arrays) -> None:
        """Keeps arrays after the round."""
        if not arrays:
            return
        self.state[_KEPT] = messages.to_record(arrays)
        self.state[_ROUND] = ConfigRecord({"round": self.number})
        if self.folder:
            save_personal(self.folder, self.setup, self.number, marked(arrays))


def optimizer_part(kept: Arrays) -> Arrays | None:
    """The optimizer state among kept arrays; None if there is none."""
    return {name: array for name, array in kept.items() if "/" not in name} or None
