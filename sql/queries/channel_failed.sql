-- The provider call failed; $4: trying again is of no use.
select worker.channel_failed($1::bigint, $2::bigint, $3::text, $4::boolean, $5::real)
