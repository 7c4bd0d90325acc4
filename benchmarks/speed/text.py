"""Notes per second on one core for each function of nosology.text, on notes that look like discharge summaries."""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

from nosology.core.files import write_json
from nosology.text import BENCHMARK, clean, context_of, contexts, mark_negated, sections, sentences, tokenize

RESULT = Path(__file__).parents[1] / "results" / "speed_text.json"
REQUIRED = {"clean": 200, "contexts": 30}

HEADINGS = (
    "Chief Complaint:",
    "History of Present Illness:",
    "Past Medical History:",
    "Social History:",
    "Family History:",
    "Physical Exam:",
    "Pertinent Results:",
    "Brief Hospital Course:",
    "Discharge Medications:",
    "Discharge Diagnosis:",
    "Discharge Instructions:",
)
SENTENCES = (
    "Mr. ___ is a 65 y.o. man with h/o {a} and {b} who presents with {c} for 3 days.",
    "He denies {a}, {b}, nausea, vomiting or {c}.",
    "No evidence of {a} or {b}, but there is mild {c} on the CT from ___.",
    "VS: T 98.6 BP 132/78 HR 88 RR 18 O2 sat 97% RA",
    "1. {a}\n2. {b}, stable on home regimen\n3. {c}",
    "# {a}: Pt was started on furosemide 40 mg IV b.i.d. with good effect; {b} was ruled out.",
    "Mother with {a} at 62, father died of {b}.",
    "___ 05:45AM BLOOD WBC-7.9 RBC-3.82* Hgb-11.2* Hct-34.1* MCV-89 Plt ___",
    "Possible {a} vs. {b}; cannot exclude {c}.",
    "Acetaminophen 650 mg PO Q6H:PRN pain\nMetoprolol Succinate XL 25 mg PO DAILY",
    "Please call your doctor or return to the ED if you develop {a}, {b} or {c}.",
    "The patient tolerated the procedure well and was transferred to the floor in stable condition; {a} improved\n"
    "with treatment and {b} remained at baseline.",
)
CONDITIONS = (
    *(
        "chest pain",
        "dyspnea on exertion",
        "pneumonia",
        "atrial fibrillation",
        "CHF",
        "hypertension",
        "acute renal failure",
    ),
    *(
        "diabetes mellitus type 2",
        "COPD exacerbation",
        "cellulitis",
        "deep vein thrombosis",
        "GI bleed",
        "fever",
        "cough",
    ),
)


def note(generator: random.Random, words: int) -> str:
    """A random note of about this many words."""
    lines: list[str] = []
    count = 0
    while count < words:
        if generator.random() < 0.12:
            lines.append("\n" + generator.choice(HEADINGS))
        a, b, c = generator.sample(CONDITIONS, 3)
        lines.append(generator.choice(SENTENCES).format(a=a, b=b, c=c))
        count += len(lines[-1].split())
    return "\n".join(lines)


def rate(function: Callable[[str], object], notes: list[str]) -> float:
    """Notes per second of CPU time, the best of three passes."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for text in notes:
            function(text)
        best = min(best, time.process_time() - start)
    return len(notes) / best


def main() -> None:
    """Measures, prints a table, writes the result; exits with 1 where a required speed is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, default=200)
    parser.add_argument("--words", type=int, default=1500)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    generator = random.Random(0)
    notes = [note(generator, arguments.words) for _ in range(arguments.notes)]
    spans = [(place, place + 10) for place in range(0, 8000, 100)]
    functions: dict[str, Callable[[str], object]] = {
        "clean": lambda text: clean(text, BENCHMARK),
        "tokens": tokenize,
        "sentences": sentences,
        "sections": sections,
        "contexts": contexts,
        "context_of": lambda text: context_of(text, spans),
        "mark_negated": lambda text: mark_negated(text, tokenize(text)),
    }
    contexts("")  # reads the rules
    rates = {name: round(rate(function, notes)) for name, function in functions.items()}
    for name, speed in rates.items():
        required = f"at least {REQUIRED[name]}" if name in REQUIRED else ""
        print(f"{name:<14}{speed:>7,} notes/s   {required}")
    made_by = {
        "words": arguments.words,
        "notes": arguments.notes,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    write_json(arguments.out, {"notes_per_second": rates, **made_by})
    if any(rates[name] < least for name, least in REQUIRED.items()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
