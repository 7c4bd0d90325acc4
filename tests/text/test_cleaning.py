import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.core import ConfigError, Span
from nosology.text import BENCHMARK, MULTILINGUAL, RULES, CleanedText, Edit, clean
from nosology.text.cleaning import whole_words
from tests.timing import assert_linear_time

CASES = [
    ("nul", "a\x00b\x07\ufeffc\td\n", "abc\td\n"),
    ("crlf", "a\r\nb\rc\nd", "a\nb\nc\nd"),
    ("unicode", "“no” pt’s 3–4 • ≥5… ﬁne e\u0301", '"no" pt\'s 3-4 - >=5... fine é'),
    ("fold_accents", "áÉñ ü n\u0303 ß", "aEn u n ß"),
    ("deid", "Name: ___ by [**First Name8 (NamePattern2) 12**], a_b __ [**", "Name:   by  , a_b __ [**"),
    ("whitespace", "a \t b  \n c\n\n \n d", "a b\nc\n\nd"),
    ("strip", " \n a b\t", "a b"),
    ("strip", " \n ", ""),
    ("lower", "HIV İ Straße ÑÁ", "hiv i straße ñá"),
    ("alphanumeric", "HbA1c: 7.5% (é)", "HbA1c 7 5 "),
    ("words", "Niño_de 3,5 años; tosio\u0301", "Niño de 3 5 años tosio\u0301"),
    ("numbers", "12 h1n1 7 5 t4 3", "h1n1 t4 "),
]


@pytest.mark.parametrize("rule, text, expected", CASES)
def test_rule(rule, text, expected):
    assert clean(text, [rule]).text == expected


def plain(text: str) -> str:
    """The letters of a text whatever their case and accents."""
    letters = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in letters if not unicodedata.combining(c))


@given(st.text(), st.lists(st.sampled_from(sorted(RULES)), max_size=5))
@settings(max_examples=200)
def test_each_character_comes_from_its_original_span(text, rules):
    cleaned = clean(text, rules)
    spans = [cleaned.original(i, i + 1) for i in range(len(cleaned.text))]
    for character, span in zip(cleaned.text, spans, strict=True):
        assert 0 <= span.start < span.end <= len(text)
        if character.isalnum():
            assert plain(character) in plain(text[slice(*span)])
    assert all(a.start <= b.start and a.end <= b.end for a, b in pairwise(spans))


@pytest.mark.parametrize("rule", sorted(RULES.keys() - {"deid", "unicode"}))
@given(st.text())
def test_rules_are_idempotent(rule, text):
    once = clean(text, [rule]).text
    assert clean(once, [rule]).text == once


@given(st.text() | st.from_regex(r"[A-Za-z0-9 .,é_\n-]*", fullmatch=True))
def test_benchmark_equals_its_definition(text):
    expected = re.sub(r"[^a-z0-9]+", " ", text.replace("İ", "i").lower())
    expected = " ".join(word for word in expected.split() if not word.isdigit())
    assert clean(text, BENCHMARK).text == expected


def test_multilingual_keeps_accents():
    assert clean("Niño\u00a0de 3 AÑOS — ___ con “tos”", MULTILINGUAL).text == "niño de años con tos"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", [" ", "_", ".", "[**", "*", "1", "1 ", "\n ", "\r", "\x00", "\u0301", "é", "a _"])
@pytest.mark.parametrize("rule", RULES)
def test_time_is_linear(rule, piece):
    assert_linear_time(lambda count: clean(piece * count, [rule]), 40_000)


@pytest.mark.parametrize("power, linear", [(1, True), (2, False)])
def test_assert_linear_time_fails_for_quadratic_time(monkeypatch, power, linear):
    seconds = 0.0

    def work(count):
        nonlocal seconds
        seconds += (count / 1000) ** power

    monkeypatch.setattr("tests.timing.time.process_time", lambda: seconds)
    if linear:
        assert_linear_time(work, 8_000)
    else:
        with pytest.raises(AssertionError):
            assert_linear_time(work, 8_000)


def test_an_unknown_rule_raises_an_error_without_note_text():
    with pytest.raises(ConfigError, match=r"one of nul, crlf, .*; got 'shout'"):
        clean("secret", ["shout"])


def test_a_ligature_with_a_combining_accent_is_one_edit():
    cleaned = clean("ﬁ\u0301n ʼ\u0301", ["unicode"])
    assert cleaned.text == "fi\u0301n '\u0301".replace("i\u0301", "í")
    assert cleaned.original(0, 2) == (0, 2)


@st.composite
def text_and_edits(draw):
    text = draw(st.text(max_size=30))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    spans = [(a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
    return text, [Edit(a, b, draw(st.text(max_size=4))) for a, b in spans]


@given(text_and_edits())
def test_edits_replace_text_and_map_offsets(case):
    text, edits = case
    expected, sources, done = "", [], 0
    for start, end, replacement in [*edits, (len(text), len(text), "")]:
        expected += text[done:start] + replacement
        sources += [Span(i, i + 1) for i in range(done, start)]
        if len(replacement) == end - start:
            sources += [Span(i, i + 1) for i in range(start, end)]
        else:
            sources += [Span(start, end)] * len(replacement)
        done = end
    cleaned = CleanedText.from_original(text).edited(edits)
    assert cleaned.text == expected
    assert [cleaned.original(i, i + 1) for i in range(len(expected))] == sources


def test_original_returns_the_span_before_cleaning():
    note = "Pt  Dx: Café-au-lait\r\nspots [**Hospital1 18**] x"
    cleaned = clean(note, ["crlf", "deid", "fold_accents", "lower", "whitespace"])
    assert cleaned.text == "pt dx: cafe-au-lait\nspots x"
    where = cleaned.text.index("cafe-au-lait\nspots")
    assert note[slice(*cleaned.original(where, where + 18))] == "Café-au-lait\r\nspots"
    assert cleaned.original(0, len(cleaned.text)) == Span(0, len(note))


def test_original_of_an_empty_span_is_empty():
    cleaned = clean("  a ", ["strip"])
    assert cleaned.original(0, 0) == Span(2, 2)
    assert cleaned.original(1, 1) == Span(4, 4)


@pytest.mark.parametrize("edits", [[(2, 3, ""), (0, 1, "")], [(0, 2, "x"), (1, 3, "y")], [(1, 1, "x")], [(2, 9, "")]])
def test_edits_out_of_order_overlapping_empty_or_outside_raise(edits):
    with pytest.raises(ValueError, match="in order"):
        CleanedText.from_original("abcd").edited([Edit(*edit) for edit in edits])


@given(st.text(alphabet="né\u0301\u00ad\u2060\ufeff\u200b. "))
def test_whole_words_are_composed_and_keep_their_place(text):
    cleaned = whole_words(text)
    visible = text.translate(dict.fromkeys(map(ord, "\u00ad\u2060\ufeff")))
    assert unicodedata.normalize("NFC", cleaned.text) == unicodedata.normalize("NFC", visible)
    assert not {"\u00ad", "\u2060", "\ufeff"} & set(cleaned.text) and "n\u0301" not in cleaned.text
    assert all(text[i:j][0] not in "\u00ad\u2060\ufeff" for i, j in zip(cleaned.starts, cleaned.ends))
