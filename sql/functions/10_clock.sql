-- The one clock. A test owns time by setting worker.fake_now.
--
-- STABLE although it reads the wall clock: one reading per statement, so that
-- it can bound an index scan. PL/pgSQL because a SQL function that is not
-- inlined is planned anew at every call. No SET clause: it would cost more
-- than the function.

create or replace function worker.now() returns timestamptz
language plpgsql stable parallel safe
as $$
declare
  v_fake text := pg_catalog.current_setting('worker.fake_now', true);
begin
  if v_fake is null or v_fake operator(pg_catalog.=) '' then
    return pg_catalog.clock_timestamp();
  end if;
  return v_fake::pg_catalog.timestamptz;
end
$$;

comment on function worker.now() is
  'the time of the worker: the wall clock, or the setting worker.fake_now';
