-- Deleting an account: first its files, out of a store that may fail; then its
-- personal data; and only when both are done is it deleted. Three supervisors:
--
--   accounts.account_deletion_supervisor     by hand, as docs/supervisors.md says
--     ├─ files.file_deletion                 one process per file, channel file_delete
--     └─ accounts.account_anonymization      one process, channel db_function
--
--   pgkin psql < examples/account_deletion.sql
--   select api.request_account_deletion(1);
--   pgkin work
--
-- When a file cannot be deleted, or the account not be anonymised, the deletion
-- stops with a row in accounts.account_deletion_task_failed.

create schema accounts;
create schema files;
create schema api;

create table accounts.account (
  account_id bigint generated always as identity primary key,
  name text,
  email text
);
-- What is true of an account. Only added to.
create table accounts.account_flag (
  account_id bigint not null references accounts.account,
  flag text not null check (flag in ('deleted', 'anonymized')),
  created_at timestamptz not null default worker.now(),
  primary key (account_id, flag)
);
create table files.file (
  file_id bigint generated always as identity primary key,
  account_id bigint not null references accounts.account,
  bucket text not null,
  object_key text not null
);
create index on files.file (account_id);
create table files.file_metadata (
  file_id bigint not null references files.file,
  metadata jsonb not null,
  created_at timestamptz not null default worker.now()
);

-- ---------------------------------------------------------------- one file

create function files.get_file_delete_payload(_payload jsonb) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_file files.file;
begin
  select * into v_file from files.file f where f.file_id = (_payload ->> 'file_id')::bigint;
  if not found then
    return jsonb_build_object('success', false, 'validation_failure_message', 'there is no such file');
  end if;
  return jsonb_build_object('success', true, 'payload', jsonb_build_object(
    'file_id', v_file.file_id, 'bucket', v_file.bucket, 'object_key', v_file.object_key));
end
$$;

create function files.mark_file_deleted(_subject jsonb) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into files.file_metadata (file_id, metadata)
    values ((_subject ->> 'file_id')::bigint, '{"deleted": true}');
  return jsonb_build_object('status', 'succeeded');
end
$$;
revoke all on function files.mark_file_deleted from public;

select worker.create_supervised_process('files', 'file_deletion', 'file_delete',
  '{file_id bigint references files.file}',
  p_handler => 'files.get_file_delete_payload', p_on_success => 'files.mark_file_deleted',
  p_max_attempts => 3, p_backoff_initial => '1 minute');

-- ------------------------------------------------------------ personal data

create function accounts.anonymize_account(_subject jsonb) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_account_id bigint := (_subject ->> 'account_id')::bigint;
begin
  update accounts.account a set name = null, email = null where a.account_id = v_account_id;
  insert into accounts.account_flag (account_id, flag) values (v_account_id, 'anonymized')
    on conflict do nothing;
  return jsonb_build_object('status', 'succeeded');
end
$$;
revoke all on function accounts.anonymize_account from public;

select worker.create_supervised_process('accounts', 'account_anonymization', 'db_function',
  '{account_id bigint references accounts.account}',
  p_handler => 'accounts.anonymize_account', p_max_attempts => 3,
  p_backoff_initial => '1 minute');

-- ---------------------------------------------------------------- the whole

create table accounts.account_deletion_task (
  account_deletion_task_id bigint generated always as identity primary key,
  account_id bigint not null unique references accounts.account,
  created_at timestamptz not null default worker.now()
);
create table accounts.account_deletion_task_succeeded (
  account_deletion_task_id bigint primary key references accounts.account_deletion_task,
  created_at timestamptz not null default worker.now()
);
create table accounts.account_deletion_task_failed (
  account_deletion_task_id bigint primary key references accounts.account_deletion_task,
  error_message text not null,
  created_at timestamptz not null default worker.now()
);

-- It sends nothing itself: it starts processes, and looks whether they are done.
create function accounts.account_deletion_supervisor(_payload jsonb) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  c_check_every constant interval := '1 minute';
  c_max_runs constant integer := 10000;
  v_task_id bigint := (_payload ->> 'account_deletion_task_id')::bigint;
  v_run_count integer := coalesce((_payload ->> 'run_count')::integer, 0) + 1;
  v_account_id bigint;
  v_files bigint;
  v_deleted bigint;
  v_stuck bigint;
  v_error text;
begin
  -- Input.
  if v_task_id is null then
    return jsonb_build_object('status', 'missing_account_deletion_task_id');
  end if;
  select t.account_id into v_account_id from accounts.account_deletion_task t
   where t.account_deletion_task_id = v_task_id for update;
  if not found then
    return jsonb_build_object('status', 'account_deletion_task_not_found');
  elsif exists (select from accounts.account_deletion_task_succeeded s
                 where s.account_deletion_task_id = v_task_id) then
    return jsonb_build_object('status', 'succeeded');
  elsif exists (select from accounts.account_deletion_task_failed f
                 where f.account_deletion_task_id = v_task_id) then
    return jsonb_build_object('status', 'failed');
  end if;
  perform files.kickoff_file_deletion(f.file_id) from files.file f
    left join files.file_deletion_task t using (file_id)
   where f.account_id = v_account_id and t.file_id is null
   order by f.file_id;
  select count(*), count(*) filter (where files.has_file_deletion_succeeded_attempt(t.file_deletion_task_id)),
         count(*) filter (where files.is_file_deletion_stuck(f.file_id))
    into v_files, v_deleted, v_stuck
    from files.file f join files.file_deletion_task t using (file_id)
   where f.account_id = v_account_id;

  -- Compute, and output.
  if v_files = v_deleted then
    if exists (select from accounts.account_anonymization_task t
                where t.account_id = v_account_id
                  and accounts.has_account_anonymization_succeeded_attempt(
                        t.account_anonymization_task_id)) then
      insert into accounts.account_deletion_task_succeeded values (v_task_id);
      return jsonb_build_object('status', 'succeeded');
    end if;
    perform accounts.kickoff_account_anonymization(v_account_id);
  end if;
  v_error := case
    when v_stuck > 0 then format('%s of %s file(s) cannot be deleted', v_stuck, v_files)
    when accounts.is_account_anonymization_stuck(v_account_id) then 'the account cannot be anonymized'
    when v_run_count > c_max_runs then 'it took too long' end;
  if v_error is not null then
    insert into accounts.account_deletion_task_failed values (v_task_id, v_error);
    return jsonb_build_object('status', 'failed');
  end if;
  perform worker.enqueue('db_function', _payload || jsonb_build_object('run_count', v_run_count),
                         p_scheduled_at => worker.now() + c_check_every,
                         p_dedup_key => 'accounts.account_deletion/' || v_task_id);
  return jsonb_build_object('status', 'succeeded');
end
$$;

create function accounts.kickoff_account_deletion(
  _account_id bigint, _scheduled_at timestamptz default null, out validation_failure_message text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_task_id bigint;
begin
  if not exists (select from accounts.account a where a.account_id = _account_id) then
    validation_failure_message := 'there is no such account';
    return;
  end if;
  insert into accounts.account_deletion_task (account_id) values (_account_id)
    on conflict (account_id) do nothing;
  select t.account_deletion_task_id into strict v_task_id
    from accounts.account_deletion_task t where t.account_id = _account_id;
  perform worker.enqueue('db_function',
    jsonb_build_object('task_type', 'db_function',
                       'db_function', 'accounts.account_deletion_supervisor',
                       'account_deletion_task_id', v_task_id),
    p_scheduled_at => coalesce(_scheduled_at, worker.now()),
    p_dedup_key => 'accounts.account_deletion/' || v_task_id);
end
$$;

create function api.request_account_deletion(
  _account_id bigint, out validation_failure_message text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  validation_failure_message := accounts.kickoff_account_deletion(_account_id);
  if validation_failure_message is null then
    insert into accounts.account_flag (account_id, flag) values (_account_id, 'deleted')
      on conflict do nothing;
  end if;
end
$$;

revoke all on function accounts.account_deletion_supervisor, accounts.kickoff_account_deletion,
  api.request_account_deletion from public;
grant execute on function accounts.account_deletion_supervisor to worker_service_user;
select worker.allow_function('accounts.account_deletion_supervisor');

insert into accounts.account (name, email) values ('Ada', 'ada@example.org');
insert into files.file (account_id, bucket, object_key)
  values (1, 'recordings', '1/a.ogg'), (1, 'recordings', '1/b.ogg');
