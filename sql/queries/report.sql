-- How the queues did in the last so many milliseconds, those that did or have
-- anything.
select queue, completed, succeeded, failed, retries, canceled, recovered, running, backlog,
       round(failure_rate::numeric, 3) as failure_rate
  from worker.report(make_interval(secs => least($1::bigint, 86400000) / 1000.0))
 where completed + retries + recovered + running + backlog > 0
