"""Settings of the study of Saha Roy et al. (2024): coders, corpora, code sets, and the parts of PLANT in Table 8."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, field_validator

from nosology.core import ConfigError
from nosology.corpora.corpus import Corpus
from nosology.reproduce import runner
from nosology.reproduce.plant_runs import FEW, RARE
from nosology.reproduce.runner import check_splits
from nosology.training.recipe_settings import LabelSettings

VERSIONS = {"MIMIC-III": "icd9", "MIMIC-IV": "icd10"}
CODE_SETS = {  # table -> the codes that a coder learns
    "4": LabelSettings(top_k=50),
    "5": LabelSettings(max_notes=RARE - 1, top_k=50),
    "6": LabelSettings(max_notes=FEW),
}


@dataclass(frozen=True)
class PlantPart:
    """A part of PLANT in Table 8. `variants` has PLANT with the part first. Pairs are for MIMIC-III and MIMIC-IV."""

    variants: dict[str, list[str]]  # name -> settings
    epochs: tuple[int, int] = (0, 0)  # 0: as in the recipe
    train_notes: tuple[int, int] = (0, 0)  # 0: all
    trains_encoder: bool = False


# Section 5: inattention k and learning-rate factor of the ranker in MIMIC-III and MIMIC-IV.
K, RANKER_RATE = (56, 8), (0.5, 0.3333)
FROZEN = ["rates.encoder=0", "rates.gradual=false", "model.direction=forward"]  # section 5, except unfreezing and A.9
WINDOW = ["model.inattention_scope=window", "model.inattention={k}"]
STATELESS = [*WINDOW, "model.stateful=false"]
PARTS = {
    "inattention": PlantPart(
        {
            "with inattention": WINDOW,
            "without inattention": ["model.inattention=0"],
            "inattention per note": ["model.inattention_scope=note", "model.inattention={k}"],
            "no static attention": [*WINDOW, "model.static=false"],
            "no planted attention": [*WINDOW, "model.planted=false"],
        },
        (5, 5),
        (22_525, 49_579),
    ),
    "state": PlantPart(
        {
            "stateful": WINDOW,
            "stateless": STATELESS,
            "stateless, last window": [*STATELESS, "model.last_windows=1"],
            "first 512 words": [*WINDOW, "model.max_words=512"],
        },
        (3, 7),
        (0, 49_579),
    ),
    "learning rates": PlantPart(
        {"+ disc": [*WINDOW, "rates.ranker={rate}"], "- disc": [*WINDOW, "rates.ranker=1"]}, (1, 7), (0, 49_579)
    ),
    "unfreezing": PlantPart(
        {
            "gradual unfreezing": [*WINDOW, "model.direction=forward", "rates.gradual=true"],
            "full unfreezing": [*WINDOW, "model.direction=forward", "rates.gradual=false"],
        },
        (10, 10),
        (0, 49_579),
        trains_encoder=True,
    ),
    "direction": PlantPart(
        {"both directions": ["model.direction=both"], "forward": ["model.direction=forward"]}, trains_encoder=True
    ),
}
SMALL: dict[str, Any] = {
    "seeds": 1,
    "patients": 40,
    "coders": {"PLANT": "plant", "LAAT": "laat", "CAML": "caml", "linear": "linear"},
    "train_notes": [20, 50_000],
    "explained": 10,
    "recipe": {
        "plant": {
            "labels": {"min_notes": 2},
            "model": {"size": 48, "hidden": 48, "layers": 1},
            "language": {"training": {"epochs": 1}},
            "ranker": {"epochs": 10, "steps": 50},
            "training": {"epochs": 5},
        },
        "laat": {"labels": {"min_notes": 2}, "model": {"hidden": 32}, "training": {"epochs": 3}},
        "caml": {"labels": {"min_notes": 2}, "training": {"epochs": 3}},
        "linear": {"labels": {"min_notes": 2}},
    },
}


# Figure 4: the numbers of the paper's text, among those of the authors' program, for MIMIC-III and MIMIC-IV.
TRAIN_NOTES = (
    [25, 136, 235, 750, 1342, 1578, 1756, 4111, 9623, 22_525, 49_579],
    [25, 136, 750, 1090, 1756, 2743, 4111, 9623, 10_337, 12_902, 22_525, 49_579],
)
CODERS = {"PLANT": "plant-paper", "LAAT": "laat-paper", "CAML": "caml-paper", "linear": "linear"}


class PlantStudy(runner.StudySettings):
    """The coders with their recipes, the train notes in Figure 4, and what is explained in Table 9."""

    coders: dict[str, str] = Field(CODERS)  # changes to CODERS; an empty recipe leaves a coder out
    # Figure 4, of each corpus; empty: TRAIN_NOTES. A number that exceeds the train notes means all of them.
    train_notes: list[Annotated[int, Field(ge=1)]] = Field([])
    explained: int = Field(20, ge=1)  # test notes in Table 9
    examples: list[str] = Field(["518.81", "530.81", "J96.00", "K21.9"])  # codes of Table 9; ICD-10: our choice
    # Tables 4 to 6. False: notes without a code of the set are negatives in training; true: left out, as in the
    # paper's datasets. Test notes without such a code are left out in both.
    only_coded_notes: bool = False

    @field_validator("coders")
    @classmethod
    def _with_defaults(cls, coders: dict[str, str]) -> dict[str, str]:
        if not coders.get("PLANT", "PLANT"):
            raise ValueError("must have a recipe for PLANT")
        return {name: recipe for name, recipe in (CODERS | coders).items() if recipe}

    def recipes(self) -> dict[str, tuple[str, str]]:
        """The recipe of each coder."""
        return {f"coders.{coder}": (name, "plant" if coder == "PLANT" else "") for coder, name in self.coders.items()}

    def run_settings(self, tables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """The settings of all runs of a coder, and those with which the encoder of PLANT is frozen."""
        yield from ((name, ["seed=0"]) for name in self.coders.values())
        frozen = {"5": FROZEN[:1], "8": FROZEN}
        yield from ((self.coders["PLANT"], frozen[table]) for table in tables if table in frozen)


@dataclass(frozen=True)
class Source:
    """A corpus, and the corpus of the paper that it stands for."""

    paper: str
    corpus: Corpus

    @property
    def name(self) -> str:
        """The corpus in headings."""
        return self.corpus.folder.name

    @property
    def version(self) -> str:
        """The ICD version of most codes."""
        return VERSIONS[self.paper]

    def of_pair(self, pair: tuple[Any, Any]) -> Any:
        """The value of a pair for MIMIC-III and MIMIC-IV."""
        return pair[list(VERSIONS).index(self.paper)]


def sources_of(corpora: Sequence[Corpus]) -> list[Source]:
    """One corpus, or one with ICD-9 and one with ICD-10 codes, MIMIC-III first; of a mixed corpus most codes count."""
    sources = []
    for corpus in corpora:
        check_splits(corpus)
        systems = corpus.manifest["counts"]["systems"]
        codes = {
            paper: sum(count["occurrences"] for system, count in systems.items() if system.startswith(version))
            for paper, version in VERSIONS.items()
        }
        sources.append(Source(max(VERSIONS, key=codes.__getitem__), corpus))
    if not 1 <= len({source.paper for source in sources}) == len(sources):
        got = ", ".join(VERSIONS[source.paper] for source in sources) or "none"
        raise ConfigError(f"one corpus, or one in icd9 and one in icd10, must be given; got {got}")
    return sorted(sources, key=lambda source: list(VERSIONS).index(source.paper))
