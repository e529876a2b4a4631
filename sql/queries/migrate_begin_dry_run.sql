-- Opens the transaction of a dry run: one snapshot, and nothing can be written.

begin isolation level repeatable read read only;
set local client_encoding = 'UTF8';
set local search_path = pg_catalog, pg_temp;
