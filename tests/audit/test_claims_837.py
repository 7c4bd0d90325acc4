"""837 claims: what is read equals what was written and what two other parsers read; damaged files show nothing."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import warnings
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nosology.audit.billed_codes import REVERSED
from nosology.audit.claims_837 import is_837, read_claims_837
from nosology.audit.finding import BilledCode
from nosology.claims.encounter import Encounter
from nosology.core import Code, ConfigError, DataError
from tests.audit.interchange import WrittenClaim, write_837

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its import uses an older function of Python
    from hccinfhir.extractor_837 import extract_sld_837

DIAGNOSES = ("I5032", "N184", "Z7901", "J189", "I130", "E119", "M109", "S72001A", "W19XXXA", "A419", "I10", "U071")
PROCEDURES = ("02HV33Z", "5A1D70Z", "0SR9019", "3E0G76Z")
CLAIM = WrittenClaim("A1", [("I5032", "Y"), ("N184", "N"), ("Z7901", "")], ["02HV33Z", "5A1D70Z"])

# linuxforhealth-x12 needs pydantic 1, which pydantic 2 has as pydantic.v1: in a process of its own.
SECOND_PARSER = """
import json, sys
import pydantic.v1
sys.modules["pydantic"] = pydantic.v1
from linuxforhealth.x12.io import X12ModelReader
with X12ModelReader(sys.argv[1]) as reader:
    for model in reader.models():
        for payer in model.loop_2000a:
            for subscriber in payer.loop_2000b:
                for claim in subscriber.loop_2300:
                    values = [value for segment in claim.hi_segment for _, value in segment if isinstance(value, list)]
                    print(json.dumps([claim.clm_segment.patient_control_number, values]))
"""


def spelled(code):
    return code if len(code) <= 3 else f"{code[:3]}.{code[3:]}"


def expected(claim, has_poa=True):
    """The codes of a written claim as they must be read."""
    diagnoses = [BilledCode(Code("icd10cm", spelled(code)), poa if has_poa else "") for code, poa in claim.diagnoses]
    return (*diagnoses, *(BilledCode(Code("icd10pcs", code)) for code in (claim.procedures if has_poa else ())))


def written(path, content):
    path.write_text(content, encoding="ascii")
    return path


claims_to_write = st.builds(
    WrittenClaim,
    account=st.text("ABCDEFGHIJ0123456789-", min_size=1, max_size=20),
    diagnoses=st.lists(
        st.tuples(st.sampled_from(DIAGNOSES), st.sampled_from(["", "Y", "N", "U", "W"])),
        min_size=1,
        max_size=12,
        unique_by=lambda pair: pair[0],
    ),
    procedures=st.lists(st.sampled_from(PROCEDURES), unique=True),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(claims_to_write, min_size=1, max_size=5, unique_by=lambda claim: claim.account),
    st.sampled_from(["institutional", "professional"]),
    st.sampled_from(["~", "~\n", "~\r\n", "|"]),
    st.sampled_from([":", ">"]),
)
def test_codes_order_and_indicators_are_those_written(tmp_path_factory, claims, kind, end, part):
    content = write_837(claims, kind, end, part)
    path = written(tmp_path_factory.getbasetemp() / "claims.837", content)
    bills = read_claims_837(path)
    assert not any(bills.counts.values()) and list(bills.by_id) == [claim.account for claim in claims]
    for claim in claims:
        assert bills.by_id[claim.account].codes == expected(claim, kind == "institutional")


def test_two_other_parsers_read_the_same(tmp_path):
    drawn = random.Random(5)
    claims = []
    for number in range(40):
        codes = drawn.sample(DIAGNOSES, drawn.randint(1, 12))
        pairs = [(code, drawn.choice(["", "Y", "N", "U", "W"])) for code in codes]
        claims.append(WrittenClaim(f"A{number}", pairs, drawn.sample(PROCEDURES, drawn.randint(0, 4))))
    path = written(tmp_path / "claims.x12", write_837(claims))
    ours = read_claims_837(path).by_id
    run = subprocess.run([sys.executable, "-c", SECOND_PARSER, str(path)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-500:]
    theirs = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(theirs) == len(ours) == 40
    for account, values in theirs:
        read = [(it[0], it[1], it[8] if len(it) > 8 else "") for it in values if it[0] != "ABJ"]
        read.sort(key=lambda item: ("ABK", "ABF", "BBR", "BBQ").index(item[0]))
        assert [(it.code.code.replace(".", ""), it.poa) for it in ours[account].codes] == [it[1:] for it in read]
    third = {line.claim_id: set(line.claim_diagnosis_codes) for line in extract_sld_837(path.read_text("ascii"))}
    own = {
        account: {it.code.code.replace(".", "") for it in bill.codes if it.code.system == "icd10cm"}
        for account, bill in ours.items()
    }
    assert {account: codes - {"R0600"} for account, codes in third.items()} == own


def test_files_of_other_senders_are_read_as_by_another_parser(tmp_path):
    count, refused = 0, []
    for source in sorted(files("hccinfhir.sample_files").iterdir(), key=str):
        if not source.name.startswith("sample_837_"):
            continue
        content = source.read_text(encoding="utf-8")
        theirs: dict[str, set[str]] = {}
        for line in extract_sld_837(content):
            theirs.setdefault(line.claim_id, set()).update(line.claim_diagnosis_codes)
        path = tmp_path / source.name
        path.write_text(content, encoding="utf-8")
        try:
            bills = read_claims_837(path).by_id
        except DataError as error:
            assert "trailer" in str(error)
            refused.append(source.name)
            continue
        for claim_id, codes in theirs.items():
            count += 1
            assert {it.code.code.replace(".", "") for it in bills[claim_id].codes} == codes, source.name
    assert (count, refused) == (15, ["sample_837_11.txt", "sample_837_12.txt"])  # these have wrong counts of segments


def test_fields_of_the_encounter_come_from_the_claim(tmp_path):
    path = written(tmp_path / "claims.edi", write_837([CLAIM]))
    stay = {"sex": "F", "age": 70, "setting": "inpatient", "date": "2025-11-08", "disposition": "03"}
    assert read_claims_837(path).by_id["A1"].stated == {
        **stay,
        "admitted": "2025-11-03",
        "discharged": "2025-11-08",
    }
    path = written(tmp_path / "visit.edi", write_837([CLAIM], "professional"))
    visit = {"sex": "F", "age": 70, "setting": "outpatient", "date": "2025-11-08"}
    assert read_claims_837(path).by_id["A1"].stated == visit
    packed = tmp_path / "claims.837.gz"
    packed.write_bytes(gzip.compress(write_837([CLAIM]).encode()))
    assert list(read_claims_837(packed, "record").by_id) == ["MRN1"]


def claim(account, code, frequency="1", **more):
    return WrittenClaim(account, [(code, "Y")], frequency=frequency, **more)


def codes_by_id(bills):
    return {name: [it.code.code for it in bill.codes] for name, bill in bills.by_id.items()}


def test_replaced_voided_and_further_claims(tmp_path):
    claims = [claim("A", "I10", "1"), claim("B", "J189", "1"), claim("C", "M109", "1")]
    claims += [claim("A", "I130", "7"), claim("B", "J189", "8"), claim("C", "E119", "1")]
    bills = read_claims_837(written(tmp_path / "claims.837", write_837(claims)))
    assert codes_by_id(bills) == {"A": ["I13.0"], "C": ["M10.9"]}
    further = {"further_bills_of_an_encounter": 1, "replaced_claims": 1, "voided_claims": 1}
    assert bills.counts == further


def test_a_claim_replaces_or_voids_only_claims_of_its_own_number(tmp_path):
    claims = [claim("A", "I10", record="R1"), claim("B", "J189", record="R1"), claim("C", "M109", record="R2")]
    claims += [claim("B", "E119", "7", record="R1"), claim("B", "E1165", "7", record="R1")]
    claims += [claim("D", "M109", "8", record="R2")]  # of a claim that is not in the file
    bills = read_claims_837(written(tmp_path / "claims.837", write_837(claims)), "record")
    assert codes_by_id(bills) == {"R1": ["I10"], "R2": ["M10.9"]}  # the first claim of the record that counts
    assert bills.counts == {"further_bills_of_an_encounter": 1, "replaced_claims": 2, "voided_claims": 0}
    claims += [claim("A", "I10", "8", record="R1")]
    bills = read_claims_837(written(tmp_path / "voided.837", write_837(claims)), "record")
    assert codes_by_id(bills) == {"R1": ["E11.65"], "R2": ["M10.9"]} and bills.counts["voided_claims"] == 1


def test_of_several_transactions_the_newest_replaces(tmp_path):
    newest = write_837([claim("A", "I130", "7")]).replace("*20251203*0900*CH", "*20251204*0900*CH")
    newest = newest.replace("000000001", "000000002")  # of the interchange
    path = written(tmp_path / "claims.837", newest + write_837([claim("A", "I10", "7")]))
    assert codes_by_id(read_claims_837(path)) == {"A": ["I13.0"]}


def test_an_order_mark_or_blanks_before_the_first_segment_do_not_matter(tmp_path):
    content = write_837([CLAIM])
    for number, raw in enumerate(
        [b"\xef\xbb\xbf" + content.encode(), b" \r\n\t" + content.encode(), content.encode("utf-16")]
    ):
        path = tmp_path / f"{number}.837"
        path.write_bytes(raw)
        assert is_837(path) and read_claims_837(path).by_id["A1"].codes == expected(CLAIM)


@pytest.mark.parametrize(
    ("days", "message"),
    [
        ({"admitted": "20251109"}, "discharged must not be before admitted"),
        ({"admitted": "20251331"}, "admitted must be a day"),
        ({"stay": "20251103-20251199"}, "discharged must be a day"),
        ({"stay": "19500103-19500108", "admitted": "19500103"}, "age must be between 0 and 130"),
    ],
)
def test_impossible_days_are_refused_with_the_encounter(tmp_path, days, message):
    path = written(tmp_path / "claims.837", write_837([claim("A1", "I10", **days)]))
    with pytest.raises(ConfigError, match=message):
        Encounter.of("", read_claims_837(path).by_id["A1"].stated)


@pytest.mark.parametrize("admitted", ["", "20251103"])
def test_a_period_that_ends_before_it_starts_refuses_the_bill(tmp_path, admitted):
    path = written(
        tmp_path / "claims.837", write_837([claim("A1", "I10", stay="20251108-20251103", admitted=admitted)])
    )
    assert read_claims_837(path).by_id["A1"].refused == REVERSED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "the file may be incomplete"),
        (lambda text: text[:60], "segment 1 is not valid X12"),
        (lambda text: text.replace("SE*", "SE*9"), "the right count"),
        (lambda text: text.replace("ABK:I5032", "ABK:SECRETNAME"), "claim 1: HI01 has no valid code of icd10cm"),
        (lambda text: text.replace("ABK:I5032", "BK:4280"), "claim 1: HI01 has a code of icd9cm"),
        (lambda text: text.replace(":::::::Y", ":::::::SECRETNAME"), "indicator of HI01 must be empty or one of"),
        (lambda text: text.replace("CLM*A1", "CLM*"), "claim 1: CLM01 is missing"),
        (lambda text: text.replace("ST*837", "ST*835"), "must be institutional or professional claims"),
        (lambda text: text.replace("CLM*A1", "XXX*A1"), "no claim (CLM)"),
        (lambda text: text.replace("ST*837", "SE*837").replace("GS*", "GE*"), "segment 2 is not valid X12"),
    ],
)
def test_damaged_files_are_refused_in_a_sentence_without_their_content(tmp_path, change, message):
    content = write_837([CLAIM])
    assert change(content) != content
    path = written(tmp_path / "claims.837", change(content))
    with pytest.raises(DataError) as caught:
        read_claims_837(path)
    assert message in str(caught.value) and "SECRETNAME" not in str(caught.value) and "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1200), st.text("*:~^ASEHIL0\n", max_size=6))
def test_any_damage_gives_bills_or_a_sentence(tmp_path_factory, at, garbage):
    content = write_837([CLAIM])
    path = written(tmp_path_factory.getbasetemp() / "claims.837", content[:at] + garbage + content[at + 3 :])
    try:
        read_claims_837(path)
    except DataError as error:
        assert "SECRETNAME" not in str(error)
