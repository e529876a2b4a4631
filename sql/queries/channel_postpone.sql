-- The handler seems to end the session: what the provider said is only kept.
-- $3: it has accepted; null: it is kept already.
select worker.channel_postpone($1::bigint, $2::bigint, $3::boolean, $4::jsonb, $5::text)
