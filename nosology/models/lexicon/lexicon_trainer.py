"""Training of the lexicon coder on coded notes, by cross-validation.

A phrase is always right on the notes from which it was learned. Therefore the notes are divided into folds. The
mentions of a fold are found with phrases of the other folds; the mention classifier is trained on these held-out
mentions. In the same way the code classifier is trained on held-out scores of mentions, and the threshold is tuned on
held-out scores of codes. Dev notes are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from nosology.codes.history import is_valid
from nosology.codes.lookup import table
from nosology.codes.releases import releases
from nosology.core import Code, ConfigError, Note
from nosology.core.label_space import LabelSpace
from nosology.core.progress import activity
from nosology.evaluation import tune_threshold
from nosology.evaluation.decision import UNTUNED, Decision
from nosology.models.lexicon.cross_validation import CrossValidation, MentionExamples
from nosology.models.lexicon.learned_phrases import is_separate
from nosology.models.lexicon.lexicon_model import Lexicon
from nosology.models.lexicon.lexicon_settings import CORPUS, CodeSetSettings, ContextSettings, LexiconRecipe
from nosology.models.lexicon.lexicon_siblings import train_chooser
from nosology.models.lexicon.mention_features import code_table
from nosology.models.lexicon.scorers import TrainedScorer
from nosology.models.train import CoderTrainer, TrainedCoder
from nosology.text.context import CATEGORIES
from nosology.training.examples import Examples, union
from nosology.training.recipe_settings import LabelSettings

_MIN_MENTIONS = 20  # in a context, to learn how it changes the probability
_CUTS = np.arange(0.1, 0.75, 0.05)  # candidates for the least probability of evidence


class LexiconTrainer(CoderTrainer[LexiconRecipe]):
    """Learns phrases, a mention classifier and a code classifier from coded notes."""

    @activity("training the lexicon", spinner=False)
    def train(self, train_notes: Examples, dev_notes: Examples, refit: bool) -> TrainedCoder:
        """The trained lexicon and its threshold; refit: dev notes are train notes too."""
        recipe = self.recipe
        check_lexicon(recipe)
        notes = list((union(train_notes, dev_notes) if refit else train_notes).notes())
        recipe = recipe.model_copy(update={"codes": resolve_code_set(recipe.codes, notes)})
        systems = recipe.labels.systems or sorted({code.system for note in notes for code in note.codes})
        validation = CrossValidation(recipe, systems, notes)
        examples = validation.mentions()
        mention_scores, mention_classifier = validation.mention_scores(examples)
        gold = [{code for code in note.codes if code.system in systems} for note in validation.scored_notes]
        codes = [item.table.codes for item in examples]
        code_targets = [np.array([code in true for code in of_note], dtype=bool) for of_note, true in zip(codes, gold)]
        code_rows = [code_table(item.table, scores) for item, scores in zip(examples, mention_scores)]
        scored_codes = validation.code_scores(code_rows, code_targets)
        threshold = _threshold(recipe, gold, codes, scored_codes.scores)
        evidence_from = 0.0
        if validation.has_evidence:
            gold_spans = _gold_spans(validation.scored_notes, systems)
            evidence_from = _evidence_threshold(examples, mention_scores, scored_codes.scores, threshold, gold_spans)
        scorer = TrainedScorer(validation.learned[-1], mention_classifier, scored_codes.classifier, evidence_from)
        rare = _rare_contexts(recipe.context, examples)
        recipe = recipe.model_copy(update={"context": recipe.context.model_copy(update=rare)})
        report = {
            "tuned_on": f"{recipe.learn.folds} held-out folds of the train notes",
            "contexts_as_on_day_one": sorted(rare),
            "evidence": validation.has_evidence,
            "phrases": len(scorer.learned.index),
            "folds": recipe.learn.folds,
            "edition": recipe.codes.model_dump(mode="json", include={"release", "seventh"}),
        }
        lexicon = Lexicon.build(recipe, scorer)
        siblings, accuracy = train_chooser(lexicon, validation, examples, mention_scores, scored_codes.scores)
        report["siblings"] = accuracy
        return TrainedCoder(replace(lexicon, siblings=siblings), Decision(threshold), report)


def check_lexicon(recipe: LexiconRecipe) -> None:
    """Refuses settings that a lexicon does not use."""
    default = LexiconRecipe(labels=LabelSettings(systems=recipe.labels.systems))
    if recipe.labels != default.labels:
        raise ConfigError("a lexicon knows every code: of labels only systems can be set")
    threshold = recipe.decision.threshold
    if (threshold != "global" and not isinstance(threshold, float)) or recipe.decision.at_least_one:
        raise ConfigError(
            f"a lexicon's decision.threshold must be global or a number, without at_least_one; got {threshold}"
        )


def _rare_contexts(context: ContextSettings, examples: Sequence[MentionExamples]) -> dict[str, str]:
    return rare_contexts(context, sum((item.marked for item in examples), np.zeros(len(CATEGORIES))))


def rare_contexts(context: ContextSettings, marked: np.ndarray) -> dict[str, str]:
    """Contexts that were to be learned but have too few mentions, with their default policy; marked: their mentions."""
    counts = dict(zip(CATEGORIES, marked.tolist()))
    default = ContextSettings()
    return {
        name: getattr(default, name) for name, policy in context if policy == "learn" and counts[name] < _MIN_MENTIONS
    }


def _threshold(
    recipe: LexiconRecipe, gold: list[set[Code]], codes: Sequence[Sequence[Code]], code_scores: Sequence[np.ndarray]
) -> float:
    """The threshold of the recipe, else the best one on held-out scores of the codes of each note."""
    if isinstance(recipe.decision.threshold, float):
        return recipe.decision.threshold
    labels = LabelSpace(sorted(set().union(*codes, *gold)))
    bounds = np.concatenate([[0], np.cumsum([len(of_note) for of_note in codes])])
    columns = [labels.column(code) for of_note in codes for code in of_note]
    values = np.concatenate([*code_scores, np.zeros(0)]).astype(np.float32)
    scores = sparse.csr_matrix((values, columns, bounds), shape=(len(codes), len(labels)))
    if not labels.encode(gold).multiply(scores).count_nonzero():
        return UNTUNED
    return max(0.05, tune_threshold(labels, gold, scores))


def _gold_spans(notes: Sequence[Note], systems: Sequence[str]) -> int:
    """The number of different evidence spans of notes."""
    return sum(
        len({(span.code, span.start, span.end) for span in note.evidence if span.code.system in systems})
        for note in notes
    )


def _evidence_threshold(
    examples: Sequence[MentionExamples],
    mention_scores: Sequence[np.ndarray],
    code_scores: Sequence[np.ndarray],
    threshold: float,
    gold_spans: int,
) -> float:
    """The least probability of a shown mention that maximises the F1 of evidence spans over accepted codes."""
    hits, shown_total = np.zeros(len(_CUTS)), np.zeros(len(_CUTS))
    for item, scores, probabilities in zip(examples, mention_scores, code_scores):
        for probability, true, first in _shown_mentions(item, scores, probabilities >= threshold):
            shown = (probability >= _CUTS) | first
            shown_total += shown
            hits += true * shown
    return float(_CUTS[np.argmax(2 * hits / np.maximum(shown_total + gold_spans, 1))])


def _shown_mentions(item: MentionExamples, scores: np.ndarray, accepted: np.ndarray) -> list[tuple[float, bool, bool]]:
    """The mentions that `Lexicon.evidence` could show for accepted codes: probability, whether the pair is true, and
    whether it is the best of its code, which is always shown."""
    taken: dict[int, list[tuple[int, int]]] = {}
    shown = []
    for row in np.argsort(-scores, kind="stable").tolist():
        code, mention = int(item.table.code[row]), item.table.mentions[item.table.mention[row]]
        spans = taken.setdefault(code, [])
        if accepted[code] and is_separate(mention.start, mention.end, spans):
            shown.append((float(scores[row]), bool(item.target[row]), not spans))
            spans.append((mention.start, mention.end))
    return shown


def resolve_code_set(settings: CodeSetSettings, notes: Sequence[Note]) -> CodeSetSettings:
    """The settings, with `corpus` replaced by the release and the seventh characters that the notes use."""
    return resolve_counts(settings, Counter(code for note in notes for code in note.codes))


def resolve_counts(settings: CodeSetSettings, code_notes: Mapping[Code, int]) -> CodeSetSettings:
    """The same, for notes with these numbers of notes of each code."""
    counts = Counter({code: n for code, n in code_notes.items() if code.system == "icd10cm"})
    release = _release(counts) if settings.release == CORPUS else settings.release
    seventh = _seventh(counts, release) if settings.seventh == CORPUS else settings.seventh
    return settings.model_copy(update={"release": release, "seventh": seventh})


def _release(counts: Counter[Code]) -> str:
    """The release in which most codes are valid; the newest on ties."""
    all_releases = releases("icd10cm")
    valid_codes = {release: sum(n for code, n in counts.items() if is_valid(code, release)) for release in all_releases}
    return max(all_releases, key=lambda release: (valid_codes[release], release))


def _seventh(counts: Counter[Code], release: str | None) -> bool:
    """Whether most codes that require a seventh character have one; True without such codes."""
    whole = cut = 0
    lines = table("icd10cm", release)
    for code, n in counts.items():
        if len(code.code) == len("S72.001A") and code.code in lines:
            whole += n
        elif code.code[0] in "STVWXY" and not lines.billable(code.code):
            cut += n
    return whole >= cut
