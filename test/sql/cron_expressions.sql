-- Cron expressions: what they mean, and how bad ones are refused.
\set VERBOSITY terse
set timezone = 'UTC';
create function pg_temp.fields(text) returns text language sql as $$
  select c.minutes::text || ' ' || c.hours::text || ' ' || c.days::text || ' ' || c.months::text
         || ' ' || c.weekdays::text || case when c.either_day then ' either' else '' end
         || case when c.elapsed then ' elapsed' else '' end
    from worker.parse_cron($1) c
$$;

-- Values, ranges, steps, lists, names; 7 is Sunday, and a week may end with it.
select pg_temp.fields('0 12 1 1 0');
select pg_temp.fields('0,30,15,30 8-17/3 1-3,30 jan-MAR,12 fri-sun');
select pg_temp.fields('  */20	*/8  */10 */4  */3 ');
select pg_temp.fields('5-55/25 0 1 6 7'), pg_temp.fields('1 1 1 1 1-7');
select w, pg_temp.fields(w) from unnest('{@hourly,@daily,@midnight,@weekly,@monthly,@yearly,@annually,@Daily}'::text[]) w;

-- Day of month or day of week, when both are given; a starred one leaves it to
-- the other, and still has to fit itself.
create function pg_temp.days(text, int) returns text language sql as $$
  select string_agg(to_char(t, 'Dy DD Mon YYYY'), ', ' order by t)
    from worker.cron_times($1, 'UTC', $2, '2026-01-01 12:00+00') t
$$;
select pg_temp.days('0 0 13 * fri', 6);
select pg_temp.days('0 0 13 * *', 3), pg_temp.days('0 0 * * fri', 3);
select pg_temp.days('0 0 */2 * mon', 4);
select pg_temp.days('0 0 1-7 * */7', 3);
-- The ends of months, leap days, and leap days that are Sundays.
select pg_temp.days('0 0 31 * *', 4), pg_temp.days('0 0 29 2 *', 3);
select pg_temp.days('0 0 29 2 */7', 2);
-- Strictly after, to the minute.
select * from worker.cron_times('*/5 * * * *', 'UTC', 3, '2026-06-01 10:05:00+00');
select * from worker.cron_times('*/5 * * * *', 'UTC', 1, '2026-06-01 10:04:59.999999+00');
select * from worker.cron_times('59 23 31 12 *', 'Asia/Kolkata', 1, '2026-06-01 00:00+00');
-- Without a time: from now on.
set worker.fake_now = '2030-05-05 05:05:05+00';
select * from worker.cron_times('@hourly') limit 2;
reset worker.fake_now;
-- The time zone of the session changes nothing.
set timezone = 'America/New_York';
select t at time zone 'UTC' from worker.cron_times('0 */6 * * *', 'UTC', 6, '2026-03-07 20:00+00') t;
set timezone = 'UTC';

-- Refused, in one line.
create function pg_temp.why(text) returns text language plpgsql as $$
begin
  perform worker.parse_cron($1);
  return 'taken';
exception when invalid_parameter_value then
  return sqlerrm;
end $$;
select pg_temp.why(e) from unnest('{"","* * * *","* * * * * *","60 * * * *","* 24 * * *",
  "* * 0 * *","* * 32 * *","* * * 13 *","* * * 0 *","* * * * 8","* * * foo *","* * * * monday",
  "5-1 * * * *","*/0 * * * *","5/10 * * * *","1- * * * *","1,,2 * * * *","-1 * * * *","*-5 * * * *",
  "? * * * *","* * L * *","0 0 30 2 *","0 0 31 4,6,9,11 *","@reboot","@every 5m","99999999999 * * * *",
  "0 0 31 2 mon","* * * mon jan"}'::text[]) e;
select worker.parse_cron(null);
select worker.cron_times('@daily', 'Mars/Olympus');
select worker.cron_times('@daily', null);
