"""The report of a membership-inference probe as a page: result, plots, attacks, cautions. It has no text of a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nosology.core import OutputError
from nosology.core.files import atomic_file, check_parent_folder
from nosology.evaluation import plots
from nosology.evaluation.metrics import Row
from nosology.evaluation.report import html_page, image, rows_table, section
from nosology.federated.privacy.membership import FALSE_POSITIVE_RATE, ProbeReport

TITLE = "Membership-inference probe"
METHOD = (
    "An attacker who has the coder, a note and its codes guesses whether the coder was trained on the note. An AUC of"
    " 0.5 is chance. The control attacks two groups of unseen notes: if it succeeds too, the reason is the corpus. A"
    " probe with a finding is evidence. A probe without a finding is not: attackers with shadow models or a view of"
    " every round do better."
)


def check_probe_page(path: Path) -> None:
    """OutputError if a page must not be written to this file: it is anything but an older page."""
    check_parent_folder(path)
    if path.is_dir() or (path.exists() and f"<title>{TITLE}</title>" not in path.read_text("utf-8", "replace")):
        raise OutputError(f"will not overwrite {path}: it exists and is no older page of this command")


def write_probe_page(path: Path, report: ProbeReport, cautions: Sequence[str], provenance: Mapping[str, Any]) -> None:
    """Writes the page. provenance: names and values for its last table."""
    with atomic_file(path) as temporary:
        temporary.write_text(probe_page(report, cautions, provenance), encoding="utf-8")


def probe_page(report: ProbeReport, cautions: Sequence[str], provenance: Mapping[str, Any]) -> str:
    """The page, with its pictures inside and without scripts."""
    best = report.attacks[report.strongest]
    tiles = {
        "AUC of the strongest attack": (f"{best.auc:.3f}", f"{best.auc_low:.3f} to {best.auc_high:.3f}"),
        f"seen notes found at {FALSE_POSITIVE_RATE:.0%} false alarms": (f"{best.hits:.1%}", report.strongest),
        "seen notes": (f"{report.seen:,}", ""),
        "unseen notes": (f"{report.unseen:,}", ""),
    }
    shown = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{value}</b><span>{escape(note)}</span></div>'
        for name, (value, note) in tiles.items()
    )
    losses = report.scores["loss"]
    pictures = {
        "ROC curves": ("Both axes are logarithmic: a few notes that are found with certainty matter most.", "roc"),
        "Loss of seen and unseen notes": ("If the two differ, the loss tells which notes were seen.", "loss"),
    }
    drawn = {
        "roc": plots.roc_curves(report.scores),
        "loss": plots.two_histograms(("seen", "unseen"), (-losses[0], -losses[1]), "loss of a note"),
    }
    images = "".join(section(name, text, image(name, drawn[key])) for name, (text, key) in pictures.items())
    attacks = report.attacks | ({"control: dev against test": report.control} if report.control else {})
    rows: list[Row] = [
        {
            "attack": name,
            "AUC": attack.auc,
            "95% interval": f"{attack.auc_low:.3f} to {attack.auc_high:.3f}",
            f"seen notes found at {FALSE_POSITIVE_RATE:.0%} false alarms": f"{attack.hits:.1%}",
        }
        for name, attack in attacks.items()
    ]
    body = [f'<div class="tiles">{shown}</div>', f'<div class="pair">{images}</div>']
    body.append(section("Attacks", METHOD, rows_table(rows)))
    if cautions:
        body.append(section("Cautions", "", f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in cautions)}</ul>"))
    body.append(section("Provenance", "", rows_table([{"name": k, "value": str(v)} for k, v in provenance.items()])))
    return html_page(TITLE, report.sentence, body)
