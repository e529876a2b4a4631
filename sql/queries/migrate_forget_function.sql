delete from worker.schema_function where name = $1::text
