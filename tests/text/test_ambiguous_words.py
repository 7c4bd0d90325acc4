import pytest

from nosology.text.ambiguous_words import is_supported
from nosology.text.phrases import TokenizedNote
from nosology.text.tokens import words_of


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("Sat 97% on RA.", "ra", False),
        ("Seropositive RA on methotrexate, sat 97% on RA.", "ra", True),
        ("Known MS.", "ms", True),
        ("Pain controlled on MS Contin.", "ms", False),
        ("PE: lungs clear. CT chest normal.", "pe", False),
        ("CTA shows PE.", "pe", True),
        ("Follow up with PCP.", "pcp", False),
        ("GBS positive, penicillin given.", "gbs", False),
        ("Bipolar TURP.", "bipolar", False),
        ("Bipolar disorder.", "bipolar", True),
        ("RR 30, accessory muscle use.", "accessory muscle", False),
        ("Gout flare.", "gout", True),
        ("SLE: lids normal. Known SLE in the mother.", "sle", False),
        ("No CVA tenderness.", "cva", False),
        ("SBP 90s on arrival.", "sbp", False),
        ("Cirrhosis, SBP on paracentesis.", "sbp", True),
    ],
)
def test_ambiguous_words_need_support(text, words, expected):
    note = TokenizedNote.from_text(text)
    start = text.lower().index(words)
    places = tuple(at for at, first in enumerate(note.starts) if start <= first < start + len(words))
    assert is_supported(text, note, places, frozenset(words_of(text))) == expected
