"""A grid in one process with a virtual clock: sites of different speed and opening hours, without waiting.

A site computes its reply when it gets the message; the reply comes when the virtual time that this takes has passed.
A site works on one message after the other. The clock moves only when the server waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from flwr.app import Message
from flwr.clientapp import ClientApp

from nosology.federated.rounds import messages
from nosology.federated.rounds.learner import LocalSite
from nosology.federated.rounds.simulation import SITE_NAME, InProcessGrid, simulation_grid

DAY = 24 * 3600.0
Hours = tuple[float, float]  # opening and closing time of a day, in seconds after midnight
TrainingTime = Callable[[str], float]  # the seconds in which a site computes an update


class VirtualClockGrid(InProcessGrid):
    """A grid whose sites take virtual time to train. Other messages and errors take none.

    hours: of sites that are open for a part of the day only. What such a site has not finished when it closes is lost.
    """

    def __init__(
        self,
        app: ClientApp,
        sites: Iterable[str],
        training_time: TrainingTime,
        hours: Mapping[str, Hours] | None = None,
        personal: Path | None = None,
    ):
        self.training_time, self.hours = training_time, dict(hours or {})
        self._time = 0.0
        self._due: dict[str, float] = {}  # by message id
        self._busy_until: dict[int, float] = {}  # by node
        super().__init__(app, sites, personal=personal)

    def now(self) -> float:
        """The virtual time in seconds."""
        return self._time

    def wait(self, deadline: float) -> None:
        """Moves the clock to the next reply or opening, not beyond the deadline."""
        events = [due for due in self._due.values() if due > self._time]
        events += [_next_opening(hours, self._time) for hours in self.hours.values()]
        self._time = max(self._time, min([deadline, *events]))

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are open now."""
        return [node for node in super().get_node_ids() if self._is_open(node)]

    def _is_open(self, node: int) -> bool:
        hours = self.hours.get(str(self._contexts[node].node_config[SITE_NAME]))
        return hours is None or _closing(hours, self._time) > self._time

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to messages that have come."""
        come = [name for name in message_ids if self._due.get(name, 0.0) <= self._time]
        for name in come:
            self._due.pop(name, None)
        return super().pull_messages(come)

    def _push(self, message: Message) -> str:
        node, name = message.metadata.dst_node_id, super()._push(message)
        due = max(self._time, self._busy_until.get(node, 0.0))
        if message.metadata.message_type == messages.TRAIN and not self._replies[name].has_error():
            site = str(self._contexts[node].node_config[SITE_NAME])
            due += self.training_time(site)
            if site in self.hours and due > _closing(self.hours[site], self._time):
                self._replies.pop(name)  # the site closes before
                return name
        self._busy_until[node] = self._due[name] = due
        return name


def _closing(hours: Hours, time: float) -> float:
    """When a site that is open at a time closes; the time itself if it is closed."""
    opening, closing = hours
    length, since = (closing - opening) % DAY, (time - opening) % DAY
    return time + length - since if since < length else time


def _next_opening(hours: Hours, time: float) -> float:
    """The next time, later than now, at which a site opens or closes."""
    opening, closing = hours
    return time + min(_positive((opening - time) % DAY), _positive((closing - time) % DAY))


def _positive(seconds: float) -> float:
    return seconds or DAY


def virtual_grid(
    sites: Sequence[LocalSite],
    slowness: Mapping[str, float] | None = None,
    hours: Mapping[str, Hours] | None = None,
    personal: Path | None = None,
) -> VirtualClockGrid:
    """A grid whose sites need a virtual second per train note; slowness: factors of slower sites.

    personal: a folder for the personal layers of the sites.
    """
    slowness, sizes = slowness or {}, {site.name: site.sizes["train"] for site in sites}
    app = simulation_grid(sites).app
    return VirtualClockGrid(app, sizes, lambda site: sizes[site] * slowness.get(site, 1.0), hours, personal)
