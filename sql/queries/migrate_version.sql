select version, name from worker.schema_version()
