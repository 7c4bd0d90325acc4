"""Values of procedures that are counted or measured: vessels and stents, bypass grafts, vertebral joints, hours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from nosology.claims.procedure_values import Cells
from nosology.core import Span

_NUMBERS = {"one": 1, "single": 1, "two": 2, "double": 2, "three": 3, "triple": 3, "four": 4, "quadruple": 4, "five": 5}
_NUMBER = rf"(?:\d+|{'|'.join(_NUMBERS)})"
_COUNT_WORDS = ("", "one", "two", "three", "four or more")

_VESSELS = {
    "lad": r"LAD|left anterior descending",
    "diagonal": r"D1|D2|diag(?:onal)?",
    "circumflex": r"LCx|LCX|Cx|circumflex",
    "marginal": r"OM ?\d?|obtuse marginal(?: ?\d)?",
    "right": r"RCA|right coronary",
    "posterior": r"PDA|posterior descending",
    "posterolateral": r"PLV|PLB|PL|posterolateral",
    "ramus": r"ramus|intermedius",
    "left main": r"left main|LMCA",
}
_VESSEL = re.compile("|".join(rf"(?P<{name.replace(' ', '_')}>\b(?:{it})\b)" for name, it in _VESSELS.items()))
_VESSEL_COUNT = re.compile(rf"\b({_NUMBER})[- ]vessels?\b", re.IGNORECASE)
_STENTS = re.compile(
    rf"\b(?P<before>{_NUMBER})\s+(?:\w+[ -]){{0,4}}?(?:stents|stent|DES|BMS)\b"
    r"|\b(?:stents?|DES|BMS)\s*(?:\(?x ?|× ?)(?P<after>\d)\b",
    re.IGNORECASE,
)
_STENT = re.compile(r"(?<!without )(?<!no )\b(?:stents?|stented|stenting|DES|BMS)\b", re.IGNORECASE)
_STENTS_PLURAL = re.compile(r"\bstents\b", re.IGNORECASE)
_ELUTING = re.compile(
    r"\bDES\b|\bdrug[- ]eluting|\w+limus|\bpaclitaxel|\bxience\b|\bpromus\b|\bsynergy\b", re.IGNORECASE
)

_GRAFT = re.compile(
    r"(?P<left>\bLIMA\b|\bleft internal (?:mammary|thoracic)(?: artery)?)"
    r"|(?P<right>\bRIMA\b|\bright internal (?:mammary|thoracic)(?: artery)?)"
    r"|(?P<vein>\bS?VG\b|\b(?:reversed? )?(?:greater )?saphenous vein(?: graft)?s?|\bvein grafts?)"
    r"|(?P<radial>\b(?:free )?(?:left |right )?radial artery(?: graft)?)",
    re.IGNORECASE,
)
_TO = re.compile(r"^[\w ()]{0,20}?(?:\bto\b|-|–|→|>|:)", re.IGNORECASE)
_GRAFT_END = re.compile(r"[.;\n]")
_GRAFT_VALUES = {
    "left": ("No Device", "Internal Mammary, Left"),
    "right": ("No Device", "Internal Mammary, Right"),
    "vein": ("Autologous Venous Tissue", "Aorta"),
    "radial": ("Autologous Arterial Tissue", "Aorta"),
}

_VERTEBRAE = [*(f"C{n}" for n in range(1, 8)), *(f"T{n}" for n in range(1, 13)), *(f"L{n}" for n in range(1, 6)), "S1"]
_LEVEL = re.compile(
    r"\b(?P<first>[CTL])(?P<number>\d{1,2})(?:\s?(?:-|–|/|to|through)\s?(?P<second>[CTLS])?(?P<last>\d{1,2}))?\b"
)
_REGIONS = {"C": "cervical", "T": "thoracic", "L": "lumbar", "S": "sacral"}
_BETWEEN = {"CT": "cervicothoracic", "TL": "thoracolumbar", "LS": "lumbosacral"}

_HOURS = re.compile(
    r"(?P<sign>[<>]|less than|more than|greater than|over|under)?\s?\b(?P<number>\d+(?:\.\d+)?)\s?"
    r"(?P<unit>hours?|hrs?|h|days?|d)\b",
    re.IGNORECASE,
)
_DAY = r"(?P<{0}_month>\d{{1,2}})/(?P<{0}_day>\d{{1,2}})"
_FROM = re.compile(rf"\b(?:intubat\w+|ventilat\w+|vent)\b[^.;\n]{{0,60}}?{_DAY.format('from')}", re.IGNORECASE)
_UNTIL = re.compile(
    rf"\b(?:extubat\w+|off the vent\w*|weaned|liberated)\b[^.;\n]{{0,40}}?{_DAY.format('to')}", re.IGNORECASE
)
_HOSPITAL_DAY = r"(?:HD|hospital day|POD) ?#?(?P<{0}_number>\d{{1,2}})"
_FROM_DAY = re.compile(rf"\b(?:intubat\w+|ventilat\w+)\b[^.;\n]{{0,60}}?{_HOSPITAL_DAY.format('from')}", re.IGNORECASE)
_DAY_FROM = re.compile(rf"{_HOSPITAL_DAY.format('from')}\b[^.;\n]{{0,40}}?\bintubat\w+", re.IGNORECASE)
_UNTIL_DAY = re.compile(rf"\bextubat\w+\b[^.;\n]{{0,40}}?{_HOSPITAL_DAY.format('to')}", re.IGNORECASE)
_OVERNIGHT = re.compile(
    r"\bovernight\b|\bextubated (?:the same day|later that day|within \d{1,2} hours)", re.IGNORECASE
)

# Layers from the deepest to the surface, with the body systems of ICD-10-PCS.
_LAYER_SYSTEMS = {"bone": "PQ", "tendon": "L", "muscle": "K", "fascia": "J", "skin": "H"}
_LAYER = re.compile(
    r"\b(?:(?P<bone>bones?)|(?P<tendon>tendons?)|(?P<muscle>muscles?)|(?P<fascia>fascia|subcutaneous|subq|fat)"
    r"|(?P<skin>skin|dermis))\b",
    re.IGNORECASE,
)
_DOWN_TO = re.compile(
    r"\b(?:down to|to the level of|exposing|until|to (?:healthy|viable|bleeding))(?! and including)[\w ]*$",
    re.IGNORECASE,
)

Scopes = list[list[Span]]


class Counted(NamedTuple):
    """The combinations that a count leaves, and the words that were counted."""

    cells: Cells
    spans: tuple[Span, ...] = ()


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS[text.lower()]


def _matches(pattern: re.Pattern[str], text: str, scope: list[Span]) -> list[re.Match[str]]:
    return [match for span in scope for match in pattern.finditer(text, span.start, span.end)]


def _first(pattern: re.Pattern[str], text: str, scopes: Scopes) -> list[re.Match[str]]:
    """The matches in the nearest scope that has one."""
    return next((found for scope in scopes if (found := _matches(pattern, text, scope))), [])


def _span(match: re.Match[str]) -> Span:
    return Span(*match.span())


def vessels(text: str, name: Span, scopes: Scopes, cells: Cells) -> list[Counted]:
    """Coronary arteries that were dilated, and their stents by kind and number."""
    found = _first(_VESSEL, text, scopes[:2])
    stated = _first(_VESSEL_COUNT, text, scopes[:2])
    stents = _first(_STENTS, text, scopes[:3])
    n_stents = _number(stents[0]["before"] or stents[0]["after"]) if stents else 0
    has_stent = _first(_STENT, text, scopes[:2])
    n_vessels = _number(stated[0][1]) if stated else len({match.lastgroup for match in found})
    if not n_vessels and (n_stents == 1 or (has_stent and not _matches(_STENTS_PLURAL, text, scopes[1]))):
        n_vessels = 1  # one stent is in one artery
    if not n_vessels:
        return []
    device = "No Device"
    spans = [_span(match) for match in (*found, *stated[:1], *stents[:1], *has_stent[:1])]
    if has_stent:
        plural = bool(_matches(_STENTS_PLURAL, text, scopes[1]))
        number = n_stents or (n_vessels if n_vessels > 1 else 2 if plural else 1)
        if plural and not n_stents and n_vessels == 1:
            return []
        eluting = _first(_ELUTING, text, scopes[:3])
        spans += [_span(match) for match in eluting[:1]]
        device = (
            "Intraluminal Device" + (", Drug-eluting" if eluting else "") + ("", "", ", Two", ", Three")[min(number, 3)]
        )
        device = device if number < 4 else device.replace(", Three", ", Four or More")
    kept = cells.keep("body_part", _counted_labels(cells, n_vessels)).keep("device", {device})
    return [Counted(kept, tuple(dict.fromkeys(spans)))]


def _counted_labels(cells: Cells, number: int) -> list[str]:
    words = f", {_COUNT_WORDS[min(number, 4)]} arter"
    return [label for label in cells.labels("body_part") if words in label.lower()]


def grafts(text: str, name: Span, scopes: Scopes, cells: Cells) -> list[Counted]:
    """Coronary bypasses by source of the graft, with the number of arteries that each kind supplies."""
    targets: dict[str, dict[str, Span]] = {}
    for scope in (*scopes[:2], [span for wide in scopes[2:] for span in wide]):
        for span in scope:
            for kind, found in _graft_targets(text, span):
                targets.setdefault(kind, {}).update(found)
        if targets:
            break
    result = []
    for kind, found in targets.items():
        device, qualifier = _GRAFT_VALUES[kind]
        kept = cells.keep("body_part", _counted_labels(cells, len(found)))
        kept = kept.keep("device", {device}).keep("qualifier", {qualifier})
        result.append(Counted(kept, tuple(found.values())))
    return result


def _graft_targets(text: str, scope: Span) -> Iterator[tuple[str, dict[str, Span]]]:
    """For each graft that is said to go to arteries: its kind, and the arteries with graft and artery as words."""
    sources = list(_GRAFT.finditer(text, scope.start, scope.end))
    for match, following in zip(sources, [*(it.start() for it in sources[1:]), scope.end]):
        stop = _GRAFT_END.search(text, match.end(), following)
        end = stop.start() if stop else following
        if match.lastgroup and _TO.match(text[match.end() : end]):
            arteries = list(_VESSEL.finditer(text, match.end(), end))
            if arteries:
                yield match.lastgroup, {it[0].lower(): Span(match.start(), it.end()) for it in arteries}


def joints(text: str, name: Span, scopes: Scopes, cells: Cells) -> list[Counted]:
    """Vertebral joints by region: L4-S1 is one lumbar and one lumbosacral joint."""
    by_region: dict[str, set[int]] = {}
    spans = []
    for match in _first(_LEVEL, text, scopes):
        levels = _levels(match)
        spans.append(_span(match))
        for upper in levels[:-1]:
            pair = f"{_VERTEBRAE[upper][0]}{_VERTEBRAE[upper + 1][0]}"
            by_region.setdefault(_BETWEEN.get(pair) or _REGIONS[pair[0]], set()).add(upper)
    result = []
    for region, pairs in by_region.items():
        labels = [label for label in cells.labels("body_part") if label.lower().startswith(f"{region} ")]
        several = [label for label in labels if re.search(r"\d", label)]
        plural = [label for label in several if "8 or" not in label or len(pairs) >= 8]
        chosen = plural[-1:] if len(pairs) > 1 and plural else [label for label in labels if label not in several]
        if chosen:
            result.append(Counted(cells.keep("body_part", chosen), tuple(spans)))
    return result


def region(text: str, name: Span, scopes: Scopes, cells: Cells) -> list[Counted]:
    """Discs, vertebrae, nerves or the cord at the vertebral levels of the note; all of them if it names no levels."""
    chosen: dict[str, list[Span]] = {}
    for match in _first(_LEVEL, text, scopes[:3]):
        levels = _levels(match)
        pairs = {f"{_VERTEBRAE[one][0]}{_VERTEBRAE[min(one + 1, len(_VERTEBRAE) - 1)][0]}" for one in levels[:-1]}
        names = [_BETWEEN.get(pair) or _REGIONS[pair[0]] for pair in sorted(pairs)] or [_REGIONS[match["first"]]]
        labels = cells.labels("body_part")
        for name_of_region in names:
            of_region = [label for label in labels if label.lower().startswith(f"{name_of_region} ")]
            own = _REGIONS[match["first"]]
            for label in of_region or [label for label in labels if label.lower().startswith(f"{own} ")]:
                chosen.setdefault(label, []).append(_span(match))
    if not chosen:
        return [Counted(cells)]
    return [Counted(cells.keep("body_part", {label}), tuple(spans)) for label, spans in chosen.items()]


def _levels(match: re.Match[str]) -> list[int]:
    """The vertebrae from the first to the last of a range, as places in _VERTEBRAE; one of them if it is no range."""
    first = f"{match['first']}{match['number']}"
    last = f"{match['second'] or match['first']}{match['last']}" if match["last"] else first
    if first not in _VERTEBRAE or last not in _VERTEBRAE:
        return []
    return list(range(_VERTEBRAE.index(first), _VERTEBRAE.index(last) + 1))


def hours(text: str, name: Span, scopes: Scopes, cells: Cells) -> list[Counted]:
    """Duration of mechanical ventilation: less than 24, 24 to 96, or more than 96 consecutive hours."""
    scope = [scopes[1], *scopes[2:4]]
    for match in (match for part in scope for match in _matches(_HOURS, text, part)):
        days = match["unit"][0].lower() == "d"
        value = float(match["number"]) * (24 if days else 1)
        sign = (match["sign"] or "").lower()
        value += {"<": -0.1, "less than": -0.1, "under": -0.1}.get(sign, 0.1 if sign else 0)
        return _duration(cells, value, (_span(match),))
    wide = [[span for part in scopes[1:] for span in part]]
    first, last = _first(_FROM, text, wide), _first(_UNTIL, text, wide)
    days = -1
    if first and last:
        days = 30 * (int(last[0]["to_month"]) - int(first[0]["from_month"]))
        days += int(last[0]["to_day"]) - int(first[0]["from_day"])
    else:
        first, last = _first(_DAY_FROM, text, wide) or _first(_FROM_DAY, text, wide), _first(_UNTIL_DAY, text, wide)
        if first and last:
            days = int(last[0]["to_number"]) - int(first[0]["from_number"])
    if days in (2, 3) or days >= 5:  # one day and four days can be either side of a limit
        return _duration(cells, 24.0 * days - 12, (_span(first[0]), _span(last[0])))
    if night := _first(_OVERNIGHT, text, scope):
        return _duration(cells, 12, (_span(night[0]),))
    return []


def _duration(cells: Cells, value: float, spans: tuple[Span, ...]) -> list[Counted]:
    label = "Less than 24" if value < 24 else "24-96" if value <= 96 else "Greater than 96"
    return [Counted(cells.keep("approach", {f"{label} Consecutive Hours"}), spans)]


def layers(text: str, name: Span, scopes: Scopes, cells: Cells) -> list[Counted]:
    """The deepest layer that was removed: bone, tendon, muscle, subcutaneous tissue with fascia, or skin.

    The layer down to which tissue was removed stays; it counts only if it is said to be included.
    """
    for scope in scopes:
        removed = [it for it in _matches(_LAYER, text, scope) if not _DOWN_TO.search(text[: it.start()][-40:])]
        for kind, systems in _LAYER_SYSTEMS.items():
            found = [match for match in removed if match.lastgroup == kind]
            if found:
                rows = tuple(row for row in cells.rows if row[0][1] in systems)
                return [Counted(Cells(rows), (_span(found[0]),))]
    return []


COUNTS: Mapping[str, Callable[[str, Span, Scopes, Cells], list[Counted]]] = {
    "vessels": vessels,
    "grafts": grafts,
    "joints": joints,
    "region": region,
    "hours": hours,
    "layers": layers,
}
"""What can be counted, by the name that a data file gives."""
