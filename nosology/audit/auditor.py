"""The audit of many encounters: in this process, in processes forked from it, or on a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nosology.audit.billed_codes import Bill
from nosology.audit.correction import Weights
from nosology.audit.encounter_audit import audit_encounter
from nosology.audit.finding import BilledCode
from nosology.audit.support_features import MAX_SUGGESTIONS
from nosology.audit.support_model import SupportModel
from nosology.claims.encounter import stated_fields
from nosology.core import Code, ConfigError, Note
from nosology.core.forked_processes import forked_map
from nosology.core.parallel import cores
from nosology.serving.coder import Coder


@dataclass(frozen=True, slots=True)
class BilledEncounter:
    """The text of an encounter and its bill. where: for messages. documents: ids and starts of joined documents.

    refused: why it is not audited.
    """

    note: Note
    bill: Bill
    where: str
    documents: tuple[tuple[str, int], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Auditor:
    """Audits encounters with a coder that was loaded for claims, and a support model if given; see audit_encounter."""

    coder: Coder
    reference: str = "claim"
    min_confidence: float | None = None
    weights: Weights = field(default_factory=dict)
    support: SupportModel | None = None

    def __call__(self, item: BilledEncounter) -> dict[str, Any]:
        """The record of an encounter; with an error in place of findings if one of its fields is wrong."""
        if item.refused:
            return {"id": item.note.id, "coder": item.bill.coder, "error": f"{item.where}: {item.refused}"}
        suggestions = next(self.coder.code_all([item.note], MAX_SUGGESTIONS if self.support else None))
        names = [billed.code.code for billed in item.bill.codes if billed.code.system == "icd10cm"]
        judgement = self.support.judge(item.note.text, names, suggestions) if self.support else None
        try:
            result = audit_encounter(
                item.note.id,
                item.note.text,
                item.bill.codes,
                suggestions,
                {**item.bill.stated, **stated_fields(item.note)},
                reference=self.reference,
                weights=self.weights,
                min_confidence=self.min_confidence,
                judgement=judgement,
                chooser=getattr(self.coder.model, "siblings", None),
            )
        except ConfigError as error:  # a wrong field of the encounter
            return {"id": item.note.id, "coder": item.bill.coder, "error": f"{item.where}: {error}"}
        documents = {"documents": [{"id": name, "start": at} for name, at in item.documents]} if item.documents else {}
        return result.to_json() | {"coder": item.bill.coder} | documents

    def audit_all(self, items: Iterable[BilledEncounter], workers: int | None = None) -> Iterator[dict[str, Any]]:
        """The record of each encounter, in order.

        workers: processes; by default as many as there are cores for a lexicon, which needs no torch, else one.
        """
        has_embedder = self.support is not None and self.support.similarity is not None
        if self.coder.model.kind != "lexicon" or has_embedder:
            return map(self, items)
        return forked_map(self, items, workers or cores())


def audit_on_ray(
    items: Iterable[BilledEncounter], options: dict[str, Any], *, workers: int = 2, address: str | None = None
) -> Iterator[dict[str, Any]]:
    """The record of each encounter, in order, by workers of a Ray cluster. options: of RayAuditor."""
    from nosology.serving.ray_engine import map_on_ray

    for row in map_on_ray(map(_row, items), RayAuditor, (options,), workers=workers, address=address):
        yield json.loads(row["record"])


class RayAuditor:
    """An auditor in a Ray worker: maps blocks of encounters to blocks of records as JSON."""

    def __init__(self, options: dict[str, Any]):
        self.auditor = load_auditor(**options)

    def __call__(self, block: dict[str, Any]) -> dict[str, list[str]]:
        """The records of a block."""
        records = (self.auditor(_encounter(row)) for row in block["encounter"])
        return {"record": [json.dumps(record, ensure_ascii=False) for record in records]}


def load_auditor(
    bundle: str | Path,
    reference: str,
    min_confidence: float | None,
    weights: Weights,
    support: str | Path | None = None,
) -> Auditor:
    """An auditor with the coder of a bundle folder, or day-one; support: a folder of `nosology audit-fit`."""
    coder = Coder.for_claims(bundle, systems=["icd10cm"])
    fitted = SupportModel.for_coder(support, bundle) if support else None
    if fitted and fitted.similarity:
        fitted.similarity.load()  # an embedder that is missing ends the audit before it starts
    return Auditor(coder, reference, min_confidence, weights, fitted)


def _row(item: BilledEncounter) -> dict[str, str]:
    """An encounter as a row of a block."""
    note, bill = item.note, item.bill
    return {
        "encounter": json.dumps(
            {
                "note": {"id": note.id, "text": note.text, "extra": dict(note.extra)},
                "bill": {"codes": bill.codes, "coder": bill.coder, "stated": dict(bill.stated)},
                "where": item.where,
                "documents": item.documents,
                "refused": item.refused,
            },
            default=lambda value: [*value.code, value.poa] if isinstance(value, BilledCode) else str(value),
        )
    }


def _encounter(row: str) -> BilledEncounter:
    """The encounter of a row."""
    given = json.loads(row)
    bill = given["bill"]
    codes = tuple(BilledCode(Code(system, code), poa) for system, code, poa in bill["codes"])
    documents = tuple((name, start) for name, start in given["documents"])
    own = Bill(codes, bill["coder"], bill["stated"])
    return BilledEncounter(Note(**given["note"]), own, given["where"], documents, given["refused"])
