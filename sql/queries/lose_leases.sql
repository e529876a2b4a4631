-- Gives up leases whose ends the server does not take.
select worker.lose_leases($1::bigint, $2::bigint[])
