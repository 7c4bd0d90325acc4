"""Triggers of the database that make tables append-only, with one exception: the deletion of a note."""

from __future__ import annotations

from collections.abc import Iterable

APPEND_ONLY = ("decisions", "audit", "codings", "texts", "comments", "queries", "query_events")
DELETED = "deleted"  # the status of a note whose text, codings and decisions are deleted
DELETION = "delete note"  # the audit entry that must be there before


def append_only_triggers(dialect: str) -> list[str]:
    """The statements that create the triggers by which the database refuses to change or delete rows.

    Rows of a note whose status is `deleted` can be deleted. That status is final, and it needs an audit entry.
    """
    return table_triggers(dialect, APPEND_ONLY) + deletion_triggers(dialect)


def table_triggers(dialect: str, tables: Iterable[str]) -> list[str]:
    """The statements that make tables append-only."""
    deleted = f"EXISTS (SELECT 1 FROM notes WHERE id = OLD.note_id AND status = '{DELETED}')"
    statements = []
    for name in tables:
        allowed = "false" if name == "audit" else deleted
        if dialect == "sqlite":
            refuse = f"BEGIN SELECT RAISE(ABORT, '{name} is append-only'); END"
            statements += [
                f"CREATE TRIGGER {name}_no_update BEFORE UPDATE ON {name} {refuse}",
                f"CREATE TRIGGER {name}_no_delete BEFORE DELETE ON {name} WHEN NOT {allowed} {refuse}",
            ]
        else:
            statements += [
                f"CREATE FUNCTION {name}_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF TG_OP = 'DELETE' THEN IF {allowed} THEN RETURN OLD; END IF; END IF; "
                f"RAISE EXCEPTION '{name} is append-only'; END $$",
                f"CREATE TRIGGER {name}_append_only BEFORE UPDATE OR DELETE ON {name} "
                f"FOR EACH ROW EXECUTE FUNCTION {name}_append_only()",
                f"CREATE TRIGGER {name}_no_truncate BEFORE TRUNCATE ON {name} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {name}_append_only()",
            ]
    return statements


def deletion_triggers(dialect: str) -> list[str]:
    """The statements that make the status `deleted` final, and an audit entry its condition."""
    logged = f"EXISTS (SELECT 1 FROM audit WHERE note_id = NEW.id AND what = '{DELETION}')"
    undo = f"OLD.status = '{DELETED}'"
    unlogged = f"NEW.status = '{DELETED}' AND NOT {logged}"
    statements = []
    if dialect == "sqlite":
        for when, sentence in ((undo, "a deleted note is final"), (unlogged, "a deletion must be logged first")):
            statements.append(
                f"CREATE TRIGGER notes_{'final' if when == undo else 'logged'} BEFORE UPDATE ON notes "
                f"WHEN {when} BEGIN SELECT RAISE(ABORT, '{sentence}'); END"
            )
    else:
        statements += [
            "CREATE FUNCTION notes_deletion() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF {undo} THEN RAISE EXCEPTION 'a deleted note is final'; END IF; "
            f"IF {unlogged} THEN RAISE EXCEPTION 'a deletion must be logged first'; END IF; RETURN NEW; END $$",
            "CREATE TRIGGER notes_deletion BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION notes_deletion()",
        ]
    return statements
