insert into worker.schema_migration (version, name, checksum, applied_by)
values ($1::int, $2::text, $3::text, $4::text)
