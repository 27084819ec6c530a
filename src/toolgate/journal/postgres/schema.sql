-- The journal's tables, and the functions that write them. Names of functions end in their version, so that
-- nodes of two versions of Toolgate can run side by side. Text is compared by bytes, as SQLite does.

CREATE SCHEMA toolgate;

-- The one row that each commit locks: it makes the order of all events.
CREATE TABLE toolgate.head (
  one bool PRIMARY KEY DEFAULT true CHECK (one),
  position bigint NOT NULL,
  epoch text NOT NULL,     -- changes when something that was delivered may be missing
  server text NOT NULL,    -- identifies the server, its timeline and its last start
  unsynced bool NOT NULL   -- since that start a commit was answered before it was synced
) WITH (fillfactor = 10);

CREATE TABLE toolgate.streams (
  stream text COLLATE "C" PRIMARY KEY,
  first bigint NOT NULL,   -- the oldest number that is kept
  last bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE toolgate.events (
  position bigint PRIMARY KEY,
  stream text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  type text NOT NULL,
  at bigint NOT NULL,
  subject text COLLATE "C" NOT NULL,
  data bytea NOT NULL
);
CREATE UNIQUE INDEX events_stream ON toolgate.events (stream, seq);
CREATE INDEX events_subject ON toolgate.events (subject, seq) WHERE subject <> '';

CREATE TABLE toolgate.rows (
  collection text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  value bytea NOT NULL,
  due bigint,
  PRIMARY KEY (collection, key)
) WITH (fillfactor = 70);
CREATE INDEX rows_due ON toolgate.rows (due, collection, key) WHERE due IS NOT NULL;

CREATE TABLE toolgate.fences (
  name text COLLATE "C" PRIMARY KEY,
  epoch bigint NOT NULL
);

-- The last batch of each writer, so that one whose answer was lost is not written twice.
CREATE TABLE toolgate.writers (
  writer text COLLATE "C" PRIMARY KEY,
  batch bigint NOT NULL,
  base bigint NOT NULL,
  lasts bigint[] NOT NULL,
  at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE toolgate.meta (
  name text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);
INSERT INTO toolgate.meta VALUES ('schema', '1');

-- A new connection of a writer: returns the epoch, which is a new one if this is another server or timeline, or
-- if a server that stopped may have lost commits that were not synced.
CREATE FUNCTION toolgate.enter_v1(p_epoch text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  h toolgate.head;
  timeline text;
  started text;
BEGIN
  SELECT s.system_identifier || '/' || c.timeline_id INTO timeline
    FROM pg_control_system() s, pg_control_checkpoint() c;
  started := timeline || '/' || extract(epoch FROM pg_postmaster_start_time());
  SELECT * INTO h FROM toolgate.head FOR UPDATE;
  IF NOT FOUND THEN
    INSERT INTO toolgate.head VALUES (true, 0, p_epoch, started, false);
    RETURN p_epoch;
  END IF;
  IF h.server = started THEN
    RETURN h.epoch;
  END IF;
  IF h.unsynced OR NOT starts_with(h.server, timeline || '/') THEN
    h.epoch := p_epoch;
  END IF;
  UPDATE toolgate.head SET epoch = h.epoch, server = started, unsynced = false;
  RETURN h.epoch;
END $$;

-- One batch: all of its expectations are absolute, and it is written whole or not at all. Returns whether it was
-- written, the position before its first event, and the last number of each stream before it.
CREATE FUNCTION toolgate.commit_v1(
  p_writer text, p_batch bigint, p_durable bool, p_at bigint,
  s_name text[], s_added bigint[], s_expected bigint[],            -- streams; expected last number, or null
  e_stream text[], e_offset bigint[], e_type text[], e_subject text[], e_data bytea[],
  c_collection text[], c_key text[], c_version bigint[],           -- versions of rows that must hold
  d_collection text[], d_key text[],                               -- rows to delete
  r_collection text[], r_key text[], r_value bytea[], r_due bigint[], r_added bigint[],  -- rows to write
  f_name text[], f_least bigint[], f_epoch bigint[]                -- fences: the highest that may stand, the new one
) RETURNS TABLE (written bool, base bigint, lasts bigint[]) LANGUAGE plpgsql AS $$
DECLARE
  h bigint;
  w toolgate.writers;
  before bigint[];
  added int := coalesce(array_length(e_stream, 1), 0);
BEGIN
  IF NOT p_durable THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  SELECT position INTO h FROM toolgate.head FOR UPDATE;
  SELECT * INTO w FROM toolgate.writers WHERE writer = p_writer;
  IF w.batch = p_batch THEN  -- written before; only the answer was lost
    RETURN QUERY SELECT true, w.base, w.lasts;
    RETURN;
  END IF;
  SELECT coalesce(array_agg(coalesce(s.last, 0) ORDER BY q.i), '{}') INTO before
    FROM unnest(s_name) WITH ORDINALITY q(name, i) LEFT JOIN toolgate.streams s ON s.stream = q.name;
  IF EXISTS (SELECT FROM unnest(before, s_expected) x(last, expected) WHERE last <> expected)
    OR EXISTS (
      SELECT FROM unnest(c_collection, c_key, c_version) q(c, k, v)
        LEFT JOIN toolgate.rows r ON r.collection = q.c AND r.key = q.k WHERE coalesce(r.version, 0) <> q.v)
    OR EXISTS (
      SELECT FROM unnest(f_name, f_least) q(n, e) JOIN toolgate.fences f ON f.name = q.n WHERE f.epoch > q.e)
  THEN
    RETURN QUERY SELECT false, h, before;
    RETURN;
  END IF;
  IF added > 0 THEN
    INSERT INTO toolgate.events
      SELECT h + q.i, q.stream, coalesce(s.last, 0) + q.n, q.type, p_at, q.subject, q.data
        FROM unnest(e_stream, e_offset, e_type, e_subject, e_data) WITH ORDINALITY q(stream, n, type, subject, data, i)
        LEFT JOIN toolgate.streams s ON s.stream = q.stream;
    INSERT INTO toolgate.streams SELECT q.name, 1, q.n FROM unnest(s_name, s_added) q(name, n) WHERE q.n > 0
      ON CONFLICT (stream) DO UPDATE SET last = streams.last + excluded.last;
    UPDATE toolgate.head SET position = h + added, unsynced = unsynced OR NOT p_durable;
  ELSIF NOT p_durable THEN
    UPDATE toolgate.head SET unsynced = true WHERE NOT unsynced;
  END IF;
  DELETE FROM toolgate.rows r USING unnest(d_collection, d_key) q(c, k) WHERE r.collection = q.c AND r.key = q.k;
  INSERT INTO toolgate.rows SELECT q.c, q.k, q.n, q.v, q.d
      FROM unnest(r_collection, r_key, r_value, r_due, r_added) q(c, k, v, d, n)
    ON CONFLICT (collection, key) DO UPDATE
      SET version = rows.version + excluded.version, value = excluded.value, due = excluded.due;
  INSERT INTO toolgate.fences SELECT q.n, q.e FROM unnest(f_name, f_epoch) q(n, e)
    ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch WHERE fences.epoch < excluded.epoch;
  INSERT INTO toolgate.writers VALUES (p_writer, p_batch, h, before, now())
    ON CONFLICT (writer) DO UPDATE
      SET batch = excluded.batch, base = excluded.base, lasts = excluded.lasts, at = excluded.at;
  RETURN QUERY SELECT true, h, before;
END $$;

-- Drop a stream's events up to and including a number; returns the oldest number that is kept then.
CREATE FUNCTION toolgate.forget_v1(p_stream text, p_through bigint, p_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  s toolgate.streams;
  through bigint;
BEGIN
  PERFORM FROM toolgate.head FOR UPDATE;
  SELECT * INTO s FROM toolgate.streams WHERE stream = p_stream;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  through := least(p_through, s.last, s.first + p_most - 1);
  IF through >= s.first THEN
    DELETE FROM toolgate.events WHERE stream = p_stream AND seq <= through;
    UPDATE toolgate.streams SET first = through + 1 WHERE stream = p_stream;
    RETURN through + 1;
  END IF;
  RETURN s.first;
END $$;
