"""The long tail of the simulated hospital at the size of MIMIC-IV's ICD-10 part: codes only, no text.

python benchmarks/quality/simulation_tail.py --admissions 122000
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from nosology.core import Code
from nosology.core.files import write_json
from nosology.corpora.simulate.clinic import Clinic

RESULT = Path(__file__).parents[1] / "results" / "quality_simulation_tail.json"


def main() -> None:
    """Prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--admissions", type=int, default=122_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    clinic, counts, sizes, patient = Clinic((2016, 2019)), Counter[Code](), [], 0
    while len(sizes) < arguments.admissions:
        for admission in clinic.patient(arguments.seed, patient).admissions:
            codes = {code for condition in admission.conditions for code in condition.codes}
            sizes.append(len(codes))
            counts.update(codes)
        patient += 1
    seen = np.array(sorted(counts.values(), reverse=True))
    table = {
        "admissions": len(sizes),
        "patients": patient,
        "codes_per_note": round(float(np.mean(sizes)), 2),
        "codes_per_note_std": round(float(np.std(sizes)), 2),
        "distinct_codes": len(seen),
        "procedures_among_them": sum(code.system == "icd10pcs" for code in counts),
        "codes_seen_10_times": int((seen >= 10).sum()),
        "share_of_codes_seen_fewer_than_10_times": round(float((seen < 10).mean()), 3),
        "share_of_all_occurrences_of_the_top_50": round(float(seen[:50].sum() / seen.sum()), 3),
    }
    for name, value in table.items():
        print(f"{name:42} {value:>10}")
    write_json(arguments.out, table)


if __name__ == "__main__":
    main()
