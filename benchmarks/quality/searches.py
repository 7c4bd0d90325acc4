"""Look-ups as coders speak: how often a right code is first or among the first five, and the time of a search.

python benchmarks/quality/searches.py FILE... [--first 5] [--errors]

FILE: tab-separated columns set, query, codes, or set, query, date, codes. A code that ends with - is a prefix. With a
date, diagnoses and procedures of that date are searched, else ICD-10-CM. A choice of ICD-10-PCS is right if all its
codes are.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

from nosology.claims.code_search import FoundLine, search_codes


def is_right(line: FoundLine, right: list[str]) -> bool:
    """Whether a line is one of the right codes, or offers only such codes."""
    fixed = line.code.partition("_")[0]  # the characters that a choice has decided
    if not line.billable and not line.step:
        return False
    return any(fixed.startswith(item[:-1]) if item.endswith("-") else line.code == item for item in right)


def main() -> None:
    """Prints the share of right look-ups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=5)
    parser.add_argument("--errors", action="store_true", help="show the look-ups whose first code is not right")
    options = parser.parse_args()
    for path in options.files:
        with path.open(encoding="utf-8", newline="") as file:
            cases = list(csv.DictReader(file, delimiter="\t"))
        days = sorted({case.get("date", "") for case in cases})
        for day in days:  # load the tables
            search_codes("heart", "icd10pcs" if day else "icd10cm", day)
            search_codes("laparoscopic cholecystectmy", "all" if day else "icd10cm", day)
        right = top = 0
        times = []
        for case in cases:
            day, expected = case.get("date", ""), case["codes"].split()
            started = time.process_time()
            hits = search_codes(case["query"], "all" if day else "icd10cm", day, max(20, options.first))
            times.append(time.process_time() - started)
            places = [i for i, hit in enumerate(hits) if is_right(hit, expected)]
            right += bool(places) and places[0] < options.first
            top += bool(places) and places[0] == 0
            if options.errors and not (places and places[0] == 0):
                shown = "; ".join(f"{hit.code} {hit.matched} {hit.score}" for hit in hits[: options.first])
                print(f"{case['query']} ({case['codes']}; place {places[0] + 1 if places else '-'}): {shown}")
        times.sort()
        median, high, slowest = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.95, 1.0))
        print(
            f"{path.name}: {top} of {len(cases)} first ({top / len(cases):.3f}),"
            f" {right} among the first {options.first} ({right / len(cases):.3f});"
            f" CPU time median {median:.0f} ms, p95 {high:.0f} ms, slowest {slowest:.0f} ms"
        )


if __name__ == "__main__":
    main()
