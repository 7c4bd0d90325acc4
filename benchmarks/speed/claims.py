"""Speed of claims on one core: python benchmarks/speed/claims.py [--notes 100]

Discharge notes of the simulated hospital, as in day_one.py, in the loop of `nosology claim --json`: each note is coded
with evidence, the rules make its claim, and the claim is written as JSON. CPU seconds; `json_ms` includes the payment
groups if the groupers are installed, and is not a part of `notes_per_second_claims`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path

from day_one import simulated_texts

from nosology.claims.claim import build_claim
from nosology.serving.coder import Coder

RESULTS = Path(__file__).parents[1] / "results" / "speed_claims.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notes", type=int, default=100)
    count = parser.parse_args().notes
    texts = simulated_texts(2 * count)
    coder = Coder.for_claims("day-one")
    for text in texts[count:]:  # loads what is loaded once
        build_claim("", text, coder.code(text), {"setting": "inpatient"}, chooser=coder.model.siblings).to_json()
    gc.freeze()  # as the command does
    texts = texts[:count]
    code_s = rules_s = json_s = 0.0
    before = time.process_time()
    for text, suggestions in zip(texts, coder.code_all(texts)):
        coded = time.process_time()
        claim = build_claim("", text, suggestions, {"setting": "inpatient"}, chooser=coder.model.siblings)
        built = time.process_time()
        json.dumps(claim.to_json(), ensure_ascii=False)
        after = time.process_time()
        code_s, rules_s, json_s = code_s + coded - before, rules_s + built - coded, json_s + after - built
        before = after
    results = {
        "notes": len(texts),
        "words_per_note": round(sum(len(text.split()) for text in texts) / len(texts)),
        "code_ms": round(1000 * code_s / len(texts), 1),
        "rules_ms": round(1000 * rules_s / len(texts), 1),
        "json_ms": round(1000 * json_s / len(texts), 1),
        "notes_per_second_codes": round(len(texts) / code_s, 1),
        "notes_per_second_claims": round(len(texts) / (code_s + rules_s), 1),
    }
    print(json.dumps(results))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
