-- $1: count no further than this
with counted as (
  select o.* from worker.queue_overview($1::integer) o)
select c.queue,
       case when c.pending > $1::integer then '>' || $1 else c.pending::text end as pending,
       case when c.scheduled > $1::integer then '>' || $1 else c.scheduled::text end as scheduled,
       case when c.processing > $1::integer then '>' || $1 else c.processing::text end as processing,
       case when c.waiting > $1::integer then '>' || $1 else c.waiting::text end as waiting,
       case when c.failed_last_hour > $1::integer then '>' || $1
            else c.failed_last_hour::text end as failed,
       extract(epoch from worker.now() - c.oldest_due) as oldest,
       case when c.paused then 'paused' || coalesce(' until ' || date_trunc('second', c.paused_until), '')
            end as state,
       (row_to_json(c)::jsonb || jsonb_build_object('counted_to', $1::integer))::text as json
  from counted c
 order by c.queue
