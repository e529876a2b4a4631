-- The provider has accepted.
select worker.channel_succeeded($1::bigint, $2::bigint, $3::jsonb, $4::real)
