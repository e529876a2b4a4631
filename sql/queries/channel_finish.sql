-- The provider was called before; only its handler is due.
select worker.channel_finish($1::bigint, $2::bigint)
