"""The privacy budget of a site over all runs: a file at the site that records what each train note has been used for.

Every round of training is recorded before it starts, with its noise, sampling rate and steps, for all notes that it
uses. So neither a killed process nor a lost server nor a new run makes a site forget what it has spent. Epsilon is
composed per note: notes that came later have spent less. A round without noise has an infinite epsilon.

The file is an SQLite database. It has no text: a note is the keyed hash of its text, and the key is in the file. A note
whose text is changed is another note. Who deletes the file resets the budget.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from nosology.core import DataError, FederationError
from nosology.corpora.corpus import Corpus
from nosology.federated.federation_settings import FederatedRecipe, FederatedStatisticsRecipe
from nosology.federated.privacy.dp_sgd import PrivacyAccountant
from nosology.federated.privacy.site_noise import training_steps

_SCHEMA = """
CREATE TABLE ledger (format INTEGER NOT NULL, key BLOB NOT NULL);
CREATE TABLE groups (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, notes INTEGER NOT NULL);
CREATE TABLE members (
    note BLOB NOT NULL, grp INTEGER NOT NULL REFERENCES groups, PRIMARY KEY (note, grp)) WITHOUT ROWID;
CREATE INDEX members_of_group ON members (grp);
CREATE TABLE charges (
    id INTEGER PRIMARY KEY, moment TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
    grp INTEGER NOT NULL REFERENCES groups, noise REAL NOT NULL, rate REAL NOT NULL, steps INTEGER NOT NULL);
"""
_FORMAT, _KEY_BYTES = 1, 32
# for each note of a group, the groups that it is in; each combination once
_COMBINATIONS = """
SELECT DISTINCT joined FROM (SELECT group_concat(grp) AS joined FROM (
    SELECT other.note, other.grp FROM members one JOIN members other USING (note)
    WHERE one.grp = ? ORDER BY other.note, other.grp) GROUP BY note)
"""


@dataclass(frozen=True)
class Charge:
    """What a round costs a note: steps of Gaussian noise on a Poisson sample. noise 0: nothing protects the note."""

    noise: float  # multiplier
    rate: float
    steps: int

    @classmethod
    def of(cls, recipe: FederatedRecipe, notes: int, *, knows_peers: bool = False) -> Charge:
        """The charge of a round at a site with so many train notes.

        With `record_noise` the site adds noise for each note. With `secure` and `site_noise` the sites add it to their
        sum, for each hospital and so for each note. Noise that the server adds does not count, nor does that of counts
        of words, which is not calibrated to a note. A site adds its part of the noise; the other parts count only if
        the site knows the keys of its peers: a server could invent sites that add none.
        """
        federation = recipe.federation
        privacy = federation.privacy
        if privacy.record_noise:
            steps = training_steps(recipe, notes)
            return cls(privacy.record_noise, 1 / steps, steps * federation.local_epochs)
        counted = isinstance(recipe, FederatedStatisticsRecipe)
        return cls(privacy.site_noise if privacy.secure and knows_peers and not counted else 0.0, 1.0, 1)


class BudgetLedger:
    """The ledger file of a site. epsilon: the largest that a note may spend; 0: no limit, but all is recorded."""

    def __init__(self, path: Path, epsilon: float = 0.0, delta: float = 1e-5):
        self.path, self.epsilon, self.delta = path, epsilon, delta

    def charge(self, texts: NoteTexts, charge: Charge, run: str, number: int) -> float:
        """The epsilon that the notes have spent after a round; FederationError if it would exceed the limit.

        The round is on the disk when this returns.
        """
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            group = self._group(database, texts)
            spent = self._check(database, group, charge)
            values = (datetime.now(UTC).isoformat(timespec="seconds"), run, number, group)
            row = (*values, charge.noise, charge.rate, charge.steps)
            database.execute(
                "INSERT INTO charges (moment, run, round, grp, noise, rate, steps) VALUES (?, ?, ?, ?, ?, ?, ?)", row
            )
            database.execute("COMMIT")
        return spent

    def check(self, texts: NoteTexts, charge: Charge) -> float:
        """As `charge`, without recording anything."""
        with self._open() as database:
            database.execute("BEGIN")
            return self._check(database, self._group(database, texts), charge)  # closing rolls back

    def spent(self) -> list[tuple[int, int, float]]:
        """For each set of notes that was trained together: notes, rounds, largest epsilon of a note."""
        with self._open() as database:
            groups = database.execute(
                "SELECT grp, notes, COUNT(*) FROM charges JOIN groups ON groups.id = grp GROUP BY grp ORDER BY grp"
            ).fetchall()
            return [(notes, rounds, self._epsilon(database, group)) for group, notes, rounds in groups]

    def _check(self, database: sqlite3.Connection, group: int, charge: Charge) -> float:
        after = self._epsilon(database, group, charge)
        if self.epsilon and not after <= self.epsilon:
            before = self._epsilon(database, group)
            raise FederationError(
                f"the site policy allows an epsilon of {self.epsilon:g} at delta {self.delta:g} for a note over all"
                f" runs; {before:.3g} is spent, and after this round it would be {after:.3g}"
            )
        return after

    def _epsilon(self, database: sqlite3.Connection, group: int, more: Charge | None = None) -> float:
        """The largest epsilon of the notes of a group, with one more round of the group."""
        largest = 0.0
        for (joined,) in database.execute(_COMBINATIONS, (group,)).fetchall():
            marks = ",".join("?" * (joined.count(",") + 1))
            rows = database.execute(
                f"SELECT noise, rate, SUM(steps) FROM charges WHERE grp IN ({marks}) GROUP BY noise, rate",
                [int(number) for number in joined.split(",")],
            ).fetchall()
            rows += [(more.noise, more.rate, more.steps)] if more else []
            largest = max(largest, _composed_epsilon(rows, self.delta))
        return largest

    def _group(self, database: sqlite3.Connection, texts: NoteTexts) -> int:
        """The number of a set of notes, which is stored at its first use."""
        (key,) = database.execute("SELECT key FROM ledger").fetchone()
        notes = texts.digests(bytes(key))
        digest = hashlib.sha256(b"".join(notes)).digest()
        if found := database.execute("SELECT id FROM groups WHERE digest = ?", (digest,)).fetchone():
            return int(found[0])
        added = database.execute("INSERT INTO groups (digest, notes) VALUES (?, ?)", (digest, len(notes)))
        database.executemany("INSERT INTO members VALUES (?, ?)", ((note, added.lastrowid) for note in notes))
        assert added.lastrowid is not None
        return added.lastrowid

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The database, created if there is none; DataError if it is damaged: a budget is never forgotten silently."""
        try:
            if not self.path.exists():
                _create(self.path)
            with _connect(self.path) as database:
                if database.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                    raise sqlite3.DatabaseError("damaged")
                if database.execute("SELECT format, length(key) FROM ledger").fetchall() != [(_FORMAT, _KEY_BYTES)]:
                    raise DataError(f"{self.path} is no privacy ledger of this version")
                yield database
        except (sqlite3.Error, OSError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"the privacy ledger {self.path} cannot be read or written: restore it; without it the site does not"
                " train"
            ) from error


@contextlib.contextmanager
def _connect(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = FULL")
        yield database


def _create(path: Path) -> None:
    """Creates a ledger at once: a file without tables is never a new ledger, but one that has lost its content."""
    with tempfile.TemporaryDirectory(prefix=".ledger-", dir=path.parent) as folder:
        new = Path(folder) / path.name
        new.touch(mode=0o600)
        with _connect(new) as database:
            database.executescript(_SCHEMA)
            database.execute("INSERT INTO ledger VALUES (?, ?)", (_FORMAT, secrets.token_bytes(_KEY_BYTES)))
        with contextlib.suppress(FileExistsError):  # of another process of the site
            os.link(new, path)


class NoteTexts:
    """The train notes of corpora, as sorted keyed hashes of their texts. They are read once."""

    def __init__(self, folders: Iterable[Path]):
        self.folders = tuple(folders)
        self._digests: dict[bytes, list[bytes]] = {}

    def digests(self, key: bytes) -> list[bytes]:
        """The hashes of the notes, sorted and each once."""
        if key not in self._digests:
            texts = (note.text for folder in self.folders for note in Corpus.open(folder).notes("train"))
            hashes = {hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256")[:16] for text in texts}
            self._digests[key] = sorted(hashes)
        return self._digests[key]


@cache
def train_texts(corpus: str) -> NoteTexts:
    """The train notes of corpus folders, separated by commas."""
    return NoteTexts(Path(folder.strip()) for folder in corpus.split(","))


def _composed_epsilon(rows: Iterable[tuple[float, float, int]], delta: float) -> float:
    accountant = PrivacyAccountant()
    for noise, rate, steps in rows:
        if not noise:
            return math.inf
        accountant.add(noise, rate, int(steps))
    return accountant.epsilon(delta)
