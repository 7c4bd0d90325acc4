-- The tables of nosology 0.1 in SQLite, as `sqlite3 workbench.db .dump` writes them.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	user_id INTEGER, 
	what VARCHAR(40) NOT NULL, 
	note_id INTEGER, 
	address VARCHAR(60), 
	CONSTRAINT pk_audit PRIMARY KEY (id), 
	CONSTRAINT fk_audit_user_id FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE TABLE batches (
	id INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	user_id INTEGER, 
	created DOUBLE NOT NULL, 
	finished DOUBLE, 
	status VARCHAR(10) NOT NULL, 
	total INTEGER NOT NULL, 
	CONSTRAINT pk_batches PRIMARY KEY (id), 
	CONSTRAINT fk_batches_user_id FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE TABLE coders (
	id INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	kind VARCHAR(40) NOT NULL, 
	release VARCHAR(10), 
	about JSON NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_coders PRIMARY KEY (id), 
	CONSTRAINT uq_coders_digest UNIQUE (digest)
);
CREATE TABLE codings (
	id INTEGER NOT NULL, 
	note_id INTEGER NOT NULL, 
	coder_id INTEGER NOT NULL, 
	made DOUBLE NOT NULL, 
	suggestions JSON NOT NULL, 
	profile JSON NOT NULL, 
	CONSTRAINT pk_codings PRIMARY KEY (id), 
	CONSTRAINT fk_codings_coder_id FOREIGN KEY(coder_id) REFERENCES coders (id), 
	CONSTRAINT fk_codings_note_id FOREIGN KEY(note_id) REFERENCES notes (id)
);
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	note_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	user_id INTEGER, 
	at DOUBLE NOT NULL, 
	action VARCHAR(12) NOT NULL, 
	details JSON NOT NULL, 
	CONSTRAINT pk_decisions PRIMARY KEY (id), 
	CONSTRAINT fk_decisions_note_id FOREIGN KEY(note_id) REFERENCES notes (id), 
	CONSTRAINT fk_decisions_user_id FOREIGN KEY(user_id) REFERENCES users (id), 
	CONSTRAINT uq_decisions_note_id UNIQUE (note_id, version)
);
CREATE TABLE notes (
	id INTEGER NOT NULL, 
	ref VARCHAR(200) NOT NULL, 
	patient VARCHAR(200), 
	site VARCHAR(200), 
	lang VARCHAR(20), 
	encounter JSON NOT NULL, 
	batch_id INTEGER, 
	received DOUBLE NOT NULL, 
	coding VARCHAR(10) NOT NULL, 
	status VARCHAR(12) NOT NULL, 
	version INTEGER NOT NULL, 
	assignee_id INTEGER, 
	confidence DOUBLE, 
	codes INTEGER NOT NULL, 
	finished DOUBLE, 
	CONSTRAINT pk_notes PRIMARY KEY (id), 
	CONSTRAINT fk_notes_assignee_id FOREIGN KEY(assignee_id) REFERENCES users (id), 
	CONSTRAINT fk_notes_batch_id FOREIGN KEY(batch_id) REFERENCES batches (id), 
	CONSTRAINT uq_notes_ref UNIQUE (ref)
);
CREATE TABLE sessions (
	id VARCHAR(64) NOT NULL, 
	user_id INTEGER NOT NULL, 
	csrf VARCHAR(64) NOT NULL, 
	created DOUBLE NOT NULL, 
	seen DOUBLE NOT NULL, 
	CONSTRAINT pk_sessions PRIMARY KEY (id), 
	CONSTRAINT fk_sessions_user_id FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE TABLE settings (
	name VARCHAR(40) NOT NULL, 
	value JSON NOT NULL, 
	CONSTRAINT pk_settings PRIMARY KEY (name)
);
CREATE TABLE texts (
	note_id INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	length INTEGER NOT NULL, 
	CONSTRAINT pk_texts PRIMARY KEY (note_id), 
	CONSTRAINT fk_texts_note_id FOREIGN KEY(note_id) REFERENCES notes (id)
);
CREATE TABLE tokens (
	id INTEGER NOT NULL, 
	user_id INTEGER NOT NULL, 
	name VARCHAR(80) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	created DOUBLE NOT NULL, 
	revoked BOOLEAN NOT NULL, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_user_id FOREIGN KEY(user_id) REFERENCES users (id), 
	CONSTRAINT uq_tokens_hash UNIQUE (hash)
);
CREATE TABLE users (
	id INTEGER NOT NULL, 
	name VARCHAR(80) NOT NULL, 
	role VARCHAR(10) NOT NULL, 
	password VARCHAR(200), 
	subject VARCHAR(300), 
	must_change BOOLEAN NOT NULL, 
	disabled BOOLEAN NOT NULL, 
	failures INTEGER NOT NULL, 
	locked_until DOUBLE NOT NULL, 
	created DOUBLE NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT uq_users_name UNIQUE (name), 
	CONSTRAINT uq_users_subject UNIQUE (subject)
);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_audit_note_id ON audit (note_id);
CREATE INDEX ix_notes_assignee_id ON notes (assignee_id);
CREATE INDEX ix_notes_batch_id ON notes (batch_id);
CREATE INDEX ix_notes_coding ON notes (coding);
CREATE INDEX ix_notes_status_received ON notes (status, received);
CREATE INDEX ix_notes_confidence ON notes (confidence);
CREATE INDEX ix_notes_site ON notes (site);
CREATE INDEX ix_codings_note_id ON codings (note_id);
CREATE TRIGGER decisions_no_update BEFORE UPDATE ON decisions BEGIN SELECT RAISE(ABORT, 'decisions is append-only'); END;
CREATE TRIGGER decisions_no_delete BEFORE DELETE ON decisions BEGIN SELECT RAISE(ABORT, 'decisions is append-only'); END;
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END;
CREATE TRIGGER codings_no_update BEFORE UPDATE ON codings BEGIN SELECT RAISE(ABORT, 'codings is append-only'); END;
CREATE TRIGGER codings_no_delete BEFORE DELETE ON codings BEGIN SELECT RAISE(ABORT, 'codings is append-only'); END;
CREATE TRIGGER texts_no_update BEFORE UPDATE ON texts BEGIN SELECT RAISE(ABORT, 'texts is append-only'); END;
CREATE TRIGGER texts_no_delete BEFORE DELETE ON texts BEGIN SELECT RAISE(ABORT, 'texts is append-only'); END;
COMMIT;
