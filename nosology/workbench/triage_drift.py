"""The alarm of triage: monitors of the notes that were coded since the calibration. It stops the rule.

Each feature of a note's profile has a `DriftMonitor`; the first alarm of any of them counts. It is kept until a
reviewer acknowledges it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, delete, select

from nosology.evaluation.drift import DriftMonitor
from nosology.workbench.audit_log import log_access_in
from nosology.workbench.measures import DRIFT_FEATURES
from nosology.workbench.store_settings import load_setting, save_setting
from nosology.workbench.store_tables import codings, settings
from nosology.workbench.triage_guarantee import Guarantee, newest_coding

FALSE_ALARMS = 0.01  # the probability that a monitoring without drift ever raises one
LIMIT = len(DRIFT_FEATURES) / FALSE_ALARMS  # of the wealth of a monitor, above which it raises the alarm
REFERENCE = 2_000  # the newest notes at the calibration, of which incoming ones must be like


@dataclass(frozen=True)
class DriftAlarm:
    """An alarm: the feature that has changed, after how many notes since the monitoring began, and when."""

    feature: str
    notes: int
    raised: float

    @property
    def title(self) -> str:
        """The feature in words."""
        return DRIFT_FEATURES.get(self.feature, self.feature)


class DriftWatch:
    """The monitors of the notes of one coder since a coding."""

    def __init__(self, connection: Connection, guarantee: Guarantee, since: int) -> None:
        self.guarantee, self.newest, self.notes = guarantee, since, 0
        query = _profiles(guarantee).where(codings.c.id <= guarantee.coding).order_by(codings.c.id.desc())
        reference = [row.profile for row in connection.execute(query.limit(REFERENCE))]
        rate = FALSE_ALARMS / len(DRIFT_FEATURES)
        self.monitors = {
            name: DriftMonitor([float(profile[name]) for profile in reference], rate=rate)
            for name in DRIFT_FEATURES
            if all(name in profile for profile in reference)  # those of older versions have fewer
        }

    def update(self, connection: Connection) -> None:
        """Adds the notes that were coded since the last update."""
        for row in connection.execute(
            _profiles(self.guarantee).where(codings.c.id > self.newest).order_by(codings.c.id)
        ):
            self.newest, self.notes = row.id, self.notes + 1
            for name, monitor in self.monitors.items():
                monitor.add(float(row.profile.get(name, 0.0)))

    @property
    def alarm(self) -> DriftAlarm | None:
        """The first alarm of a monitor."""
        raised = [(it.alarm_at, name) for name, it in self.monitors.items() if it.alarm_at is not None]
        return DriftAlarm(min(raised)[1], min(raised)[0], time.time()) if raised else None


def _profiles(guarantee: Guarantee) -> Any:
    return select(codings.c.id, codings.c.profile).where(codings.c.coder_id == guarantee.coder_id)


_watches: WeakKeyDictionary[Engine, tuple[tuple[float, int], DriftWatch]] = WeakKeyDictionary()
_lock = threading.Lock()


def watch_drift(engine: Engine, connection: Connection, guarantee: Guarantee | None) -> DriftWatch | None:
    """The monitors after all notes that are stored now; None if nothing may pass anyway.

    They are kept in memory, because each note is added once. A server that starts adds all notes again, with the same
    result.
    """
    if guarantee is None or guarantee.threshold is None:
        return None
    since = load_setting(connection, "triage_watch").get("coding", 0)
    key = (guarantee.made, max(since, guarantee.coding))
    with _lock:
        if engine not in _watches or _watches[engine][0] != key:
            _watches[engine] = key, DriftWatch(connection, guarantee, key[1])
        watch = _watches[engine][1]
        watch.update(connection)
        return watch


def load_alarm(connection: Connection) -> DriftAlarm | None:
    """The alarm that nobody has acknowledged; None if there is none."""
    value = load_setting(connection, "triage_alarm")
    return DriftAlarm(**value) if value else None


def raise_alarm(connection: Connection, alarm: DriftAlarm) -> None:
    """Keeps a new alarm, with an entry of the audit log."""
    if load_alarm(connection) is None:
        save_setting(connection, "triage_alarm", asdict(alarm))
        what = f"{alarm.title}, after {alarm.notes} encounters"
        log_access_in(connection, None, "triage alarm", None, "server", what)


def end_alarm(connection: Connection) -> None:
    """Removes the alarm; the monitors begin again with notes that are coded from now on."""
    connection.execute(delete(settings).where(settings.c.name == "triage_alarm"))
    save_setting(connection, "triage_watch", {"coding": newest_coding(connection)})
