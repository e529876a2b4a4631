-- E-mail and text messages, sent until they are: attempts, backoff, a maximum.
--
--   pgkin psql < examples/send_email.sql
--   select comms.send_email(1);
--   PGKIN_SMTP_URL=smtp://localhost:25 pgkin work
--
-- The two processes are written by worker.create_supervised_process; look at
-- what it wrote with \d comms.* and \sf comms.send_email_supervisor.

create schema comms;

-- What is to be sent. The application owns these.
create table comms.email_message (
  email_message_id bigint generated always as identity primary key,
  from_address text not null,
  to_address text not null,
  subject text not null,
  text text,
  html text
);
create table comms.sms_message (
  sms_message_id bigint generated always as identity primary key,
  to_number text not null,
  body text not null
);

-- Before handlers: the provider's payload, out of the attempt's payload, which
-- has the columns of the root row.

create function comms.get_email_payload(_payload jsonb) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_message comms.email_message;
begin
  select * into v_message from comms.email_message m
   where m.email_message_id = (_payload ->> 'email_message_id')::bigint;
  if not found then
    return jsonb_build_object('success', false, 'validation_failure_message', 'the message is gone');
  end if;
  return jsonb_build_object('success', true, 'payload', jsonb_strip_nulls(jsonb_build_object(
    -- The same at every attempt, so that a repetition can be told.
    'message_id', format('email-%s@comms.example', v_message.email_message_id),
    'from_address', v_message.from_address, 'to_address', v_message.to_address,
    'subject', v_message.subject, 'text', v_message.text, 'html', v_message.html)));
end
$$;

create function comms.get_sms_payload(_payload jsonb) returns jsonb
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_message comms.sms_message;
begin
  select * into v_message from comms.sms_message m
   where m.sms_message_id = (_payload ->> 'sms_message_id')::bigint;
  if not found then
    return jsonb_build_object('success', false, 'validation_failure_message', 'the message is gone');
  end if;
  return jsonb_build_object('success', true, 'payload', jsonb_build_object(
    'to_number', v_message.to_number, 'body', v_message.body));
end
$$;

select worker.create_supervised_process('comms', 'send_email', 'email',
  '{email_message_id bigint references comms.email_message}',
  p_handler => 'comms.get_email_payload', p_max_attempts => 4, p_backoff_initial => '1 minute');

select worker.create_supervised_process('comms', 'send_sms', 'sms',
  '{sms_message_id bigint references comms.sms_message}',
  p_handler => 'comms.get_sms_payload', p_max_attempts => 3, p_backoff_initial => '30 seconds');

-- What the application calls, in its own transaction.
create function comms.send_email(_email_message_id bigint) returns text
language sql security definer
set search_path = pg_catalog, pg_temp
as $$ select comms.kickoff_send_email(_email_message_id) $$;

create function comms.send_sms(_sms_message_id bigint) returns text
language sql security definer
set search_path = pg_catalog, pg_temp
as $$ select comms.kickoff_send_sms(_sms_message_id) $$;

revoke all on function comms.send_email, comms.send_sms from public;

insert into comms.email_message (from_address, to_address, subject, text, html)
  values ('shop@example.org', 'customer@example.org', 'Your order',
          'It is on its way.', '<p>It is <b>on its way</b>.</p>');
insert into comms.sms_message (to_number, body) values ('+491701234567', 'It is on its way.');
