"""Rows of many threads in one transaction: under a rush, one wait for the disk serves all that have come meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Table, insert
from sqlalchemy.exc import SQLAlchemyError

from nosology.workbench.store.engine import writing


class _Ticket:
    """A row on its way; error: what kept it from being written."""

    def __init__(self, row: Mapping[str, Any]):
        self.row, self.done = row, False
        self.error: BaseException | None = None


class Together:
    """Adds rows to a table; `add` returns when its row is kept, as if it had been written alone.

    Whoever gets the turn writes every row that is waiting; the others find theirs written when their turn comes.
    """

    def __init__(self, engine: Engine, table: Table):
        self._engine, self._table = engine, table
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._waiting: list[_Ticket] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Keeps a row; raises what the store raised for it."""
        ticket = _Ticket(row)
        with self._lock:
            self._waiting.append(ticket)
        with self._turn:
            if not ticket.done:
                self._write()
        if ticket.error is not None:
            raise ticket.error

    def _write(self) -> None:
        with self._lock:
            tickets, self._waiting = self._waiting, []
        try:
            self._insert([ticket.row for ticket in tickets])
        except SQLAlchemyError:  # one row may be at fault: each alone, so that it spoils no other
            for ticket in tickets:
                try:
                    self._insert([ticket.row])
                except SQLAlchemyError as error:
                    ticket.error = error
        for ticket in tickets:
            ticket.done = True

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with writing(self._engine) as connection:
            connection.execute(insert(self._table), [dict(row) for row in rows])


_made: WeakKeyDictionary[Engine, dict[str, Together]] = WeakKeyDictionary()
_making = threading.Lock()


def together(engine: Engine, table: Table) -> Together:
    """The one writer of a table of a store."""
    with _making:
        return _made.setdefault(engine, {}).setdefault(table.name, Together(engine, table))
