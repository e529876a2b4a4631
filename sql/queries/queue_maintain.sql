-- One round of maintenance. Returns how many tasks were recovered, and the rest.
select (m ->> 'recovered')::integer, m from queues.maintain($1::text) m
