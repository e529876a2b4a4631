-- One migration at a time: whoever comes second waits here for as long as it
-- takes, and sees everything that the first one did. Locks on tables, on the
-- other hand, are not waited for long: whoever queues for one makes everybody
-- behind it wait too.

set local lock_timeout = 0;
do $$ begin perform pg_advisory_xact_lock(482771429742); end $$;
set local lock_timeout = '10s';
