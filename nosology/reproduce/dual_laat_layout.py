"""Rows, columns and Figure 1 of the tables of Liu and Nguyen (2026)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import TYPE_CHECKING, NamedTuple

from nosology.reproduce.dual_laat_corpora import MIMIC3, MIMIC4_ICD9, MIMIC4_ICD10
from nosology.reproduce.result_tables import Cell, Row
from nosology.reproduce.runner import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "micro_auc": "micro AUC", "macro_auc": "macro AUC", "micro_f1": "micro F1", "macro_f1": "macro F1",
    "p@8": "P@8", "p@15": "P@15", "r_precision": "R-precision", "map": "MAP",
}  # fmt: skip
SIZE_COLUMNS = {
    "hours": "training, hours",
    "millions": "parameters, millions",
    "paper_vocabulary": "parameters with the paper's 125,762 words",
}


class Training(NamedTuple):
    """What a run trains: a model, on one corpus or on all, with all codes or only the frequent ones."""

    model: str  # a field of `ModelRecipes`
    mixed: bool = False
    codes: str = "full"


PLM_ICD = Training("plm_icd", codes="frequent")
CNN, CNN_MIXED = Training("cnn"), Training("cnn", mixed=True)
GRU, GRU_MIXED = Training("gru"), Training("gru", mixed=True)
FREQUENT_ICD9 = {"PLM-ICD": PLM_ICD, "DualLAAT": GRU_MIXED}
RARE = {"single dataset": CNN, "mixed ICD versions": CNN_MIXED}
ROWS: dict[str, dict[str, dict[str, Training]]] = {  # table -> corpus -> row
    "1": {
        MIMIC3: FREQUENT_ICD9,
        MIMIC4_ICD9: FREQUENT_ICD9,
        MIMIC4_ICD10: {
            "PLM-ICD": PLM_ICD,
            "DualLAAT, CNN (ICD-10 only)": CNN,
            "DualLAAT, CNN": CNN_MIXED,
            "DualLAAT (ICD-10 only)": GRU,
            "DualLAAT": GRU_MIXED,
        },
    },
    "2": {MIMIC4_ICD10: RARE, MIMIC4_ICD9: RARE},
    "4": {MIMIC4_ICD10: {"PLM-ICD": Training("plm_icd"), "DualLAAT (ICD-10 only)": GRU, "DualLAAT": GRU_MIXED}},
    "6": {
        MIMIC4_ICD10: {
            "CAML": Training("caml", codes="frequent"),
            "LAAT": Training("laat", codes="frequent"),
            "PLM-ICD": PLM_ICD,
            "DualLAAT, CNN (+ ICD-9)": CNN_MIXED,
            "DualLAAT (+ ICD-9)": GRU_MIXED,
        }
    },
}
SIZE_ROWS = {  # of Table 3
    "ICD-10 only / PLM-ICD": PLM_ICD,
    "ICD-10 only / DualLAAT, CNN": CNN,
    "ICD-10 only / DualLAAT": GRU,
    "ICD-10 + ICD-9 / PLM-ICD, one per corpus": PLM_ICD,
    "ICD-10 + ICD-9 / DualLAAT, CNN": CNN_MIXED,
    "ICD-10 + ICD-9 / DualLAAT": GRU_MIXED,
}
GAIN_ROWS = {  # of Figure 1, with the start of the names of their metrics
    "rare codes, micro F1": ("rare.micro_", {"ICD-10": CNN, "ICD-10 + ICD-9": CNN_MIXED}),
    "frequent codes, macro F1": ("frequent.macro_", {"ICD-10": GRU, "ICD-10 + ICD-9": GRU_MIXED}),
}


def columns_of(table: str) -> dict[str, str]:
    """The columns of Tables 1, 2, 4 and 6: metric -> header."""
    names = {"2": ["micro_f1", "p@8", "map"], "4": list(COLUMNS)[:5]}.get(table, list(COLUMNS))
    return {name: COLUMNS[name] for name in names}


@dataclass(frozen=True)
class SumRow(Row):
    """A row of sums over the runs of one seed: several models that are needed together."""

    def cell(self, results: Results, metric: str) -> Cell:
        """The sums; a seed with a missing run is left out."""
        seeds = dict.fromkeys(run.repeat for run in self.runs)
        by_seed = [
            [results.get(run.key, {"metrics": {}})["metrics"].get(metric) for run in self.runs if run.repeat == seed]
            for seed in seeds
        ]
        sums = tuple(sum(values) for values in by_seed if None not in values)
        return Cell(sums, len(seeds), self.paper.get(metric))


@dataclass(frozen=True)
class DeviationRow(Row):
    """A row of standard deviations over runs."""

    def cell(self, results: Results, metric: str) -> Cell:
        """The deviation; nothing for fewer than two values."""
        values = super().cell(results, metric).values
        return Cell((stdev(values),) if len(values) > 1 else (), 1, self.paper.get(metric))


def confirmed_counts(rows: Sequence[Row], columns: Mapping[str, str], results: Results) -> Iterator[str]:
    """How many numbers of Table 5 are those of the paper, and which are not."""
    for column, title in columns.items():
        cells = {" ".join(row.names): row.cell(results, column) for row in rows}
        both = {name: cell for name, cell in cells.items() if cell.mean is not None and cell.paper is not None}
        others = [name for name, cell in both.items() if not _agrees(cell)]
        if both:
            which = f"; not these: {', '.join(others)}" if 0 < len(others) < len(both) else ""
            yield f"{title}: {len(both) - len(others)} of {len(both)} numbers are those of the paper{which}."


def _agrees(cell: Cell) -> bool:
    """Whether our mean has the paper's number after rounding to its decimals."""
    assert cell.mean is not None and cell.paper is not None
    return round(cell.mean, 0 if isinstance(cell.paper, int) else 1) == cell.paper


def relative_gains(rows: Sequence[Row], results: Results) -> Iterator[str]:
    """The relative gain of each pair of rows, ours and the paper's."""
    for before, after in zip(rows[::2], rows[1::2]):
        ours = [row.cell(results, "f1").mean for row in (before, after)]
        paper = after.paper["f1"] / before.paper["f1"] - 1
        gain = f"{ours[1] / ours[0] - 1:+.0%}" if ours[0] and ours[1] is not None else "undefined"
        yield f"{before.names[0]}: relative gain by ICD-9 notes {gain}; in the paper {paper:+.0%}."


def draw_gains(rows: Sequence[Row], results: Results, figure: Figure) -> None:
    """Draws Figure 1 (c): bars without and with ICD-9 notes, ours and the paper's."""
    pairs = list(zip(rows[::2], rows[1::2]))
    panels = figure.subplots(1, len(pairs))
    for axes, pair in zip(panels, pairs):
        for shift, row in zip((-0.2, 0.2), pair):
            cell = row.cell(results, "f1")
            heights = [cell.mean or 0.0, row.paper["f1"]]
            bars = axes.bar([shift, 1 + shift], heights, 0.38, yerr=[cell.std or 0.0, 0.0], label=row.names[1])
            axes.bar_label(bars, fmt="%.3f")
        axes.set(title=pair[0].names[0], ylabel="F1", xticks=[0, 1], xticklabels=["ours", "paper"])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
