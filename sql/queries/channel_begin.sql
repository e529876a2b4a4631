-- What to do about a task of a channel, before its provider is called.
select worker.channel_begin($1::bigint, $2::bigint)
