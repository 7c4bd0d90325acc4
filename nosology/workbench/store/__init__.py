"""Where notes, decisions and users are kept: SQLite for one desk, PostgreSQL for a department."""
