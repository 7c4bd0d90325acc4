"""Encounters with several documents: import, late documents, corrections, withdrawals, data of the encounter."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import datetime

import pytest
from sqlalchemy import func, select

from nosology.core import ConflictError, DataError, EvidenceSpan, Note, ReviewError, Span, Suggestion
from nosology.text.borders import BORDER
from nosology.workbench import encounter_data
from nosology.workbench.accounts import User
from nosology.workbench.cases import decision_history, load_case, record_decision
from nosology.workbench.coding import CodedNote, WaitingNote, save_codings
from nosology.workbench.database import insert_row, read_transaction, write_transaction
from nosology.workbench.document_import import DocumentImport
from nosology.workbench.documents import current_documents, guess_kind
from nosology.workbench.encounter_data import changed_fields, complete_encounter
from nosology.workbench.encounter_services import change_encounter, find_document, import_batch, withdraw
from nosology.workbench.export import _current_text, to_fhir, to_json
from nosology.workbench.review import NotFound
from nosology.workbench.store_tables import batches, coders, documents, notes
from nosology.workbench.uploads import normalize_encounter, read_upload

HP = "HISTORY AND PHYSICAL\nCongestive heart failure."
CT = "CT CHEST\nImpression: pneumonia."
DC = "DISCHARGE SUMMARY\nType 2 diabetes and heart failure."


def document(name: str, text: str, encounter: str | None = "E1", patient: str | None = "p1", **columns) -> Note:
    extra = columns | ({"encounter": encounter} if encounter else {})
    return normalize_encounter(Note(name, text, patient=patient, extra=extra))


@pytest.fixture
def user(people):
    return User(people["rita"], "rita", "reviewer", False, None)


@pytest.fixture
def stay(engine, user):
    """The id of an encounter with two documents."""
    add(engine, user, document("d1", HP, document_date="2025-11-01"), document("d2", CT))
    return 1


def add(engine, user, *incoming: Note):
    return import_batch(engine, user, "tests", incoming, "here")


def case_of(engine, note_id=1):
    with read_transaction(engine) as connection:
        return load_case(connection, note_id)


def coded(engine, *note_ids):
    with write_transaction(engine) as connection:
        connection.execute(notes.update().where(notes.c.id.in_(note_ids)).values(coding="done"))


def decide(engine, user, note_id, action, **details):
    version = case_of(engine, note_id).review.version
    return record_decision(engine, note_id, action, details, user=user.id, version=version)


def test_documents_of_an_encounter_become_one_note(engine, user):
    incoming = [document("d1", HP), document("x", DC, None), document("d2", CT, patient=None), document("d3", DC, "E2")]
    counts = add(engine, user, *incoming)
    assert (counts.encounters, counts.added, counts.known, counts.corrected) == (3, 4, 0, 0)
    case = case_of(engine)
    assert (case.note["ref"], case.note["patient"]) == ("E1", "p1")
    assert case.note["text"] == f"{HP}{BORDER}{CT}"
    assert [(it.ref, it.kind, case.note["text"][it.start : it.end]) for it in case.documents] == [
        ("d1", "h&p", HP),
        ("d2", "radiology", CT),
    ]
    assert [case_of(engine, i).note["ref"] for i in (2, 3)] == ["x", "E2"]
    with read_transaction(engine) as connection:
        assert connection.execute(select(batches.c.total, batches.c.documents)).one() == (3, 4)


def test_the_same_import_twice_changes_nothing(engine, user, stay):
    counts = add(engine, user, document("d1", HP, document_date="2025-11-01"), document("d2", CT))
    assert (counts.encounters, counts.added, counts.known, counts.corrected) == (0, 0, 2, 0)
    assert case_of(engine).review.version == 0


def test_documents_of_two_patients_are_refused(engine, user, stay):
    for incoming in ([document("a", HP, "E7", "p1"), document("b", HP, "E7", "p2")], [document("c", HP, "E1", "p2")]):
        with pytest.raises(DataError, match="patient"):
            add(engine, user, *incoming)
    with read_transaction(engine) as connection:
        assert connection.scalar(select(func.count()).select_from(documents)) == 2


def test_a_late_document_opens_a_finished_encounter_again(engine, user, stay):
    coded(engine, stay)
    decide(engine, user, stay, "add", code="icd10cm:I50.9", start=21, end=45)
    decide(engine, user, stay, "finish")
    counts = add(engine, user, document("d3", DC, discharged="2025-11-05", disposition=3))
    assert (counts.encounters, counts.added) == (0, 1)
    case = case_of(engine)
    assert (case.review.status, case.review.assignee, case.note["coding"]) == ("open", user.id, "waiting")
    assert [item.code.code for item in case.review.chosen] == ["I50.9"]
    assert case.review.chosen[0].evidence == (Span(21, 45),)
    assert case.note["text"] == BORDER.join([HP, CT, DC])
    assert (case.note["encounter"]["date"], case.note["encounter"]["disposition"]) == ("2025-11-05", "03")
    with read_transaction(engine) as connection:
        row = connection.execute(select(notes.c.status, notes.c.finished)).one()
    assert row == ("open", None)


def test_a_corrected_text_replaces_the_old_one(engine, user, stay):
    decide(engine, user, stay, "add", code="icd10cm:I50.9", start=21, end=45)
    decide(engine, user, stay, "add", code="icd10cm:J18.9", start=len(HP) + 3, end=len(HP) + 5)
    counts = add(engine, user, document("d1", HP + " On furosemide."))
    assert (counts.added, counts.corrected) == (0, 1)
    case = case_of(engine)
    blank = "\n".join(" " * len(line) for line in HP.split("\n"))
    assert case.note["text"] == BORDER.join([blank, CT, HP + " On furosemide."])
    assert [(it.ref, it.version, it.state) for it in case.documents] == [
        ("d1", 1, "corrected"),
        ("d2", 1, "current"),
        ("d1", 2, "current"),
    ]
    assert case.documents[2].kind == "h&p"
    assert [len(item.evidence) for item in case.review.chosen] == [0, 1]  # that of the old text is gone
    assert add(engine, user, document("d1", HP + " On furosemide.")).known == 1  # sent again, as after a lost answer
    assert add(engine, user, document("d1", HP)).corrected == 1  # and back to the first text
    assert [it.state for it in case_of(engine).documents] == ["corrected", "current", "corrected", "current"]
    assert find_document(engine, "d1")[1].version == 3


def test_a_correction_and_a_repeat_in_one_import(engine, user):
    counts = add(engine, user, document("d1", HP), document("d1", HP), document("d1", DC))
    assert (counts.encounters, counts.added, counts.known, counts.corrected) == (1, 1, 1, 1)
    assert [it.state for it in case_of(engine).documents] == ["corrected", "current"]


def test_withdrawal(engine, user, stay):
    coded(engine, stay)
    decide(engine, user, stay, "add", code="icd10cm:J18.9", start=len(HP) + 3, end=len(HP) + 5)
    decide(engine, user, stay, "finish", override="x")
    case = withdraw(engine, user, 2, "here")
    assert (case.review.status, case.note["coding"], case.review.chosen[0].evidence) == ("open", "waiting", ())
    assert case.note["text"].rstrip() == HP
    assert [it.state for it in case.documents] == ["current", "withdrawn"]
    with pytest.raises(ReviewError, match="already"):
        withdraw(engine, user, 2, "here")
    with pytest.raises(NotFound):
        withdraw(engine, user, 99, "here")
    assert add(engine, user, document("d2", CT)).known == 1  # an old import that is sent again does not bring it back
    assert case_of(engine).documents[1].state == "withdrawn"
    assert add(engine, user, document("d2", CT + " Left.")).corrected == 1
    assert [it.state for it in case_of(engine).documents] == ["current", "withdrawn", "current"]


def test_a_killed_import_leaves_nothing(engine, user, stay):
    with pytest.raises(RuntimeError), write_transaction(engine) as connection:
        DocumentImport(connection, user.id, None).run([document("d1", DC), document("d3", DC)])
        raise RuntimeError
    assert [it.ref for it in case_of(engine).documents] == ["d1", "d2"]
    assert add(engine, user, document("d1", DC), document("d3", DC)).corrected == 1


def test_a_result_for_other_documents_is_not_stored(engine, user, stay):
    with read_transaction(engine) as connection:
        before = current_documents(connection, [stay])[stay]
    add(engine, user, document("d3", DC))
    with write_transaction(engine) as connection:
        row = {"digest": "d", "name": "n", "kind": "k", "about": {}, "created": 0.0}
        coder = insert_row(connection, coders, row)
    save_codings(engine, coder, [stay], [CodedNote((), {})], {stay: [it.id for it in before]})
    assert case_of(engine).note["coding"] == "waiting"
    save_codings(engine, coder, [stay], [CodedNote((), {})], {stay: [1, 2, 3]})
    assert case_of(engine).note["coding"] == "done"


def test_results_of_documents_are_merged(engine, user, stay):
    with read_transaction(engine) as connection:
        parts = current_documents(connection, [stay])[stay]
    waiting = WaitingNote(stay, {}, parts)

    def result(*items):
        suggestions = [Suggestion("icd10cm", code, "", p, p > 0.5, (EvidenceSpan(0, 2, "", 1.0),)) for code, p in items]
        return CodedNote(tuple(suggestions), {})

    merged = waiting.merge([result(("I50.9", 0.4), ("E11.9", 0.3)), result(("I50.9", 0.8))]).suggestions
    assert [(it.code, it.probability, it.accepted) for it in merged] == [("I50.9", 0.8, True), ("E11.9", 0.3, False)]
    assert [(it.start, it.end) for it in merged[0].evidence] == [(0, 2), (len(HP) + 3, len(HP) + 5)]
    single = WaitingNote(stay, {}, parts[:1])
    alone = result(("I50.9", 0.4))
    assert single.merge([alone]) is alone
    assert WaitingNote(stay, {}, []).merge([]).suggestions == ()


def test_the_history_of_an_encounter_has_its_documents(engine, user, stay):
    add(engine, user, document("d3", DC, sex="M"))
    withdraw(engine, user, 1, "here")
    with read_transaction(engine) as connection:
        rows = decision_history(connection, stay)
    assert [(row["action"], row["user"], row["details"]["ref"]) for row in rows] == [
        ("document", "rita", "d3"),
        ("withdraw", "rita", "d1"),
    ]
    assert rows[0]["details"]["changes"] == {"sex": [None, "M"]}


def test_data_of_an_encounter(engine, user, stay):
    change_encounter(engine, user, stay, {"born": "1950-11-02", "admitted": "2025-11-01", "sex": "F"}, "here")
    case = change_encounter(engine, user, stay, {"disposition": "20", "setting": "inpatient"}, "here")
    about = case.note["encounter"]
    assert (about["age"], about["date"], about["kind"], about["died"]) == (74, "2025-11-01", "inpatient", True)
    add(engine, user, document("d3", DC, sex="M", payer="Medicare"))  # what people have set stays
    about = case_of(engine).note["encounter"]
    assert (about["sex"], about["payer"]) == ("F", "Medicare")
    case = change_encounter(engine, user, stay, {"sex": None}, "here")
    assert "sex" not in case.note["encounter"]
    with read_transaction(engine) as connection:
        stored = connection.scalar(select(notes.c.encounter))
    assert "sex" not in stored and stored["born"] == "1950-11-02"


@pytest.mark.parametrize(
    "wanted, words",
    [
        ({"sex": "X"}, "sex must be F or M"),
        ({"born": "2999-01-01"}, "in the future"),
        ({"born": "1850-01-01"}, "130 years"),
        ({"admitted": "2025-11-03", "discharged": "2025-11-01"}, "the discharge is before the admission"),
        ({"admitted": "2025-11-03", "born": "2025-11-04"}, "the admission is before the birth date"),
        ({"admitted": "2025-13-03"}, "must be a day"),
        ({"disposition": "99"}, "UB-04"),
        ({"setting": "ward"}, "setting must be"),
        ({"age": 200}, "0 to 130"),
        ({"age": True}, "0 to 130"),
        ({"payer": "x" * 101}, "at most 100"),
        ({"name": "x"}, "got something else"),
        ("x", "got something else"),
        ({"sex": "F"}, "already"),
    ],
)
def test_wrong_data_of_an_encounter_are_refused(wanted, words):
    with pytest.raises(ReviewError, match=words):
        changed_fields(complete_encounter({"sex": "F"}), wanted)


def test_a_birth_date_of_today_counts_in_every_time_zone(monkeypatch):
    class Evening(datetime):
        @classmethod
        def now(cls, zone=None):
            return cls(2026, 3, 1, 15, tzinfo=zone)  # when it is March 2 in Auckland

    monkeypatch.setattr(encounter_data, "datetime", Evening)
    assert changed_fields({}, {"born": "2026-03-02"}) == {"born": "2026-03-02"}
    with pytest.raises(ReviewError, match="in the future"):
        changed_fields({}, {"born": "2026-03-03"})


def test_exports_name_the_document_and_leave_withdrawn_text_out(engine, user, stay):
    decide(engine, user, stay, "add", code="icd10cm:J18.9", start=len(HP) + 3, end=len(HP) + 5)
    data = {"sex": "F", "born": "1950-11-02", "admitted": "2025-11-01", "discharged": "2025-11-03"}
    change_encounter(engine, user, stay, data | {"disposition": "03", "setting": "emergency"}, "here")
    case = withdraw(engine, user, 1, "here")
    (code,) = to_json(case, [])["codes"]
    assert code["evidence"] == [{"start": len(HP) + 3, "end": len(HP) + 5, "document": "d2"}]
    text, moved = _current_text(case)
    assert text == CT and moved(len(HP) + 3) == len(HP) + 3 and moved(0) is None
    resources = {entry["resource"]["resourceType"]: entry["resource"] for entry in to_fhir(case, [])["entry"]}
    assert resources["Patient"]["birthDate"] == "1950-11-02" and resources["Patient"]["gender"] == "female"
    encounter = resources["Encounter"]
    assert encounter["class"]["code"] == "EMER"
    assert encounter["period"] == {"start": "2025-11-01", "end": "2025-11-03"}
    left = encounter["hospitalization"]["dischargeDisposition"]["coding"]
    assert [it["code"] for it in left] == ["03", "snf"]


def test_fhir_documents_of_an_encounter(engine, user):
    import base64
    import json

    def reference(name, text, code, **more):
        attachment = {"contentType": "text/plain", "data": base64.b64encode(text.encode()).decode()}
        return {
            "resourceType": "DocumentReference",
            "id": name,
            "status": "current",
            "type": {"coding": [{"system": "http://loinc.org", "code": code}]},
            "subject": {"reference": "Patient/p1"},
            "date": "2025-11-02T10:00:00Z",
            "content": [{"attachment": attachment}],
            "context": {"encounter": [{"reference": "Encounter/E1"}]},
            **more,
        }

    patient = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1950-11-02"}
    encounter = {
        "resourceType": "Encounter",
        "id": "E1",
        "status": "finished",
        "class": {"code": "IMP"},
        "period": {"start": "2025-11-01", "end": "2025-11-03"},
        "hospitalization": {"dischargeDisposition": {"coding": [{"code": "snf"}]}},
    }

    def read(*resources):
        bundle = {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": it} for it in resources]}
        return read_upload("bundle.json", json.dumps(bundle).encode())

    counts = add(engine, user, *read(patient, encounter, reference("a", HP, "34117-2"), reference("b", CT, "18748-4")))
    assert (counts.encounters, counts.added) == (1, 2)
    case = case_of(engine)
    about = case.note["encounter"]
    assert case.note["ref"] == "E1" and [(it.kind, it.date) for it in case.documents] == [
        ("h&p", "2025-11-02"),
        ("radiology", "2025-11-02"),
    ]
    stated = {"sex": "F", "born": "1950-11-02", "age": 74, "admitted": "2025-11-01", "discharged": "2025-11-03"}
    assert about.items() >= (stated | {"disposition": "03", "kind": "inpatient"}).items()
    counts = add(engine, user, *read(reference("b", CT, "18748-4", status="entered-in-error")))
    assert (counts.withdrawn, counts.added) == (1, 0)
    assert [it.state for it in case_of(engine).documents] == ["current", "withdrawn"]
    assert add(engine, user, *read(reference("z", CT, "18748-4", status="entered-in-error"))).known == 1


def test_of_dates_the_latest_counts_and_a_role_is_of_one_document(engine, user):
    add(engine, user, document("a", HP, date="2025-11-01"), document("b", DC, date="2025-11-05"))
    add(engine, user, document("c", CT, date="2025-11-02", role="radiology"))
    about = case_of(engine).note["encounter"]
    assert about["date"] == "2025-11-05" and "role" not in about
    add(engine, user, document("d", CT, None, role="radiology"))
    assert case_of(engine, 2).note["encounter"]["role"] == "radiology"


def test_an_import_cannot_reach_a_deleted_encounter(engine, user, stay):
    from nosology.workbench.retention import delete_note

    with write_transaction(engine) as connection:
        delete_note(connection, stay, user.id, "here", "by an admin")
        assert connection.scalar(select(func.count()).select_from(documents)) == 0
    with pytest.raises(NotFound, match="deleted"):
        add(engine, user, document("d9", HP, f"deleted {stay}"))
    assert add(engine, user, document("d1", HP)).encounters == 1  # the same ids, a new encounter


def test_a_document_is_found_by_its_id(engine, user, stay):
    note_id, found = find_document(engine, "d2")
    assert (note_id, found.kind) == (stay, "radiology")
    with pytest.raises(NotFound):
        find_document(engine, "nothing")


@pytest.mark.parametrize(
    "title, kind",
    [
        ("Discharge Summary", "discharge"),
        ("History & Physical", "h&p"),
        ("Progress Note, hospital day 2", "progress"),
        ("Operative report", "operative"),
        ("CT head without contrast", "radiology"),
        ("Surgical pathology", "pathology"),
        ("Lab results", "laboratory"),
        ("Cardiology consultation", "consultation"),
        ("ED provider note", "emergency"),
        ("Nursing", "other"),
    ],
)
def test_the_kind_of_a_document_is_guessed(title, kind):
    assert guess_kind(title) == kind


def test_columns_of_a_notes_file():
    raw = (
        b"id,text,hadm_id,patient,document,dob,admittime,dischtime,discharge_status\n"
        b"a,heart failure,7,p,Consult,1950-01-02,2025-11-01 10:00,2025-11-03 09:00,6\n"
    )
    (note,) = read_upload("notes.csv", raw)
    expected = {"encounter": "7", "document": "Consult", "born": "1950-01-02", "admitted": "2025-11-01"}
    assert note.extra.items() >= (expected | {"discharged": "2025-11-03", "disposition": "06"}).items()


def test_imports_and_decisions_at_the_same_time_lose_nothing(engine, user, stay):
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            add(engine, user, document(f"late-{number}", DC), document("d1", f"{HP} Version {number}."))
        except Exception as error:
            errors.append(error)

    def decide_often() -> None:
        try:
            for number in range(12):
                with suppress(ConflictError):
                    decide(engine, user, stay, "add" if number % 2 == 0 else "clear", code="icd10cm:I50.9")
        except ReviewError:
            pass  # "is chosen already", after a conflict
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=decide_often))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    case = case_of(engine)
    assert sorted(it.ref for it in case.current) == ["d1", "d2", *(f"late-{i}" for i in range(4))]
    assert sorted(it.version for it in case.documents if it.ref == "d1") == [1, 2, 3, 4, 5]
    with read_transaction(engine) as connection:
        actions = [row["action"] for row in decision_history(connection, stay)]
    assert actions.count("document") == 8 and len(actions) == case.review.version
    for it in case.current:
        expected = HP if it.ref == "d1" else CT if it.ref == "d2" else DC
        assert case.note["text"][it.start : it.end].startswith(expected)
