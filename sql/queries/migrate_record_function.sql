insert into worker.schema_function (name, checksum)
values ($1::text, $2::text)
on conflict (name) do update
  set checksum = excluded.checksum, applied_at = excluded.applied_at
