-- Full page images in the WAL so far.
select wal_fpi from pg_stat_wal
