select version, name, checksum
from worker.schema_migration
order by version
