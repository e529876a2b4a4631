-- Frees the slots that nobody holds any more.
select case when n.freed = 0 then 'ok' else 'warn' end,
       case when n.freed = 0 then 'every used slot belongs to running work'
            else n.freed || ' had leaked, and are free again' end,
       'finish and recovery should have freed them: please report it'
  from (select coalesce(worker.reconcile_slots()::bigint, 0) as freed) n
