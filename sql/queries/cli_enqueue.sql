-- $1 command, $2 payload, $3 priority, $4 time or $5 milliseconds from now,
-- $6 dedup key, $7 merge, $8 group key, $9 order key
select worker.enqueue(
  $1::text, $2::jsonb, $3::bigint,
  coalesce($4::timestamptz, worker.now() + $5::bigint * interval '1 millisecond'),
  p_dedup_key => $6::text, p_merge => coalesce($7::text, 'keep'),
  p_group_key => $8::text, p_order_key => $9::text)
