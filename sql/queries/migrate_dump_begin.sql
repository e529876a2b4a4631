-- The schema of pgkin, for an empty database:
--   pgkin migrate --dump | psql DATABASE
-- It does what `pgkin migrate` does, in one transaction.

\set ON_ERROR_STOP on
\set QUIET on
