-- An idle reader: one snapshot, kept.
set idle_in_transaction_session_timeout = 0;
begin isolation level repeatable read;
select count(*) from worker.queue_registry;
