select current_database() as database, split_part(current_setting('server_version'), ' ', 1) as server_version,
       v.version as schema_version,
       json_build_object('database', current_database(),
                         'server_version', split_part(current_setting('server_version'), ' ', 1),
                         'schema_version', v.version, 'now', worker.now()) as json
  from worker.schema_version() v
