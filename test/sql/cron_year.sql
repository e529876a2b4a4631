-- A year of cron times in zones whose clocks change in different ways, against
-- what the rules say when they are taken literally: every quarter of an hour of
-- the year is looked at.
\set VERBOSITY terse
set timezone = 'UTC';
create temp table zone (zone text, year int, note text);
insert into zone values
  ('UTC', 2026, 'never changes'),
  ('Asia/Kolkata', 2026, 'half an hour off'),
  ('America/New_York', 2026, 'at 2 in the morning'),
  ('Europe/Berlin', 2026, 'at 1 UTC'),
  ('Australia/Lord_Howe', 2026, 'by half an hour'),
  ('Africa/Casablanca', 2026, 'back for Ramadan'),
  ('America/Asuncion', 2023, 'at midnight'),
  ('Pacific/Apia', 2011, 'left out a whole day');
create temp table instant as
  select z.zone, x, x at time zone z.zone as local,
         max(x at time zone z.zone) over (partition by z.zone order by x) as latest
    from zone z cross join lateral generate_series(
      make_timestamptz(z.year - 1, 12, 29, 0, 0, 0), make_timestamptz(z.year + 1, 1, 3, 0, 0, 0),
      interval '15 minutes') x;
-- The first instant at which the clock shows a time of the calendar, or a later one.
create temp table calendar as
  select s.zone, t, s.x
    from (select *, lag(latest) over (partition by zone order by x) as before from instant) s
   cross join lateral generate_series(s.before + interval '15 minutes', s.latest,
                                      interval '15 minutes') t
   where s.latest > s.before;
select zone, count(*) - count(distinct local) as twice from instant group by 1 order by 1;
select zone, count(*) - count(distinct x) as skipped from calendar group by 1 order by 1;

-- What each quarter shows, by the first and by the second rule.
create temp table shown as
  select zone, elapsed, x, extract(minute from t) as minute, extract(hour from t) as hour,
         extract(day from t) as day, extract(month from t) as month, extract(dow from t) as dow
    from (select zone, true as elapsed, x, local as t from instant
          union all select zone, false, x, t from calendar) s;
create index on shown (zone, elapsed);
analyze shown;
create temp table expression (cron text);
insert into expression values
  ('*/15 0-4 * * *'), ('0 * * * *'), ('15 */3 * * *'), ('*/30 0-3 * * *'), ('*/45 1 * 3-4,9-11 sun'),
  ('30 2 * * *'), ('0,30 0-3 * * *'), ('45 1 * * *'), ('0 0 * * *'), ('45 23 30,31 * *'),
  ('15 2 29 3,10 sun'), ('0 3 1 * fri'), ('*/30 1 1 11 *'), ('*/15 2 8 3 *'), ('0 0 30 12 *');

create temp table result as
  select z.zone, e.cron, should.times as should, does.times as does
    from zone z cross join expression e
   cross join lateral worker.parse_cron(e.cron) c
   cross join lateral (
     select array_agg(distinct s.x order by s.x) as times from shown s
      where s.zone = z.zone and s.elapsed = c.elapsed
        and s.minute = any(c.minutes) and s.hour = any(c.hours) and s.month = any(c.months)
        and case when c.either_day then s.day = any(c.days) or s.dow = any(c.weekdays)
                 else s.day = any(c.days) and s.dow = any(c.weekdays) end
        and s.x > make_timestamptz(z.year, 1, 1, 0, 0, 0)
        and s.x <= make_timestamptz(z.year + 1, 1, 1, 0, 0, 0)) should
   cross join lateral (
     select array_agg(t order by t) as times
       from worker.cron_times(e.cron, z.zone, coalesce(cardinality(should.times), 0),
                              make_timestamptz(z.year, 1, 1, 0, 0, 0)) t) does;
select zone, cron, (select array_agg(t) from (select unnest(does) except select unnest(should)) d(t)) as too_many,
       (select array_agg(t) from (select unnest(should) except select unnest(does)) d(t)) as too_few
  from result where does is distinct from should;
select count(*) as years, sum(cardinality(does)) as times from result;
-- Not at all in New York that year: those minutes were skipped.
select zone, does from result where cron = '*/15 2 8 3 *' and zone in ('America/New_York', 'UTC') order by 1;

-- The same as one sees it. Skipped and twice, once each:
select t at time zone 'Europe/Berlin' as local, t
  from worker.cron_times('30 2 * * *', 'Europe/Berlin', 3, '2026-03-27 12:00+00') t;
select t at time zone 'Europe/Berlin' as local, t
  from worker.cron_times('30 2 * * *', 'Europe/Berlin', 3, '2026-10-23 12:00+00') t;
-- Two skipped times make one fire.
select t at time zone 'Europe/Berlin' as local, t
  from worker.cron_times('0,30 2 29 3 *', 'Europe/Berlin', 2, '2026-03-28 12:00+00') t;
-- By elapsed time:
select t at time zone 'Europe/Berlin' as local, t
  from worker.cron_times('0 * * * *', 'Europe/Berlin', 3, '2026-03-29 00:30+00') t;
select t at time zone 'Europe/Berlin' as local, t
  from worker.cron_times('0 * * * *', 'Europe/Berlin', 3, '2026-10-24 23:30+00') t;
