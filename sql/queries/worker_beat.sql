-- False: this worker was given up, and its leases with it.
select worker.beat($1::bigint)
