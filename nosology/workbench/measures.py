"""How well coder and people agree, how long a note takes, and whether the notes that come in have changed."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from nosology.claims.assigned_codes import PROCEDURES
from nosology.codes import describe, table
from nosology.core import Code
from nosology.workbench.review import Review, replay
from nosology.workbench.store.schema import audit, codings, decisions, notes, settings
from nosology.workbench.triage import Curve, Triage, agreement

MOST = 3_000  # the newest finished notes that the page counts
PAUSE = 300  # seconds: a longer gap between two acts was spent elsewhere
DRIFT = {
    "words": "words a note",
    "digits": "share of words with a digit",
    "accepted": "codes accepted by the coder",
    "supported": "share of accepted codes with evidence",
    "confidence": "the coder's own confidence",
}
_SMALL = 30  # notes that each side of a comparison must have


@dataclass(frozen=True)
class Reviewed:
    """A finished note: what the coder accepted, what people made of it, how long it took and when it was done."""

    suggested: frozenset[Code]
    final: frozenset[Code]
    rejected: frozenset[Code]
    raw: float
    seconds: float
    finished: float
    hand: bool  # whether a person chose the codes, not the triage rule


def setting(connection: Connection, name: str, default: Any) -> Any:
    """A value that the store keeps by name."""
    found = connection.scalar(select(settings.c.value).where(settings.c.name == name))
    return default if found is None else found


def set_setting(connection: Connection, name: str, value: Any) -> None:
    """Keeps a value by name."""
    connection.execute(delete(settings).where(settings.c.name == name))
    connection.execute(insert(settings).values(name=name, value=value))


def triage_rule(connection: Connection) -> Triage:
    """The triage rule in force."""
    return Triage(**setting(connection, "triage", {}))


def set_triage(connection: Connection, rule: Triage) -> None:
    """Puts a triage rule in force, for notes that are coded from now on."""
    set_setting(connection, "triage", asdict(rule))


def confidence_curve(connection: Connection) -> Curve:
    """The curve that was fitted last."""
    kept = setting(connection, "curve", {})
    return Curve(tuple(kept.get("x", ())), tuple(kept.get("y", ())), kept.get("notes", 0))


def curve_of(found: Sequence[Reviewed]) -> Curve:
    """The curve of the notes whose codes people chose."""
    by_hand = [item for item in found if item.hand]
    return Curve.fit([item.raw for item in by_hand], [agreement(item.suggested, item.final) for item in by_hand])


def set_curve(connection: Connection, curve: Curve) -> None:
    """Keeps a curve for the notes to come, and for those that nobody has begun."""
    set_setting(connection, "curve", asdict(curve))
    _apply(connection, curve)


def _apply(connection: Connection, curve: Curve) -> None:
    """Gives every note that nobody has begun the confidence that a new curve says."""
    wanted = select(notes.c.id, codings.c.profile).join(codings, codings.c.note_id == notes.c.id)
    rows = connection.execute(wanted.where(notes.c.status == "new").order_by(codings.c.id)).all()
    if rows:
        values = [{"which": row.id, "sure": float(curve(row.profile.get("confidence", 0.0)))} for row in rows]
        where = notes.c.id == bindparam("which")
        connection.execute(update(notes).where(where).values(confidence=bindparam("sure")), values)


def raw_confidences(connection: Connection, limit: int = 20_000) -> list[float]:
    """The coder's own confidence of the notes coded last."""
    found = connection.scalars(select(codings.c.profile).order_by(codings.c.id.desc()).limit(limit))
    return [profile.get("confidence", 0.0) for profile in found]


def reviewed(connection: Connection) -> list[Reviewed]:
    """The newest finished notes, each with its first coding."""
    rows = connection.execute(
        select(notes.c.id, notes.c.finished)
        .where(notes.c.status == "done", notes.c.finished.is_not(None))
        .order_by(notes.c.finished.desc())
        .limit(MOST)
    ).all()
    found = []
    for first in range(0, len(rows), 500):
        part = rows[first : first + 500]
        ids = [row.id for row in part]
        coded = _by_note(connection, select(codings).where(codings.c.note_id.in_(ids)).order_by(codings.c.id))
        decided = _by_note(
            connection, select(decisions).where(decisions.c.note_id.in_(ids)).order_by(decisions.c.version)
        )
        opened = _by_note(connection, select(audit).where(audit.c.note_id.in_(ids), audit.c.what == "note"))
        found += [
            _reviewed(row.finished, coded[row.id][0], decided.get(row.id, []), opened.get(row.id, []))
            for row in part
            if row.id in coded
        ]
    return found


def _by_note(connection: Connection, wanted: Any) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for row in connection.execute(wanted).mappings():
        found.setdefault(row["note_id"], []).append(row)
    return found


def _reviewed(
    finished: float, coding: Mapping[str, Any], decided: Sequence[Mapping], opened: Sequence[Mapping]
) -> Reviewed:
    review: Review = replay(((d["action"], d["details"], d["user_id"]) for d in decided), length=1 << 60)
    suggested = frozenset(Code(s["system"], s["code"]) for s in coding["suggestions"] if s["accepted"])
    moments = sorted([d["at"] for d in decided if d["user_id"] is not None] + [row["at"] for row in opened])
    seconds = sum(min(PAUSE, after - before) for before, after in pairwise(moments))
    hand = not any(item.origin == "triage" for item in review.chosen)
    raw = coding["profile"].get("confidence", 0.0)
    return Reviewed(suggested, frozenset(review.codes), frozenset(review.rejected), raw, seconds, finished, hand)


@dataclass(frozen=True)
class Agreement:
    """Of codes that the coder accepted, how many stood; of codes that stood, how many it had accepted."""

    name: str
    title: str
    suggested: int
    kept: int
    final: int

    @property
    def acceptance(self) -> float | None:
        """The share of suggested codes that stood; None where none was suggested."""
        return self.kept / self.suggested if self.suggested else None

    @property
    def found(self) -> float | None:
        """The share of final codes that had been suggested; None where there are none."""
        return self.kept / self.final if self.final else None


def by_code(found: Sequence[Reviewed], limit: int = 25) -> list[Agreement]:
    """The codes that matter most: those suggested or chosen most often."""
    return _agreements(found, lambda code: code, lambda code: (code.code, describe(code)))[:limit]


def by_chapter(found: Sequence[Reviewed]) -> list[Agreement]:
    """The same by chapter; procedures are one."""
    return _agreements(found, _chapter, lambda pair: pair)


def overall(found: Sequence[Reviewed]) -> Agreement:
    """All codes together."""
    return next(iter(_agreements(found, lambda code: "all", lambda name: (name, ""))), Agreement("all", "", 0, 0, 0))


def _chapter(code: Code) -> tuple[str, str]:
    if code.system in PROCEDURES:
        return "procedures", "Procedures"
    codes = table(code.system)
    if code.code not in codes:
        return "other", "Codes of other releases"
    chapter = codes.chapter(code.code)
    return f"{code.system}:{chapter}", codes.description(chapter)


def _agreements(found: Sequence[Reviewed], key: Any, named: Any) -> list[Agreement]:
    suggested, kept, final = Counter(), Counter(), Counter()
    for item in found:
        suggested.update(map(key, item.suggested))
        kept.update(map(key, item.suggested & item.final))
        final.update(map(key, item.final))
    order = sorted(suggested.keys() | final.keys(), key=lambda k: (-max(suggested[k], final[k]), str(k)))
    return [Agreement(*named(k), suggested[k], kept[k], final[k]) for k in order]


def by_day(found: Sequence[Reviewed]) -> list[tuple[str, int, float | None, float]]:
    """(day, notes finished, acceptance, median seconds a note), oldest first."""
    days: dict[str, list[Reviewed]] = {}
    for item in found:
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(item.finished)), []).append(item)
    return [
        (day, len(items), overall(items).acceptance, median([item.seconds for item in items]))
        for day, items in sorted(days.items())
    ]


def median(values: Sequence[float]) -> float:
    """The middle value; 0 of none."""
    return float(statistics.median(values)) if values else 0.0


@dataclass(frozen=True)
class Drift:
    """A number of the notes then and now: means, and the population stability index between the two (None: too few)."""

    name: str
    title: str
    then: float
    now: float
    index: float | None

    @property
    def verdict(self) -> str:
        """The index in words: below 0.1 stable, below 0.25 some change, else changed."""
        if self.index is None:
            return "too few notes"
        return "stable" if self.index < 0.1 else "some change" if self.index < 0.25 else "changed"


def drift(connection: Connection, window: int = 500) -> list[Drift]:
    """The last notes against the first ones, for each number of their profile."""
    wanted = select(codings.c.profile)
    first = list(connection.scalars(wanted.order_by(codings.c.id).limit(window)))
    last = list(connection.scalars(wanted.order_by(codings.c.id.desc()).limit(window)))
    if len(first) < window or len(last) < window:  # few notes: the older half against the newer
        half = len(first) // 2
        first, last = first[:half], first[half:]
    rows = []
    for name, title in DRIFT.items():
        then, now = ([float(profile.get(name, 0.0)) for profile in part] for part in (first, last))
        means = [sum(values) / len(values) if values else 0.0 for values in (then, now)]
        rows.append(Drift(name, title, *means, stability(then, now)))
    return rows


def stability(then: Sequence[float], now: Sequence[float], bins: int = 10) -> float | None:
    """The population stability index: sum of (q - p) ln(q / p) over the deciles of `then`; None of too few values."""
    if min(len(then), len(now)) < _SMALL:
        return None
    ordered = sorted(then)
    edges = sorted({ordered[len(ordered) * i // bins] for i in range(1, bins)})
    shares = []
    for values in (then, now):
        counts = [0.5] * (len(edges) + 1)  # half a note a bin: an empty one must not weigh endlessly
        for value in values:
            counts[sum(edge <= value for edge in edges)] += 1
        shares.append([count / sum(counts) for count in counts])
    return sum((q - p) * math.log(q / p) for p, q in zip(*shares))
