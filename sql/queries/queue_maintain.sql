select queues.maintain($1::text)
