"""Reviewed notes as a corpus, so that a coder learns from the people who use it."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Engine, select

from nosology.core import Evidence, Note
from nosology.workbench.audit_log import log_reads
from nosology.workbench.store.engine import reading
from nosology.workbench.store.schema import notes
from nosology.workbench.work import load_case


def reviewed_notes(engine: Engine) -> Iterator[Note]:
    """Every finished note with the codes that stand, and as evidence the words that people marked.

    What the triage rule alone accepted is not among them: a coder must not learn its own opinion. That the notes were
    read is kept.
    """
    with reading(engine) as connection:
        ids = list(connection.scalars(select(notes.c.id).where(notes.c.status == "done").order_by(notes.c.id)))
    log_reads(engine, "corpus", ids)
    for note_id in ids:
        with reading(engine) as connection:
            case = load_case(connection, note_id)
        row, review = case.note, case.review
        yield Note(
            row["ref"],
            row["text"],
            patient=row["patient"],
            site=row["site"],
            lang=row["lang"],
            codes=review.codes,
            evidence=tuple(
                Evidence(item.code, span.start, span.end) for item in review.chosen for span in item.evidence
            ),
            extra={**row["encounter"], "review_version": review.version},
        )
