-- Roles and grants. The migration runner calls worker.apply_roles() at the end
-- of every run, so that roles that could not be made the first time (no
-- CREATEROLE) get their grants as soon as they exist.

-- For those who may not read tables.
create or replace function worker.schema_version(out version integer, out name text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  select m.version, m.name into version, name
    from worker.schema_migration m order by m.version desc limit 1;
end
$$;

-- Who may execute what. A row is the whole of a grant: nothing else is granted,
-- and PUBLIC has nothing.
create or replace function worker.role_grants()
returns table (role text, routine text)
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select r.role, f.routine
    from (values
      -- Those who list and count.
      ('{worker_monitor,worker_admin}'::text[],
       '{worker.find_tasks,worker.queue_overview}'::text[]),
      -- What a view calls is called by who reads it.
      ('{worker_monitor,worker_admin}', '{queues.slot_layout}'),
      -- Those who ask for work. The second line is what these call.
      ('{worker_enqueuer,worker_service_user,worker_admin}'::text[],
       '{queues.enqueue,queues.enqueue_many,worker.enqueue,worker.enqueue_many,worker.spawn,
         worker.spawn_task,worker.current_task_id,worker.now,worker.schema_version,
         worker.status,worker.add_task,worker.hold_pending,worker.replace_pending,worker.merge_call,
         worker.unite}'::text[]),
      -- Supervisors, who also run it, and who sets them up.
      ('{worker_enqueuer,worker_service_user,worker_admin}', '{worker.has_ended}'),
      ('{worker_admin}',
       '{worker.allow_function,worker.disallow_function,worker.require_allowed,
         worker.supervised_process_sql,worker.create_supervised_process,
         worker.read_root_column,worker.read_user_function,worker.fill_template,
         worker.supervised_template,worker.supervisor_template}'),
      -- Those who run what a payload names, and the steps around a provider call.
      ('{worker_service_user,worker_admin}',
       '{worker.run_db_function,internal.is_allowed,internal.function_name,
         internal.why_not_run,worker.channel_begin,worker.channel_succeeded,
         worker.channel_failed,worker.channel_finish,worker.channel_open,worker.channel_end,
         worker.channel_note,worker.channel_settle,worker.channel_refuse,worker.channel_put_off,
         worker.channel_postpone,
         worker.run_channel_handler,worker.read_envelope,worker.handler_tries}'),
      -- Those who run it. The last lines are what worker.process_tasks calls.
      ('{worker_service_user,worker_admin}',
       '{queues.dequeue_next_available_task,queues.complete_task,queues.fail_task,
         queues.exchange,queues.extend_leases,queues.maintain,queues.rotate_queue,
         queues.remove_expired,internal.run_function,
         worker.register_worker,worker.beat,worker.set_listening,worker.stop_worker,worker.recover_dead_workers,
         worker.reset_abandoned_processing_tasks,worker.process_tasks,worker.drain,
         worker.has_pending_children,worker.has_failed_siblings,
         worker.complete_parent_if_ready,
         worker.lease_sql_tasks,worker.refuse_sql_tasks,worker.finish_sql_tasks,
         worker.release_sql_tasks,worker.after_hooks_due,worker.take_after_hook,
         worker.record_hook_error,worker.run_hook,worker.run_handler,worker.run_batch,
         worker.run_after_hooks,worker.wake_others,worker.queues_to_run,worker.largest_group,
         worker.check_parents,worker.drop_own_leases,worker.in_transaction_block,
         worker.session_state,worker.reset_session,worker.changed_settings,
         worker.left_behind,worker.work_registry,worker.look,worker.look_at,
         worker.publish_loop,worker.run_fiber,worker.stop_overdue,worker.cancel_requests,
         worker.release_unknown,worker.lose_leases,worker.give_up,worker.snooze}'),
      ('{worker_service_user,worker_admin}', '{worker.fire_schedules,worker.report_progress}'),
      -- Those who look.
      ('{worker_monitor,worker_admin}',
       '{worker.explain_task,worker.has_pending_children,worker.has_failed_siblings,
         worker.now,worker.schema_version,worker.status}'),
      -- Those who decide.
      ('{worker_admin}',
       '{worker.register_command,worker.call_text,worker.cancel,worker.assert_enqueued,
         worker.retry,worker.retry_failed,worker.discard,worker.discard_failed,
         worker.cancel_all,worker.cancel_all_in_pages,worker.cancel_page,worker.last_task_id,
         worker.pause,worker.resume,worker.pause_command,worker.resume_command,
         worker.unblock,worker.reconcile_slots}'),
      -- Progress and waiting.
      ('{worker_enqueuer,worker_service_user,worker_admin}', '{worker.progress}'),
      ('{worker_enqueuer,worker_service_user,worker_monitor,worker_admin}',
       '{worker.progress_of,worker.wait}'),
      -- Reports.
      ('{worker_monitor,worker_service_user,worker_admin}',
       '{worker.report,worker.recent_events}'),
      -- Schedules.
      ('{worker_monitor,worker_admin}', '{worker.cron_times,worker.schedule_times}'),
      ('{worker_admin}',
       '{worker.schedule,worker.unschedule,worker.enable_schedule,worker.disable_schedule,
         worker.run_schedule_now}')
    ) g(roles, routines)
   cross join unnest(g.roles) r(role)
   cross join unnest(g.routines) f(routine)
$$;

create or replace procedure worker.apply_roles()
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  v_role text;
  v_may_create boolean;
  v_grant record;
begin
  revoke all on schema queues, worker, internal from public;
  revoke all on all tables in schema queues, worker, internal from public;
  revoke all on all routines in schema queues, worker, internal from public;

  select rolsuper or rolcreaterole into v_may_create
    from pg_roles where rolname = current_user;
  foreach v_role in array array['worker_service_user', 'worker_enqueuer',
                                'worker_monitor', 'worker_admin']
  loop
    if not exists (select from pg_roles where rolname = v_role) then
      if not v_may_create then
        raise warning 'role % does not exist and % may not create it; its grants are skipped',
          v_role, current_user
          using hint = 'create the role as an administrator and run pgkin migrate again';
        continue;
      end if;
      begin
        execute format('create role %I nologin', v_role);
      exception when duplicate_object or unique_violation then
        null;  -- another database of this cluster is being migrated too
      end;
    end if;
    execute format('grant usage on schema queues, worker, internal to %I', v_role);
    for v_grant in
      select p.oid::regprocedure::text as routine, case p.prokind when 'p' then 'procedure'
               else 'function' end as kind
        from worker.role_grants() g
        join pg_proc p on p.oid = any(array(
          select q.oid from pg_proc q join pg_namespace n on n.oid = q.pronamespace
           where n.nspname || '.' || q.proname = g.routine))
       where g.role = v_role
    loop
      execute format('grant execute on %s %s to %I', v_grant.kind, v_grant.routine, v_role);
    end loop;
    if v_role in ('worker_monitor', 'worker_admin') then
      execute format('grant select on all tables in schema queues, worker to %I', v_role);
    end if;
    if v_role = 'worker_admin' then
      execute format('grant insert, update, delete on worker.queue_registry,
                      worker.command_registry to %I', v_role);
    end if;
    if v_role in ('worker_enqueuer', 'worker_admin') then
      execute format('grant insert on queues.staging to %I', v_role);
      execute format('grant insert on worker.tasks to %I', v_role);
    end if;
  end loop;
end
$$;
