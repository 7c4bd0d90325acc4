"""Rules as data: the TOML files of claims/guidelines, and how a rule is applied to a draft of the code set.

A rule fires if all of its conditions hold. It then adds codes, drops codes or asks a question. Phrases of rules are
written as in text/data/context.tsv: "quit|stopped smoking" is two phrases, and "@name" is a list of a rule file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from nosology.claims.code_completion import completed
from nosology.claims.draft import RULE_PROBABILITY, Draft, Entry, Query, matches, references
from nosology.claims.mention_status import SYMPTOMS
from nosology.claims.pregnancy import is_pregnant
from nosology.claims.rule_phrases import PhraseIndex, find_phrases, phrase_index
from nosology.claims.substances import drug_lists, substances_in
from nosology.core import Span
from nosology.text.phrases import tokenized_note

FAMILIES = ("context", "specificity", "combination", "companion", "encounter", "integral", "relevance", "query")
"""The families of rules, in the order in which they are applied; each can be turned off for measurements."""

_PATTERN_NAME = re.compile(r"@(\w+)")
_MAX_PASSES = 4  # a result of one rule can be the condition of another
_BEFORE_ANCHOR, _AFTER_ANCHOR = 100, 200  # characters around an anchor in which a regular expression is tried
_WINDOW = 80  # characters before and after words that before, after, not_before and not_after see


class Example(BaseModel):
    """A sentence with the codes of its claim that must be there and must not be there."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    text: str
    setting: Literal["inpatient", "outpatient", "emergency"] = "outpatient"
    codes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Rule(BaseModel):
    """One rule. Conditions: codes, words, setting, sex, age, unless ...; results: add, rows, choose ...

    codes: patterns (I50|N18.5|E08-E13|@name, a pattern of a rule file); the set must have a code for each.
    words: phrases of which the note must have one (@name: a list of a rule file).
    regex: the same as a regular expression, whose groups can be used in add (value2 is another place for value); it is
        tried only around the words in anchors (in lower case; no anchors: in the whole note).
    rows: a table; each row is a code and the phrases that add it. A code that is not billable is completed by the side
        next to the phrase and by the seventh character of the injury.
    before, after: regular expressions for the same sentence before and after the words; one of them must match, except
        in the sections named in trusted. not_before, not_after: none of them may match.
    drop_within: patterns of codes to drop whose evidence lies within the match of regex.
    swap: codes to replace: a code, a pattern of the first of codes that shares a sentence with it, and the new code.
    current: words about the past do not count.
    roles: roles of the author (attending, radiology, pathology) for whose notes the rule holds; none: for all.
    systems: code systems of claims for which the rule holds; combination codes of ICD-10-CM have none in ICD-9-CM.
    also_words: phrases of which the note must have one, anywhere, in a context that counts.
    substances: pairs of a pattern of the Table of Drugs and Chemicals (code of an accidental poisoning, or "allergy")
        and a code to add for the substances in the groups drug, drug2 ... of regex; {adverse_effect}, {underdosing},
        {poisoning_self_harm} ... are the codes of the substance, {allergy} its code as an allergy.
    near: the words must be in the sentence of the evidence of the first code.
    pregnant: the patient must be pregnant or have just given birth. newborn: the patient must be a newborn.
    together: the evidence of each code must be in a sentence with evidence of the first code.
    sections, not_sections: kinds of sections in which words count, or do not count.
    contexts: contexts in which words count; otherwise they must not be negated, hypothetical or about a relative.
    choose: pairs of pattern and code to add; the first pair whose pattern is in the set ("": always).
    ranges: lowest value, highest value, and the code to add, for the group `value`.
    {0}, {1} in a code to add or drop: the category of the first, second matched code; {r1}: the characters after its
    dot; {c1[5]}: one character of it, counted from 0 without the dot; {t0}, {t9}: the trimester, 0 or 9 if not known;
    {loc}: the character of the loss of consciousness.
    A part of a pattern after "!" is not matched.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str
    family: Literal["context", "specificity", "combination", "companion", "encounter", "integral", "relevance", "query"]
    section: str  # of the Official Guidelines
    message: str
    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    regex: str = ""
    anchors: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    before: str = ""
    after: str = ""
    not_before: str = ""
    not_after: str = ""
    trusted: tuple[str, ...] = ()
    current: bool = False
    also_words: tuple[str, ...] = ()
    substances: tuple[tuple[str, str], ...] = ()
    near: bool = False
    together: bool = False
    pregnant: bool = False
    newborn: bool = False
    sections: tuple[str, ...] = ()
    not_sections: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    setting: tuple[str, ...] = ()
    roles: tuple[Literal["attending", "radiology", "pathology"], ...] = ()
    systems: tuple[Literal["icd10cm", "icd9cm"], ...] = ("icd10cm", "icd9cm")
    sex: str = ""
    age: tuple[float, float] | None = None
    unless: tuple[str, ...] = ()
    unless_words: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    choose: tuple[tuple[str, str], ...] = ()
    ranges: tuple[tuple[float, float, str], ...] = ()
    drop: tuple[str, ...] = ()
    drop_within: tuple[str, ...] = ()
    swap: tuple[tuple[str, str, str], ...] = ()
    query: str = ""
    positive: tuple[Example, ...]
    negative: tuple[Example, ...]

    @property
    def only_drops(self) -> bool:
        """Whether the rule takes codes out because of other codes, and adds none."""
        adds = self.add or self.rows or self.choose or self.ranges or self.words or self.regex
        return bool(self.drop) and self.drop != self.codes and not adds


@cache
def _files() -> list[dict[str, Any]]:
    folder = files("nosology.claims").joinpath("guidelines")
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".toml"))
    return [tomllib.loads(folder.joinpath(name).read_text(encoding="utf-8")) for name in names]


@cache
def rules() -> tuple[Rule, ...]:
    """All rules in the order of FAMILIES, and of the files within a family."""
    named = {name: pattern for content in _files() for name, pattern in content.get("patterns", {}).items()}
    found = [Rule.model_validate(_expanded(item, named)) for content in _files() for item in content.get("rule", ())]
    return tuple(sorted(found, key=lambda rule: FAMILIES.index(rule.family)))


@cache
def rules_by_id() -> dict[str, Rule]:
    """All rules by their ids."""
    return {rule.id: rule for rule in rules()}


def _expanded(item: dict[str, Any], named: dict[str, str]) -> dict[str, Any]:
    """A rule of a file with @name in its code patterns replaced by the pattern of that name."""
    fields = ("codes", "unless", "drop")
    return item | {name: [_PATTERN_NAME.sub(lambda m: named[m[1]], it) for it in item.get(name, ())] for name in fields}


@cache
def word_list(name: str) -> tuple[str, ...]:
    """A named list of phrases: of a rule file, or the drugs whose long-term use has this code."""
    if name in drug_lists():
        return drug_lists()[name]
    for content in _files():
        if name in content.get("lists", {}):
            return tuple(content["lists"][name])
    raise KeyError(name)


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


@cache
def _index() -> PhraseIndex:
    """All phrases of the rules, by phrase or @list."""
    keys = {
        key
        for rule in rules()
        for key in (*rule.words, *rule.unless_words, *rule.also_words, *(word for row in rule.rows for word in row[1:]))
    }
    keys.add("@drugs")
    return phrase_index({key: word_list(key[1:]) if key.startswith("@") else (key,) for key in sorted(keys)})


@lru_cache(maxsize=128)  # every check of a note's codes asks again
def _phrase_hits(text: str) -> dict[str, list[Span]]:
    """Where the phrases of all rules occur in a note."""
    return find_phrases(text, tokenized_note(text).written, _index())


def _hits(draft: Draft, keys: Iterable[str]) -> list[Span]:
    """Where the phrases occur in the note, in order; of overlapping ones only the longest."""
    hits = _phrase_hits(draft.text)
    found = [span for key in keys if key in hits for span in hits[key]]
    result: list[Span] = []
    for span in sorted(set(found), key=lambda span: (span.start, -span.end)):
        if not result or span.start >= result[-1].end:
            result.append(span)
    return result


@cache
def _ids() -> frozenset[str]:
    return frozenset(rule.id for rule in rules())


@cache
def _family(name: str) -> tuple[tuple[Rule, frozenset[str]], ...]:
    """The rules of a family, each with the phrases and anchors of which a note must have one; none: any note."""
    return tuple((rule, _triggers(rule)) for rule in rules() if rule.family == name)


def _triggers(rule: Rule) -> frozenset[str]:
    if rule.swap or (rule.regex and not rule.anchors):
        return frozenset()
    return frozenset((*rule.words, *rule.anchors, *(phrase for row in rule.rows for phrase in row[1:])))


def _triggered(draft: Draft, family: str, off: Collection[str]) -> list[Rule]:
    """The rules of a family, but for those in off, that the words of the note allow to fire."""
    phrases, words = _phrase_hits(draft.text).keys(), draft.places.keys()
    return [
        rule
        for rule, triggers in _family(family)
        if rule.id not in off and not (triggers and phrases.isdisjoint(triggers) and words.isdisjoint(triggers))
    ]


@cache
def _patterns_by_letter() -> dict[str, tuple[str, ...]]:
    """The patterns of all rules' codes by the first letter of the codes that they can match."""
    found: dict[str, dict[str, None]] = {}
    for pattern in dict.fromkeys(pattern for rule in rules() for pattern in (*rule.codes, *rule.unless)):
        for reference in references(pattern)[0]:
            for letter in range(ord(reference.first[0]), ord(reference.last[0]) + 1):
                found.setdefault(chr(letter), {})[pattern] = None
    return {letter: tuple(patterns) for letter, patterns in found.items()}


@lru_cache(maxsize=100_000)
def _patterns_of(code: str) -> frozenset[str]:
    """The patterns of all rules that a code matches."""
    return frozenset(pattern for pattern in _patterns_by_letter().get(code[0], ()) if matches(pattern, code))


def apply_rules(draft: Draft, family: str, off: Collection[str] = ()) -> None:
    """Applies the rules of a family, but for those in off, until nothing changes."""
    triggered = _triggered(draft, family, off)
    for number in range(_MAX_PASSES):
        before = (tuple(draft.entries), len(draft.queries))
        present = _present(before[0])
        for rule in triggered:
            if number and not (rule.codes or rule.unless or rule.drop):
                continue  # nothing in the set decides whether it fires
            if _may_fire(rule, present):
                _apply(rule, draft)
                present = _present(tuple(draft.entries))
        if before == (tuple(draft.entries), len(draft.queries)):
            break


def apply_rule(rule: Rule, draft: Draft) -> None:
    """Applies one rule if the codes of the draft allow it to fire."""
    if _may_fire(rule, _present(tuple(draft.entries))):
        _apply(rule, draft)


def rules_for(codes: tuple[str, ...], among: Iterable[Rule]) -> list[Rule]:
    """The rules that a set of codes allows to fire."""
    present = _present(codes)
    return [rule for rule in among if _may_fire(rule, present)]


def _may_fire(rule: Rule, present: frozenset[str]) -> bool:
    return present.issuperset(rule.codes) and present.isdisjoint(rule.unless)


@lru_cache(maxsize=256)
def _present(codes: tuple[str, ...]) -> frozenset[str]:
    """The patterns of all rules that some codes match."""
    return frozenset().union(*map(_patterns_of, codes))


def _apply(rule: Rule, draft: Draft) -> None:
    encounter = draft.encounter
    if draft.system not in rule.systems or (rule.setting and encounter.setting not in rule.setting):
        return
    if rule.roles and encounter.role not in rule.roles:
        return
    if (rule.pregnant and not is_pregnant(draft)) or (rule.newborn and not draft.is_newborn):
        return
    if rule.sex and encounter.sex and encounter.sex != rule.sex:
        return
    if rule.age and encounter.age is not None and not rule.age[0] <= encounter.age <= rule.age[1]:
        return
    matched = [draft.matching(pattern) for pattern in rule.codes]
    if rule.only_drops and len(matched) == 1:  # a symptom does not explain itself
        matched[0] = [it for it in matched[0] if not any(matches(drop, it.code) for drop in rule.drop)]
        if not matched[0]:
            return
    if rule.together and not (matched := _together(draft, matched)):
        return
    if rule.unless_words and any(_counts(rule, draft, span, ()) for span in _hits(draft, rule.unless_words)):
        return
    if rule.also_words and not any(_is_said(rule, draft, span) for span in _hits(draft, rule.also_words)):
        return
    near = matched[0] if rule.near and matched else ()
    if rule.swap:
        _swap(rule, draft, matched[0])
    elif not (rule.words or rule.regex or rule.rows):
        _fire(rule, draft, matched, None, {})
    for code, *phrases in rule.rows:
        for span in () if code in draft.entries and not rule.drop else _hits(draft, phrases):
            if _counts(rule, draft, span, near) and (row_code := completed(draft, code, span)):
                _fire(rule, draft, matched, span, {}, row_code)
                if any(draft.matching(pattern) for pattern in rule.unless):
                    return
    for span in _hits(draft, rule.words):
        if _counts(rule, draft, span, near):
            _fire(rule, draft, matched, span, {})
            break
    if rule.regex:
        _apply_regex(rule, draft, matched, near)


def _swap(rule: Rule, draft: Draft, causes: list[Entry]) -> None:
    """Replaces codes that share a sentence with a cause by the code that names the cause."""
    for old, pattern, new in rule.swap:
        entry = draft.entries.get(old)
        sentences = {draft.sentence(span.start) for span in entry.evidence} if entry else set()
        named = [it for it in causes if matches(pattern, it.code)]
        if any(draft.sentence(span.start) in sentences for it in named for span in it.evidence):
            draft.replace([old], new, rule.message, rule.id)


def _together(draft: Draft, matched: list[list[Entry]]) -> list[list[Entry]]:
    """The matched entries of the first combination that has a sentence in common; [] if there is none."""
    places = [[(it, {draft.sentence(span.start) for span in it.evidence}) for it in them] for them in matched]
    for first, sentences in places[0]:
        chosen = [[it for it, others in them if it is not first and sentences & others] for them in places[1:]]
        if all(chosen):
            return [[first], *chosen]
    return []


def _apply_regex(rule: Rule, draft: Draft, matched: list[list[Entry]], near: Iterable[Entry]) -> None:
    for match in _regex_matches(rule, draft):
        if not _counts(rule, draft, Span(*match.span()), near):
            continue
        for entry in [entry for pattern in rule.drop_within for entry in draft.matching(pattern)]:
            if entry.evidence and all(match.start() <= it.start and it.end <= match.end() for it in entry.evidence):
                draft.drop(entry.code, rule.message, rule.id)
        if rule.substances:
            for span, code in _substance_codes(rule, draft, match):
                _fire(rule, draft, matched, span, {}, code)
            continue
        groups = {name.rstrip("0123456789"): value for name, value in match.groupdict().items() if value}
        _fire(rule, draft, matched, Span(*match.span()), groups)
        once = not (rule.ranges or rule.drop_within or "{" in "".join(rule.add))
        if once or any(map(draft.matching, rule.unless)):
            break


def _regex_matches(rule: Rule, draft: Draft) -> list[re.Match[str]]:
    """The matches of a rule's regular expression, looked for only around its anchors."""
    if rule.regex in draft.regex_matches:
        return draft.regex_matches[rule.regex]
    windows = [(0, len(draft.text))]
    if rule.anchors:
        windows = []
        for place in sorted(place for word in rule.anchors for place in draft.places.get(word, ())):
            start, end = max(0, place - _BEFORE_ANCHOR), min(len(draft.text), place + _AFTER_ANCHOR)
            if windows and start <= windows[-1][1]:
                windows[-1] = (windows[-1][0], max(end, windows[-1][1]))
            else:
                windows.append((start, end))
    pattern = _regex(rule.regex)
    found = [match for start, end in windows for match in pattern.finditer(draft.text, start, end)]
    return draft.regex_matches.setdefault(rule.regex, found)


def _substance_codes(rule: Rule, draft: Draft, match: re.Match[str]) -> Iterator[tuple[Span, str]]:
    """The codes of the substances in the group `drug` of a match, by the first pattern that fits."""
    spans = [match.span(name) for name, value in match.groupdict().items() if name.startswith("drug") and value]
    for found in (it for span in spans for it in substances_in(draft.text, *span)):
        codes = found.codes
        if found.is_class:
            others = (it for span in _hits(draft, ("@drugs",)) for it in substances_in(draft.text, *span))
            same = (it for it in others if it.codes[0][:3] == codes[0][:3] and not it.is_class)
            codes = next(same, found).codes
        for pattern, template in rule.substances:
            if (pattern == "allergy" and found.allergy) or (
                pattern != "allergy" and codes[0] and matches(pattern, codes[0])
            ):
                code = template.format(allergy=found.allergy, **codes._asdict())
                if code := completed(draft, code, found.span):
                    yield found.span, code
                break


def _is_said(rule: Rule, draft: Draft, span: Span) -> bool:
    """Whether words are not denied, hypothetical or about a relative, or the rule allows it."""
    context = draft.context(span)
    barred = {"negated", "family", "hypothetical", *(("historical",) if rule.current else ())} - set(rule.contexts)
    return not any(getattr(context, name) for name in barred)


def _counts(rule: Rule, draft: Draft, span: Span, near: Iterable[Entry]) -> bool:
    """Whether an occurrence counts, by section, sentence, context and the words around it."""
    kind = draft.section_kind(span.start)
    if (rule.sections and kind not in rule.sections) or kind in rule.not_sections:
        return False
    sentence = draft.sentence(span.start)
    if near and not any(sentence.start <= at.start < sentence.end for entry in near for at in entry.evidence):
        return False
    if not _is_said(rule, draft, span):
        return False
    before = draft.text[max(sentence.start, span.start - _WINDOW) : span.start]
    after = draft.text[span.end : min(sentence.end, span.end + _WINDOW)]
    if (rule.not_before and _regex(rule.not_before).search(before)) or (
        rule.not_after and _regex(rule.not_after).search(after)
    ):
        return False
    if kind in rule.trusted or not (rule.before or rule.after):
        return True
    return bool(
        (rule.before and _regex(rule.before).search(before)) or (rule.after and _regex(rule.after).search(after))
    )


def _fire(
    rule: Rule, draft: Draft, matched: list[list[Entry]], span: Span | None, groups: dict[str, str], row_code: str = ""
) -> None:
    triggers = [entries[0] for entries in matched]
    if rule.near and matched and span is not None:
        triggers[0] = _nearest(draft, matched[0], span)
    parts = [entry for entries in matched for entry in entries] if rule.family == "combination" else triggers
    evidence = {span for entry in parts for span in entry.evidence}
    if span is not None:
        evidence.add(span)
    probability = min([entry.probability for entry in triggers] or [RULE_PROBABILITY])
    added = []
    for template in (row_code,) if row_code else _codes_to_add(rule, draft, groups):
        code = _filled(template, draft, triggers, groups)
        if draft.add(code, probability, evidence, rule.id):
            added.append(code)
        elif (known := draft.entries.get(code)) is not None:
            draft.entries[code] = replace(known, evidence=tuple(sorted({*known.evidence, *evidence})))
            added.append(code)
    wants_code = bool(rule.add or rule.rows or rule.substances or rule.choose or rule.ranges)
    if wants_code and not added:
        return
    for pattern in rule.drop:
        pattern = _filled(pattern, draft, triggers, groups)
        for code in [code for code in draft.entries if code not in added and matches(pattern, code)]:
            if rule.family != "integral" or not _has_own_reason(draft, draft.entries[code], triggers):
                _inherit(draft, added, draft.entries[code], matched)
                draft.drop(code, rule.message, rule.id)
    if rule.query and not any(query.rule == rule.id for query in draft.queries):
        draft.queries.append(Query(rule.query, rule.id, tuple(sorted(evidence))))
        draft.fired.add(rule.id)


def _has_own_reason(draft: Draft, entry: Entry, causes: list[Entry]) -> bool:
    """Whether a code was added by a rule, or is a disease that a visit names as a problem apart from its causes."""
    if entry.rule in _ids():
        return True
    if draft.encounter.is_inpatient or matches(SYMPTOMS, entry.code):
        return False
    titles = {draft.assessment.title(span) for span in entry.evidence} - {None}
    return bool(titles) and titles.isdisjoint(draft.assessment.title(span) for it in causes for span in it.evidence)


def _inherit(draft: Draft, added: list[str], dropped: Entry, matched: list[list[Entry]]) -> None:
    """Gives the evidence of a matched code that a rule replaces to the code in its place."""
    if added and any(dropped is entry for entries in matched for entry in entries):
        known = draft.entries[added[0]]
        draft.entries[added[0]] = replace(known, evidence=tuple(sorted({*known.evidence, *dropped.evidence})))


def _nearest(draft: Draft, entries: list[Entry], span: Span) -> Entry:
    """The first entry with evidence in the sentence of a span, and with that evidence only."""
    sentence = draft.sentence(span.start)
    for entry in entries:
        if inside := tuple(it for it in entry.evidence if sentence.start <= it.start < sentence.end):
            return replace(entry, evidence=inside)
    return entries[0]


def _filled(template: str, draft: Draft, triggers: list[Entry], groups: dict[str, str]) -> str:
    """A code or pattern with the fields in braces filled from the matched codes and groups."""
    if "{" not in template:
        return template
    bare = {f"c{place}": entry.code.replace(".", "").ljust(7, "-") for place, entry in enumerate(triggers)}
    rest = {f"r{place}": entry.code[4:] for place, entry in enumerate(triggers)}
    said = {"t0": draft.trimester or "0", "t9": draft.trimester or "9", "loc": draft.loss_of_consciousness or "A"}
    return template.format(*(entry.code[:3] for entry in triggers), **bare, **rest, **said, **groups)


def _codes_to_add(rule: Rule, draft: Draft, groups: dict[str, str]) -> Iterator[str]:
    yield from rule.add
    for pattern, code in rule.choose:
        if not pattern or draft.matching(pattern):
            yield code
            break
    if rule.ranges and "value" in groups:
        value = float(groups["value"].replace(",", ""))
        yield from (code for low, high, code in rule.ranges if low <= value <= high)
