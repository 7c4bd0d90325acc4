"""Look-ups of `codes search`: how often a right code is among the first five, and the time of a search.

python benchmarks/quality/searches.py FILE... [--first 5] [--errors]

FILE: tab-separated columns set, query, codes; a code that ends with - is a prefix.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from nosology.codes import table


def is_right(code: str, right: list[str]) -> bool:
    """Whether a code is one of the right ones."""
    return any(code.startswith(item[:-1]) if item.endswith("-") else code == item for item in right)


def main() -> None:
    """Prints the share of right look-ups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--first", type=int, default=5)
    parser.add_argument("--errors", action="store_true", help="show the look-ups without a right code")
    options = parser.parse_args()
    codes = table("icd10cm")
    codes.search("heart", 1)
    for path in options.files:
        cases = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:] if line]
        right = top = 0
        times = []
        for _, query, expected in cases:
            started = time.process_time()
            hits = codes.search(query, max(20, options.first))
            times.append(time.process_time() - started)
            places = [i for i, hit in enumerate(hits) if is_right(hit.code, expected.split())]
            right += bool(places) and places[0] < options.first
            top += bool(places) and places[0] == 0
            if options.errors and not (places and places[0] < options.first):
                shown = "; ".join(f"{hit.code} {hit.matched} {hit.score}" for hit in hits[: options.first])
                print(f"{query} ({expected}; place {places[0] + 1 if places else '-'}): {shown}")
        median, slowest = (1000 * value for value in (sorted(times)[len(times) // 2], max(times)))
        print(
            f"{path.name}: {right} of {len(cases)} among the first {options.first} ({right / len(cases):.3f}),"
            f" {top} first; median {median:.0f} ms, slowest {slowest:.0f} ms"
        )


if __name__ == "__main__":
    main()
