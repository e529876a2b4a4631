-- Which lines of these queues hold something that is due, and in how many
-- milliseconds the next comes due.
select queue_id, lanes, due_in_ms from worker.look($1::integer[])
