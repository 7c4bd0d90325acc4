"""Double coding on SQLite and PostgreSQL: neither coder sees the other's codes, adjudication, agreement, deletion."""

import pytest
from sqlalchemy import func, select

from nosology.core import ConfigError, ConflictError, Note, ReviewError
from nosology.workbench import double_coding
from nosology.workbench.audit_log import log_access
from nosology.workbench.blind_access import BlindNote, check_readable, list_pairs, load_pair
from nosology.workbench.cases import count_by_status, load_case, record_decision
from nosology.workbench.change_clock import change_clock
from nosology.workbench.code_differences import compare_codes
from nosology.workbench.coder_agreement import agreement_tables, load_double_codings
from nosology.workbench.coding import save_codings
from nosology.workbench.conversation import insert_comment, insert_query, load_conversation
from nosology.workbench.database import insert_row, open_database, read_transaction, write_transaction
from nosology.workbench.document_import import DocumentImport, add_notes, withdraw_document
from nosology.workbench.double_coding import (
    DoubleCodingRule,
    adjudication_details,
    assign_coding,
    choose_note,
    close_if_agreed,
    finished_pairs,
    load_codings,
    record_adjudication,
    sample_coded_notes,
)
from nosology.workbench.export import reviewed_notes
from nosology.workbench.measures import load_reviewed_notes
from nosology.workbench.note_coding import CodedNote
from nosology.workbench.retention import delete_expired, delete_note
from nosology.workbench.store_copy import copy_rows
from nosology.workbench.store_settings import RetentionRule, save_setting
from nosology.workbench.store_tables import coders, decisions, notes
from nosology.workbench.work_queue import QueueFilter, next_note, select_queue
from tests.workbench.conftest import ApiClient, browser, csrf

HEART, ACUTE, DIABETES = (f"icd10cm:{code}" for code in ("I50.9", "I50.23", "E11.9"))


def code(engine, note, user, *codes, finish=True):
    """Adds codes to a note, and finishes it."""
    with read_transaction(engine) as connection:
        version = load_case(connection, note).review.version
    for value in codes:
        record_decision(engine, note, "add", {"code": value}, user=user, version=version)
        version += 1
    if finish:
        record_decision(engine, note, "finish", {}, user=user, version=version)


@pytest.fixture
def copy(engine, people, note_id) -> int:
    """The id of the copy of the only note, which ann has begun to code."""
    with write_transaction(engine) as connection:
        connection.execute(notes.update().values(coding="done"))
    code(engine, note_id, people["ann"], HEART, finish=False)
    return choose_note(engine, people["rita"], note_id, "test")


def is_readable(engine, note: int, user: int) -> bool:
    with read_transaction(engine) as connection:
        try:
            check_readable(connection, note, user)
        except BlindNote:
            return False
    return True


def test_a_copy_has_the_text_of_its_note_and_its_own_decisions(engine, people, note_id, copy):
    code(engine, copy, people["ben"], DIABETES, finish=False)
    with read_transaction(engine) as connection:
        first, second = load_case(connection, note_id), load_case(connection, copy)
    assert first.note["text"] == second.note["text"] and second.note["double_of"] == note_id
    assert [[str(item) for item in case.review.codes] for case in (first, second)] == [[HEART], [DIABETES]]


def test_the_copy_gets_an_id_that_no_note_has(engine, people):
    with write_transaction(engine) as connection:
        add_notes(connection, [Note(ref, "text") for ref in ("a", "a (second coding)", "b" * 200)], None)
        connection.execute(notes.update().values(coding="done"))
        ids = connection.scalars(select(notes.c.id).order_by(notes.c.ref)).all()
    copies = [choose_note(engine, people["rita"], ids[row], "test") for row in (0, 2)]
    with read_transaction(engine) as connection:
        refs = connection.scalars(select(notes.c.ref).where(notes.c.id.in_(copies)).order_by(notes.c.ref)).all()
    assert refs == [f"a (second coding {ids[0]}.0)", "b" * 184 + " (second coding)"]


def test_agreement_of_a_history_that_present_rules_refuse(engine, people, note_id, copy):
    with write_transaction(engine) as connection:  # as an older version allowed it
        row = {"note_id": note_id, "version": 2, "user_id": people["ann"], "at": 1.0, "action": "approve"}
        connection.execute(decisions.insert().values(**row, details={}))
        connection.execute(notes.update().where(notes.c.id == note_id).values(version=2))
    code(engine, note_id, people["ann"])
    code(engine, copy, people["ben"], HEART)
    with read_transaction(engine) as connection:
        (found,) = load_double_codings(connection)
    assert found.codes.first == found.codes.second and found.coders == ("ann", "ben")


def test_who_may_read_which_coding(engine, people, note_id, copy):
    ann, ben, rita, adam = (people[name] for name in ("ann", "ben", "rita", "adam"))
    assert is_readable(engine, note_id, ann) and not is_readable(engine, copy, ann)  # ann codes the note
    assert not any(is_readable(engine, note_id, user) for user in (ben, rita, adam))  # it is ann's
    assert all(is_readable(engine, copy, user) for user in (ben, rita, adam))  # nobody has coded it
    code(engine, copy, ben, DIABETES)
    assert is_readable(engine, copy, ben)
    assert not any(is_readable(engine, copy, user) for user in (ann, rita, adam))
    code(engine, note_id, ann)
    assert all(is_readable(engine, note, user) for note in (note_id, copy) for user in (ann, ben, rita, adam))


def test_an_unassigned_note_with_codes_stays_hidden(engine, people, note_id, copy):
    record_decision(engine, note_id, "assign", {"user": None}, user=people["ann"], version=1)
    assert not is_readable(engine, note_id, people["ben"])
    assert is_readable(engine, note_id, people["ann"]) and not is_readable(engine, copy, people["ann"])


def test_next_gives_nobody_both_codings_and_the_queue_has_no_copies_of_others(engine, people, note_id, copy):
    def given(name):
        with read_transaction(engine) as connection:
            user = people[name]
            listed = [row.id for row in select_queue(connection, QueueFilter(status="all"), user)]
            return next_note(connection, QueueFilter(), user, reviewer=name == "rita"), listed

    assert given("ann") == (note_id, [note_id])
    assert given("ben") == (copy, [note_id, copy])
    code(engine, copy, people["ben"], DIABETES, finish=False)
    assert given("ann") == (note_id, [note_id]) and given("rita") == (None, [note_id])
    with read_transaction(engine) as connection:
        assert count_by_status(connection) == {"open": 1}
        rows = {name: select_queue(connection, QueueFilter(), people[name])[0].codes for name in ("ann", "ben", "rita")}
    assert rows == {"ann": 1, "ben": 0, "rita": 0}  # the number of codes is hidden, too


def test_neither_coding_is_assigned_to_somebody_who_knows_the_other(engine, people, note_id, copy):
    with pytest.raises(ReviewError, match="knows the other coding"):
        assign_coding(engine, people["rita"], copy, people["ann"], "test")
    assign_coding(engine, people["rita"], copy, people["ben"], "test")
    with pytest.raises(ReviewError, match="knows the other coding"):
        assign_coding(engine, people["rita"], note_id, people["ben"], "test")
    assign_coding(engine, people["rita"], note_id, people["adam"], "test")  # who may go on with ann's codes
    assert is_readable(engine, note_id, people["adam"]) and not is_readable(engine, copy, people["adam"])
    assert not is_readable(engine, copy, people["ann"])  # she has coded the note before


def test_what_cannot_be_chosen(engine, people, note_id, copy):
    for note, words in ((note_id, "coded twice already"), (copy, "is the copy"), (99, "no such note")):
        with pytest.raises(ReviewError, match=words):
            choose_note(engine, people["rita"], note, "test")
    with write_transaction(engine) as connection:
        add_notes(connection, [Note("n2", "heart failure"), Note("n3", "heart failure")], None)
        second, done = connection.scalars(select(notes.c.id).where(notes.c.ref.in_(("n2", "n3"))).order_by(notes.c.ref))
    with pytest.raises(ReviewError, match="still being coded"):
        choose_note(engine, people["rita"], second, "test")
    with write_transaction(engine) as connection:
        connection.execute(notes.update().where(notes.c.id > copy).values(coding="done"))
    record_decision(engine, second, "second", {}, user=people["ann"], version=0)
    with pytest.raises(ReviewError, match="must not be second review"):
        choose_note(engine, people["rita"], second, "test")
    code(engine, done, people["ann"], HEART)
    with pytest.raises(ReviewError, match="knows the other coding"):
        choose_note(engine, people["rita"], done, "test", people["ann"])
    with read_transaction(engine) as connection:
        assert load_pair(connection, done) is None  # nothing is left of the failed attempt


def test_equal_codings_close_by_themselves(engine, people, note_id, copy):
    code(engine, note_id, people["ann"], DIABETES)
    code(engine, copy, people["ben"], HEART, finish=False)
    with read_transaction(engine) as connection:
        pair = load_pair(connection, copy)
    assert not close_if_agreed(engine, pair, people["ben"])  # the copy is not finished
    code(engine, copy, people["ben"], DIABETES)
    assert close_if_agreed(engine, pair, people["ben"]) and not close_if_agreed(engine, pair, people["ben"])
    with read_transaction(engine) as connection:
        assert load_pair(connection, note_id).phase == "closed" and list_pairs(connection) == []
        assert load_case(connection, note_id).review.version == 3  # the note is as ann finished it


def test_copies_count_nowhere_twice(engine, people, note_id, copy):
    code(engine, note_id, people["ann"])
    code(engine, copy, people["ben"], HEART)
    assert list(reviewed_notes(engine)) == []  # not final yet
    with read_transaction(engine) as connection:
        assert load_reviewed_notes(connection) == [] and count_by_status(connection) == {"done": 1}
    assert finished_pairs(engine, people["rita"]) == []  # without a difference: closed
    assert [note.id for note in reviewed_notes(engine)] == ["n1"]


def test_a_copy_is_deleted_with_its_note_only(engine, people, note_id, copy):
    code(engine, copy, people["ben"], HEART)
    with write_transaction(engine) as connection:
        save_setting(connection, "retention", RetentionRule(1))
        connection.execute(notes.update().where(notes.c.id == copy).values(finished=1.0))
    assert delete_expired(engine) == 0
    with write_transaction(engine) as connection:
        delete_note(connection, note_id, people["adam"], "test", "by an admin")
    with read_transaction(engine) as connection:
        assert set(connection.scalars(select(notes.c.status))) == {"deleted"}
        assert connection.scalar(select(func.count()).select_from(decisions)) == 0
        assert list_pairs(connection) == [] and load_pair(connection, note_id) is None


def test_a_backup_has_the_copies(engine, people, note_id, copy, tmp_path):
    other = open_database(str(tmp_path / "backup.db"))
    assert copy_rows(engine, other)["notes"] == 2
    with read_transaction(other) as connection:
        assert load_case(connection, copy).note["text"] == load_case(connection, note_id).note["text"]
    other.dispose()


def test_a_random_share_of_new_notes_is_chosen(engine, people):
    with write_transaction(engine) as connection:
        about = {"digest": "d", "name": "coder", "kind": "linear", "about": {}, "created": 0.0}
        coder = insert_row(connection, coders, about)
        add_notes(connection, [Note(f"n{i}", "heart failure") for i in range(200)], None)
        save_setting(connection, "double_coding", DoubleCodingRule(20))
    ids = list(range(1, 201))
    save_codings(engine, coder, ids, [CodedNote((), {})] * 200)
    with read_transaction(engine) as connection:
        chosen = [pair.original.id for pair in list_pairs(connection)]
        statuses = count_by_status(connection)
    assert 20 <= len(chosen) <= 60 and statuses == {"new": 200}
    assert DoubleCodingRule(100).takes(1, b"key") and not DoubleCodingRule(0).takes(1, b"key")
    for key in (b"a", b"b"):  # the choice depends on the store's key, and a larger share takes the same notes and more
        few, many = ({i for i in ids if DoubleCodingRule(share).takes(i, key)} for share in (10, 50))
        assert few < many
    with pytest.raises(ConfigError, match="0 to 100 %; got 101"):
        DoubleCodingRule(101)


def test_agreement_is_that_of_the_codings_before_adjudication(engine, people, note_id, copy):
    code(engine, note_id, people["ann"], DIABETES)
    code(engine, copy, people["ben"], ACUTE, DIABETES)
    with read_transaction(engine) as connection:
        first, second = load_codings(connection, load_pair(connection, note_id))
    names = [item.name for item in compare_codes(first.review, second.review).differences]
    details = adjudication_details(first, second, dict.fromkeys(names, "second"))
    with read_transaction(engine) as connection:
        before = load_double_codings(connection)
    record_adjudication(engine, first, second, details, people["rita"])
    with read_transaction(engine) as connection:
        final, after = load_case(connection, note_id).review, load_double_codings(connection)
        assert load_pair(connection, note_id).phase == "closed"
    with pytest.raises(ConflictError):
        record_adjudication(engine, first, second, details, people["adam"])
    assert before == after
    tables = agreement_tables(tuple(after))
    assert tables.total.notes == 1 and tables.total.units == 3 and tables.total.principal.value == 0
    assert [row.name for row in tables.coders] == ["ann and ben"]
    [row] = tables.disagreements
    assert (str(row.code), str(row.other), row.notes) == (ACUTE, HEART, 1)
    assert [str(item) for item in final.codes] == [ACUTE, DIABETES] and final.status == "done"


# Through the API and the pages, with a running server.


@pytest.fixture
def api(server):
    return {name: ApiClient(server[0], token) for name, token in server[1].items()}


@pytest.fixture
def pair(api, request) -> tuple[int, int]:
    """A note that ann has begun to code and its copy, which ben has begun to code."""
    note = api["ann"].note(f"{request.node.name[:60]}")
    assert api["ann"].decide(note, "add", 0, code=HEART).status_code == 200
    response = api["rita"].post(f"/notes/{note}/double", {})
    assert response.status_code == 201, response.text
    copy = response.json()["note"]
    assert api["ben"].decide(copy, "add", 0, code=DIABETES).status_code == 200
    return note, copy


READS = ("", "/decisions", "/claim", "/export?format=json", "/export?format=csv", "/export?format=fhir")


def test_no_endpoint_and_no_page_shows_the_other_coding(server, api, pair):
    note, copy = pair
    hidden = {"ann": [copy], "ben": [note], "rita": [note, copy], "adam": [note, copy]}
    for name, ids in hidden.items():
        client = browser(server, name)
        for other in ids:
            for path in READS:
                response = api[name].get(f"/notes/{other}{path}")
                assert response.status_code == 403, (name, path, response.text)
                assert "E11.9" not in response.text and "I50.9" not in response.text
            for path in ("", "/history", "/export/json", "/export/csv", "/export/fhir"):
                response = client.get(f"/notes/{other}{path}")
                assert response.status_code == 403 and "E11.9" not in response.text, (name, path)
            for action, more in (("add", {"code": ACUTE}), ("assign", {"user": None}), ("claim", {}), ("undo", {})):
                for version in (0, 1):  # also the answer to a conflict shows codes
                    assert api[name].decide(other, action, version, **more).status_code == 403
            form = {"action": "assign", "version": 0, "csrf": csrf(client)}
            response = client.post(f"/notes/{other}/decide", data=form)
            assert response.status_code == 403 and "E11.9" not in response.text
            ref = api["ann" if other == note else "ben"].get(f"/notes/{other}").json()["ref"]
            found = client.post("/find", data={"ref": ref, "csrf": csrf(client)})
            assert found.status_code == 403 and "I50.9" not in found.text
            assert client.get(f"/double/{other}").status_code in (403, 404, 422)
    for name, own in (("ann", note), ("ben", copy)):
        assert api[name].get(f"/notes/{own}").status_code == 200
        response = api[name].get(f"/notes/{own}/export")  # the codes are not final
        assert response.status_code == 422 and "double coding is closed" in response.text


def test_the_queue_measures_and_pairs_show_no_codes(server, api, pair):
    note, copy = pair
    rows = {row["id"]: row for row in api["ben"].get("/notes", params={"order": "newest"}).json()["notes"]}
    assert rows[note]["codes"] == 0 and rows[copy]["codes"] == 1 and rows[copy]["double_of"] == note
    assert copy not in {row["id"] for row in api["ann"].get("/notes", params={"order": "newest"}).json()["notes"]}
    assert api["ann"].get("/double").status_code == api["ann"].get("/agreement").status_code == 403
    states = [item for item in api["rita"].get("/double").json() if item["first"]["id"] == note]
    assert [(item["phase"], item["second"]["id"]) for item in states] == [("coding", copy)]
    assert "E11.9" not in api["rita"].get("/double").text
    before = api["rita"].get("/measures").json()
    api["ben"].decide(copy, "finish", 1, override="test")
    assert api["rita"].get("/measures").json() == before


def test_reviewers_who_have_seen_the_codes_cannot_code_the_copy(server, api):
    note = api["ann"].note("seen before")
    api["ann"].decide(note, "add", 0, code=HEART)
    assert api["rita"].get(f"/notes/{note}").status_code == 200
    copy = api["rita"].post(f"/notes/{note}/double", {}).json()["note"]
    assert api["rita"].get(f"/notes/{copy}").status_code == 403
    assert api["adam"].get(f"/notes/{copy}").status_code == 200  # who has not
    assert api["rita"].post(f"/notes/{note}/double", {"user": 1}).status_code == 422


def test_actions_that_would_go_around(api, pair):
    note, copy = pair
    assert "two people code this note" in api["ann"].decide(note, "second", 1).text
    for action in ("adjudicate", "close", "preaccept"):
        assert api["ann"].decide(note, action, 1).status_code == 403
    people = {row["assignee"]: row["assignee_id"] for row in api["ben"].get("/notes").json()["notes"]}
    response = api["ann"].decide(note, "assign", 1, user=people["ben"])
    assert response.status_code == 422 and "knows the other coding" in response.text
    assert api["ann"].post(f"/notes/{note}/double", {}).status_code == 403
    assert api["rita"].post(f"/notes/{copy}/double", {}).status_code == 422


def finish(api, pair):
    note, copy = pair
    assert api["ann"].decide(note, "finish", 1).status_code == 200
    assert api["ben"].decide(copy, "finish", 1).status_code == 200


def test_a_finished_pair_waits_for_a_third_person(server, api, pair):
    note, copy = pair
    finish(api, pair)
    assert api["ann"].get(f"/notes/{copy}").status_code == api["ben"].get(f"/notes/{note}").status_code == 200
    for name, own in (("ann", note), ("ben", copy)):
        response = api[name].decide(own, "reopen", 2)  # after a look at the other coding
        assert response.status_code == 422 and "waits for adjudication" in response.text
    assert api["rita"].get(f"/notes/{note}/export").status_code == 422
    assert browser(server, "ann").get(f"/double/{note}").status_code == 403
    page = browser(server, "rita").get(f"/double/{note}")
    assert page.status_code == 200 and "I50.9" in page.text and "E11.9" in page.text
    assert "ann" not in page.text and "ben" not in page.text  # who coded what is not shown


def test_adjudication_shows_the_conversation_of_both_codings(server, api, pair):
    note, copy = pair
    assert api["ann"].post(f"/notes/{note}/comments", {"text": "see the echo"}).status_code == 201
    query = api["ben"].post(f"/notes/{copy}/queries", {"question": "Which kind?", "options": ["systolic"]}).json()
    answer = {"physician": "Dr. West", "choice": "systolic"}
    assert api["ben"].post(f"/queries/{query['id']}/answer", answer).status_code == 200
    finish(api, pair)
    page = browser(server, "rita").get(f"/double/{note}").text
    assert all(words in page for words in ("see the echo", "Which kind?", "systolic", "Dr. West"))
    assert "ann" not in page and "ben" not in page  # who coded what is not shown


def test_adjudication_gives_the_final_codes(server, api, pair):
    note, copy = pair
    finish(api, pair)
    rita = browser(server, "rita")
    form = {"csrf": csrf(rita), "version": "2", f"choice {HEART}": "first", f"choice {DIABETES}": "first"}
    response = rita.post(f"/double/{note}", data=form)
    assert response.status_code == 422 and "1 difference is still to be decided" in response.text
    response = rita.post(f"/double/{note}", data=form | {"choice principal": "first", "version": "1"})
    assert response.status_code == 422 and "changed the note" in response.text
    response = rita.post(f"/double/{note}", data=form | {"choice principal": "first"}, follow_redirects=False)
    assert response.status_code == 303 and response.headers["location"] == f"/notes/{note}"
    detail = api["ann"].get(f"/notes/{note}").json()
    assert [item["code"] for item in detail["codes"]] == [HEART] and detail["status"] == "done"
    history = api["ann"].get(f"/notes/{note}/decisions").json()
    assert (history[-1]["action"], history[-1]["user"]) == ("adjudicate", "rita")
    assert {item["name"]: item["taken"] for item in history[-1]["details"]["choices"]} == {
        HEART: "first",
        DIABETES: "first",
        "principal": "first",
    }
    assert "adjudicate" in rita.get(f"/notes/{note}/history").text
    assert api["ann"].get(f"/notes/{copy}").json()["status"] == "closed"
    for action, more in (("reopen", {}), ("add", {"code": ACUTE}), ("assign", {"user": None})):
        assert "copy is closed" in api["ben"].decide(copy, action, 3, **more).text
    assert api["rita"].get(f"/notes/{note}/export?format=json").status_code == 200
    assert api["rita"].get(f"/notes/{copy}/export").status_code == 422  # never billed twice
    response = rita.post(f"/double/{note}", data=form)
    assert response.status_code == 422 and "is closed" in response.text
    assert api["ann"].decide(note, "reopen", 3).status_code == 200  # an ordinary note again


def test_a_coder_with_the_role_reviewer_does_not_adjudicate_own_codes(server, api):
    note = api["rita"].note("coded by rita")
    api["rita"].decide(note, "add", 0, code=HEART)
    copy = api["adam"].post(f"/notes/{note}/double", {}).json()["note"]
    api["ben"].decide(copy, "add", 0, code=DIABETES)
    for name, own in (("rita", note), ("ben", copy)):
        assert api[name].decide(own, "finish", 1).status_code == 200
    response = browser(server, "rita").get(f"/double/{note}")
    assert response.status_code == 422 and "another person" in response.text
    assert browser(server, "adam").get(f"/double/{note}").status_code == 200


def test_codes_with_errors_need_a_reason(server, api, pair):
    note, _ = pair
    finish(api, pair)
    rita = browser(server, "rita")
    form = {"csrf": csrf(rita), "version": "2", f"choice {HEART}": "second", f"choice {DIABETES}": "first"}
    form["choice principal"] = "first"
    response = rita.post(f"/double/{note}", data=form)
    assert response.status_code == 422 and "The note has no code" in response.text
    response = rita.post(f"/double/{note}", data=form | {"override": "nothing was treated"}, follow_redirects=False)
    assert response.status_code == 303
    assert api["ann"].get(f"/notes/{note}").json()["codes"] == []


def test_equal_codings_need_no_adjudication(api, request):
    note = api["ann"].note(request.node.name)
    copy = api["rita"].post(f"/notes/{note}/double", {}).json()["note"]
    for name, own in (("ann", note), ("ben", copy)):
        api[name].decide(own, "add", 0, code=HEART)
        last = api[name].post(f"/notes/{own}/decisions", {"action": "finish", "version": 1, "key": "k1"})
        assert last.status_code == 200
    again = api["ben"].post(f"/notes/{copy}/decisions", {"action": "finish", "version": 1, "key": "k1"})
    assert again.status_code == 200  # the answer was lost, and the decision is sent again
    assert api["ben"].get(f"/notes/{copy}").json()["status"] == "closed"
    assert note not in {item["first"]["id"] for item in api["rita"].get("/double").json()}


def test_agreement_by_api_and_page(server, api, pair):
    finish(api, pair)
    report = api["rita"].get("/agreement").json()
    assert report["total"]["notes"] >= 1 and 0 <= report["total"]["percent"]["value"] <= 1
    assert sum(row["agreement"]["units"] for row in report["chapters"]) == report["total"]["units"]
    assert "ann and ben" in [row["name"] for row in report["coders"]]
    page = browser(server, "rita").get("/agreement")
    assert page.status_code == 200 and "ann and ben" in page.text and "Krippendorff" in page.text
    assert browser(server, "ann").get("/agreement").status_code == 403


def test_reviewers_choose_and_assign_on_the_page_and_admins_set_the_share(server, api, request):
    note = api["ann"].note(request.node.name)
    rita, adam = browser(server, "rita"), browser(server, "adam")
    token = csrf(rita)
    assert "no such note" in rita.post("/double", data={"csrf": token, "ref": "nothing"}).text
    assert "is chosen" in rita.post("/double", data={"csrf": token, "ref": request.node.name}).text
    copy = next(item["second"]["id"] for item in api["rita"].get("/double").json() if item["first"]["id"] == note)
    assert rita.post(f"/double/{copy}/assign", data={"csrf": token, "coder": "2"}).status_code == 200
    state = next(item for item in api["rita"].get("/double").json() if item["first"]["id"] == note)
    assert state["second"]["assignee"] == 2
    assert rita.post("/double/99999/assign", data={"csrf": token, "coder": "2"}).status_code == 404
    assert rita.post("/settings/double", data={"csrf": token, "percent": "5"}).status_code == 403
    token = csrf(adam)
    refused = adam.post("/settings/double", data={"csrf": token, "percent": "400"})
    assert refused.status_code == 422 and "must lie in 0 to 100" in refused.text and "<h1>Settings" in refused.text
    assert 'value="5"' in adam.post("/settings/double", data={"csrf": token, "percent": "5"}).text
    assert adam.post("/settings/double", data={"csrf": token, "percent": "0"}).status_code == 200
    assert browser(server, "ann").get("/double").status_code == 403


def import_documents(engine, user, *documents):
    with write_transaction(engine) as connection:
        return DocumentImport(connection, user, None).run(documents)


def test_documents_and_data_of_the_encounter_are_those_of_both_codings(engine, people, note_id):
    late = Note("d2", "Late radiology report.", patient="p1", extra={"encounter": "n1"})
    import_documents(engine, people["adam"], late)
    with write_transaction(engine) as connection:
        withdraw_document(connection, 2, people["rita"])
        connection.execute(notes.update().values(coding="done"))
    copy = choose_note(engine, people["rita"], note_id, "test", people["ben"])
    code(engine, note_id, people["ann"], HEART)
    code(engine, copy, people["ben"], HEART, DIABETES)

    def both():
        with read_transaction(engine) as connection:
            return load_codings(connection, load_pair(connection, copy))

    first, second = both()
    assert first.note["text"] == second.note["text"] and "radiology" not in second.note["text"]
    assert is_readable(engine, copy, people["ann"])  # both are finished
    import_documents(engine, people["adam"], Note("d3", "Now with insulin.", extra={"encounter": "n1", "sex": "M"}))
    first, second = both()
    assert [case.review.status for case in (first, second)] == ["open", "open"]
    assert "insulin" in second.note["text"] and second.note["encounter"]["sex"] == "M"
    assert (first.note["coding"], second.note["coding"]) == ("waiting", "done")  # nobody codes the copy by itself
    assert is_readable(engine, note_id, people["ann"]) and is_readable(engine, copy, people["ben"])
    code(engine, note_id, people["ann"], DIABETES)
    code(engine, copy, people["ben"])
    with read_transaction(engine) as connection:
        assert close_if_agreed(engine, load_pair(connection, copy), people["ben"])
    with write_transaction(engine) as connection:
        withdraw_document(connection, 3, people["rita"])
    first, second = both()
    assert (first.review.status, second.review.status) == ("open", "closed")
    assert "insulin" not in second.note["text"] and second.note["coding"] == "done"


def test_a_note_whose_second_review_is_due_is_not_chosen(engine, people, note_id):
    ann, rita = people["ann"], people["rita"]
    with write_transaction(engine) as connection:
        connection.execute(notes.update().values(coding="done"))
    record_decision(engine, note_id, "add", {"code": HEART}, user=ann, version=0)
    record_decision(engine, note_id, "second", {}, user=ann, version=1)
    record_decision(engine, note_id, "return", {"explanation": "look at the echo"}, user=rita, version=2)
    with pytest.raises(ReviewError, match="second review"):
        choose_note(engine, rita, note_id, "test")
    with write_transaction(engine) as connection:
        save_setting(connection, "double_coding", DoubleCodingRule(100.0))
        sample_coded_notes(connection, [note_id])
        assert list_pairs(connection) == []
    record_decision(engine, note_id, "finish", {}, user=ann, version=3)
    record_decision(engine, note_id, "approve", {}, user=rita, version=4)
    assert choose_note(engine, rita, note_id, "test")


def test_a_note_counts_as_changed_when_its_double_coding_is_closed(engine, people, note_id, copy):
    code(engine, note_id, people["ann"])
    code(engine, copy, people["ben"], HEART, finish=False)
    since = change_clock.settled()  # a program has read all changes up to now; the note is not final yet
    code(engine, copy, people["ben"])
    with read_transaction(engine) as connection:
        pair = load_pair(connection, note_id)
    assert close_if_agreed(engine, pair, people["ben"])
    with read_transaction(engine) as connection:
        found = select_queue(connection, QueueFilter(since=since, status="all"), people["rita"])
    assert [row.id for row in found] == [note_id]


def test_a_pair_that_another_person_closes_at_the_same_moment_is_no_error(engine, people, note_id, copy, monkeypatch):
    code(engine, note_id, people["ann"])
    code(engine, copy, people["ben"], HEART)
    with read_transaction(engine) as connection:
        pair, cases = load_pair(connection, note_id), load_codings(connection, load_pair(connection, note_id))
    assert close_if_agreed(engine, pair, people["ann"])
    monkeypatch.setattr(double_coding, "load_pair", lambda connection, note: pair)  # as read a moment before
    monkeypatch.setattr(double_coding, "load_codings", lambda connection, pair: cases)
    assert not close_if_agreed(engine, pair, people["ben"])


def test_a_closed_note_has_the_conversation_of_both_codings(engine, people, note_id, copy):
    with write_transaction(engine) as connection:
        insert_comment(connection, note_id, people["ann"], "of the first")
        insert_comment(connection, copy, people["ben"], "of the second")
        insert_query(connection, copy, people["ben"], {"question": "which kind?"}, length=10)

    def said():
        with read_transaction(engine) as connection:
            talk = load_conversation(connection, note_id)
        return [comment.text for comment in talk.comments], [query.question for query in talk.queries]

    assert said() == (["of the first"], [])
    code(engine, note_id, people["ann"])
    code(engine, copy, people["ben"], HEART)
    assert said() == (["of the first"], [])
    with read_transaction(engine) as connection:
        pair = load_pair(connection, note_id)
    assert close_if_agreed(engine, pair, people["ben"])
    assert said() == (["of the first", "of the second"], ["which kind?"])


def test_a_program_that_looks_up_a_document_does_not_know_the_codes(engine, people, note_id, copy):
    log_access(engine, people["ben"], "find document", note_id, "test")
    assert is_readable(engine, copy, people["ben"])
    log_access(engine, people["ben"], "note", note_id, "test")
    assert not is_readable(engine, copy, people["ben"])


def test_a_note_whose_copy_was_deleted_can_be_chosen_again(engine, people, note_id, copy):
    with write_transaction(engine) as connection:
        delete_note(connection, copy, people["adam"], "test", "by mistake")
        save_setting(connection, "double_coding", DoubleCodingRule(100.0))
        sample_coded_notes(connection, [note_id])
        assert [pair.original.id for pair in list_pairs(connection)] == [note_id]
