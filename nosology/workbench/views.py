"""View models that pages and API share: the code panel of a note and the code book."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from nosology.claims.checks import PROCEDURES, AssignedCode, needs_no_poa, table_on
from nosology.claims.claim import ClaimCode
from nosology.claims.code_issue import CodeIssue
from nosology.claims.draft import LeftOut
from nosology.claims.encounter_checks import check_encounter
from nosology.claims.grouping import PaymentGroups, payment_groups
from nosology.claims.rules import rules_by_id
from nosology.codes import describe, in_release, table
from nosology.core import SYSTEMS, Code, ConfigError, Span, Suggestion
from nosology.models.siblings.sibling_chooser import SiblingChooser
from nosology.workbench.cases import Case, EvidenceInContext, UncertainSuggestion
from nosology.workbench.encounter_services import ImportedNotes
from nosology.workbench.proposals import claim_codes, propose_claim
from nosology.workbench.review import REASONS, NotFound

MAX_QUOTES, MAX_QUOTE_LENGTH = 4, 60
# Characters that change how the rest of the text is displayed: controls, marks of writing direction.
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n\r"}
_DIRECTIONS = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "⇄")
_SIGNS = {**_CONTROLS, 0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), "·"), **_DIRECTIONS, 0xFEFF: "·"}
BOOK_SECTIONS = {
    "inclusion_terms": "Inclusion terms",
    "includes": "Includes",
    "excludes1": "Excludes 1: never together",
    "excludes2": "Excludes 2: not part of it, may be coded in addition",
    "code_first": "Code first",
    "code_also": "Code also",
    "use_additional": "Use additional code",
    "notes": "Notes",
}


def visible_text(text: str) -> str:
    """The text with a visible sign for each invisible character; the length stays the same.

    A carriage return before a line feed becomes a blank, any other one a line feed, as HTML would merge them.
    """
    return text.replace("\r\n", " \n").replace("\r", "\n").translate(_SIGNS)


@dataclass(frozen=True, slots=True)
class EvidenceQuote:
    """Text of an evidence span, its context (negated, family ...), and its document if there is more than one."""

    start: int
    end: int
    text: str
    context: str
    document: str = ""


@dataclass(frozen=True, slots=True)
class CodeCard:
    """A code on the panel."""

    key: str
    code: str
    system: str
    description: str
    probability: float | None
    accepted: bool
    quotes: tuple[EvidenceQuote, ...]
    folded: bool = False  # below the threshold of the coder; what the claim decides on is not
    chosen: AssignedCode | None = None
    principal: bool = False
    procedure: bool = False
    exempt: bool = False  # from present on admission
    severity: str = ""
    excluded: str = ""  # CC or MCC that does not count beside the principal diagnosis
    hcc: str = ""
    reason: str = ""
    rule: str = ""


@dataclass(frozen=True)
class CodePanel:
    """The panel of a note: chosen codes, open suggestions, rejected codes, issues and payment groups.

    worst: the most severe issue per code (`str(code)`), without hints.
    """

    chosen: list[CodeCard]
    open: list[CodeCard]
    rejected: list[CodeCard]
    issues: list[CodeIssue]
    groups: PaymentGroups
    worst: Mapping[str, CodeIssue]


def build_panel(case: Case) -> CodePanel:
    """The panel of a note in the present state of its review."""
    text, encounter, review = case.note["text"], case.note["encounter"], case.review
    evidence, suggested, principal = case.evidence(), case.suggested, review.principal
    names = document_names(case)
    issues = check_encounter(review, encounter, text, evidence)
    groups = payment_groups(review, encounter)

    def card(code: Code, item: AssignedCode | None = None) -> CodeCard:
        suggestion = suggested.get(code)
        return CodeCard(
            key=str(code),
            code=code.code,
            system=code.system,
            description=(suggestion.description if suggestion else "") or describe(code) or "no description",
            probability=suggestion.probability if suggestion else None,
            accepted=bool(suggestion and suggestion.accepted),
            quotes=_quotes(text, tuple(evidence.get(code, ())), suggestion, names),
            folded=bool(suggestion) and not (suggestion.accepted or isinstance(suggestion, UncertainSuggestion)),
            chosen=item,
            principal=code == principal,
            procedure=code.system in PROCEDURES,
            exempt=needs_no_poa(code, encounter),
            severity=groups.severity.get(code, ""),
            excluded=groups.excluded.get(code, ""),
            hcc=groups.hcc.get(code, ""),
            reason=REASONS.get(review.rejected.get(code, ""), ""),
            rule=rule.message if item and (rule := rules_by_id().get(item.rule)) else item.rule if item else "",
        )

    decided = {*review.codes, *review.rejected}
    worst: dict[str, CodeIssue] = {}
    for issue in issues:
        if issue.level != "hint":
            worst.setdefault(str(issue.code), issue)
    return CodePanel(
        chosen=[card(item.code, item) for item in review.chosen],
        open=[card(code) for code in suggested if code not in decided],
        rejected=[card(code) for code in review.rejected],
        issues=issues,
        groups=groups,
        worst=worst,
    )


@dataclass(frozen=True, slots=True)
class ProposedCode:
    """A code of the proposed claim; rule: the sentence of the rule that adds it, section: of the guidelines."""

    key: str
    code: str
    description: str
    probability: float
    procedure: bool
    poa: str
    quotes: tuple[EvidenceQuote, ...]
    rule: str
    section: str
    state: str  # open, chosen or rejected


@dataclass(frozen=True)
class ClaimPanel:
    """The proposed claim of a note; open: how many of its codes are still to be decided. reason: why there is none."""

    codes: list[ProposedCode]
    open: int
    left_out: Sequence[LeftOut] = ()
    queries: Sequence[tuple[str, tuple[EvidenceQuote, ...]]] = ()
    conflicts: Sequence[CodeIssue] = ()
    reason: str = ""


def build_claim_panel(case: Case) -> ClaimPanel | None:
    """The proposed claim and what people have decided about its codes; None until the note is coded."""
    if case.coder is None:
        return None
    try:
        claim = propose_claim(case)
    except ConfigError as error:
        return ClaimPanel([], 0, reason=str(error))
    text, review, names = case.note["text"], case.review, document_names(case)

    def proposed(item: ClaimCode) -> ProposedCode:
        code = Code(item.system, item.code)
        state = "chosen" if review.find(code) else "rejected" if code in review.rejected else "open"
        rule = rules_by_id().get(item.rule)
        return ProposedCode(
            key=str(code),
            code=item.code,
            description=item.description,
            probability=item.probability,
            procedure=item.system in PROCEDURES,
            poa=item.poa,
            quotes=_quotes(text, item.evidence, None, names),
            rule=rule.message if rule else item.rule,
            section=rule.section if rule else "",
            state=state,
        )

    codes = [proposed(item) for item in claim_codes(claim)]
    return ClaimPanel(
        codes=codes,
        open=sum(item.state == "open" for item in codes),
        left_out=claim.left_out,
        queries=[(item.question, _quotes(text, item.evidence, None, names)) for item in claim.queries],
        conflicts=claim.conflicts,
    )


DocumentNames = tuple[tuple[int, int, str], ...]  # (start, end, name)


def document_names(case: Case) -> DocumentNames:
    """Where each current document starts and ends, and its name; empty if there is only one.

    Documents of the same kind are distinguished by their dates, or else by their numbers.
    """
    if len(current := case.current) < 2:
        return ()
    names = [it.name for it in current]
    same = [names.count(name) > 1 for name in names]
    dated = [f"{it.name} {it.date or ''}".strip() if also else it.name for it, also in zip(current, same)]
    numbered = [
        f"{name} {dated[: place + 1].count(name)}" if dated.count(name) > 1 else name
        for place, name in enumerate(dated)
    ]
    return tuple((it.start, it.end, name) for it, name in zip(current, numbered))


@lru_cache(maxsize=10_000)  # every decision shows the panel again
def _quotes(
    text: str, spans: tuple[Span, ...], suggestion: Suggestion | None, names: DocumentNames
) -> tuple[EvidenceQuote, ...]:
    """The evidence of a code as text, each text of a document once; spans that people marked have no context."""
    context = {
        (span.start, span.end): ", ".join(span.context)
        for span in (suggestion.evidence if suggestion else ())
        if isinstance(span, EvidenceInContext)
    }
    quotes: dict[tuple[str, str, str], EvidenceQuote] = {}
    for start, end in spans:
        if len(quotes) == MAX_QUOTES:
            break
        quote, flags = " ".join(visible_text(text[start:end]).split()), context.get((start, end), "")
        short = quote if len(quote) <= MAX_QUOTE_LENGTH else quote[: MAX_QUOTE_LENGTH - 1] + "…"
        name = next((name for first, last, name in names if first <= start < last), "")
        quotes.setdefault((quote.lower(), flags, name), EvidenceQuote(start, end, short, flags, name))
    return tuple(quotes.values())


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the tabular list."""

    code: str
    description: str
    billable: bool


MAX_BELOW = 20  # codes offered below a line that is divided further


@dataclass(frozen=True)
class CodeBookPage:
    """A line of the tabular list with its neighbours; notes: (title, [(line, note)]) of all notes that apply.

    below: the billable codes below each sibling or child that is not billable. instead: the codes of the day, if it
    has no such line. is_ranked: the siblings are in the order in which they fit a note.
    """

    system: str
    release: str
    code: str
    kind: str
    description: str
    billable: bool
    ancestors: list[CodeLine]
    siblings: list[CodeLine]
    children: list[CodeLine]
    below: Mapping[str, list[CodeLine]]
    notes: list[tuple[str, list[tuple[str, str]]]]
    instead: Sequence[CodeLine] = ()
    is_ranked: bool = False


def code_book_page(system: str, code: str, day: str = "") -> CodeBookPage:
    """The page of a code in the release of a day, or else the newest; NotFound if neither has such a line.

    billable: on the day, or else in the newest release.
    """
    if system not in SYSTEMS:
        raise NotFound("the code book has no such line")
    then = table_on(system, day)
    codes = then if code in then else table(system)
    if code not in codes:
        raise NotFound("the code book has no such line")
    entry = codes[code]
    equivalents = in_release(Code(system, code), then.release) if codes is not then else ()

    def lines(names: Sequence[str]) -> list[CodeLine]:
        return [CodeLine(name, codes.description(name), then.billable(name)) for name in names]

    siblings = codes.children(entry.parent) if entry.parent and "-" not in entry.parent else []
    divided = [name for name in (*siblings, *codes.children(code)) if "-" not in name and not then.billable(name)]
    return CodeBookPage(
        system=system,
        release=codes.release,
        code=entry.code,
        kind=entry.kind,
        description=entry.description,
        billable=then.billable(code),
        ancestors=lines(list(reversed(codes.ancestors(code)))),
        siblings=lines(codes.children(entry.parent) if entry.parent else codes.chapters()),
        children=lines(codes.children(code)),
        below={
            name: lines([line for line in codes.descendants(name) if then.billable(line)][:MAX_BELOW])
            for name in divided
        },
        notes=[(title, notes) for kind, title in BOOK_SECTIONS.items() if (notes := codes.inherited_notes(code, kind))],
        instead=[CodeLine(it.code, then.description(it.code), True) for it in equivalents if then.billable(it.code)],
    )


def rank_siblings(book: CodeBookPage, case: Case, changed: Code, chooser: SiblingChooser) -> CodeBookPage:
    """The page with the siblings that fit the note best first; changed: the code of the note that is to be changed."""
    if changed.system != book.system or book.system != "icd10cm" or changed.code[:3] != book.code[:3]:
        return book
    scores = {code: suggestion.probability for code, suggestion in case.suggested.items()}
    evidence = case.evidence().get(changed, ())
    choice = chooser.choose(case.note["text"], changed, evidence, scores, release=book.release)
    if choice is None or "." not in book.code:
        return book
    siblings = sorted(book.siblings, key=lambda line: -choice.probability(line.code))
    return replace(book, siblings=siblings, is_ranked=True)


def import_notice(imported: ImportedNotes) -> str:
    """What an import did besides adding documents; "" if nothing."""
    words = {
        "corrected": "corrected: their texts were different",
        "withdrawn": "withdrawn",
        "known": "skipped: documents with their ids and texts exist already",
    }
    found = [f"{number:,} {text}." for name, text in words.items() if (number := getattr(imported, name))]
    return " ".join([f"{imported.added:,} imported.", *found]) if found else ""
