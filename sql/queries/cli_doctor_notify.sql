-- Above one half workers are no longer told of new tasks; when it is full, every
-- transaction that notifies fails.
select case when u.used > 0.5 then 'fail' when u.used > 0.1 then 'warn' else 'ok' end,
       'the notification queue is ' || round((u.used * 100)::numeric, 1) || ' % full',
       'a session that listens has been in a transaction for long: see pg_stat_activity'
  from (select pg_catalog.pg_notification_queue_usage() as used) u
