select name, checksum
from worker.schema_function
order by name
