-- Registering queues and commands: what is checked, and that plain INSERT, UPDATE
-- and DELETE are the same as the functions.
\set VERBOSITY terse
\pset null '-'
create schema app;
create schema "Odd.Schema";
create procedure app.good(payload jsonb) language plpgsql as 'begin end';
create procedure app.leaves(payload jsonb, inout result jsonb) language plpgsql as 'begin result := ''1''; end';
create procedure app.gives(payload jsonb, out result jsonb) language plpgsql as 'begin result := ''2''; end';
create function app.answers(payload jsonb) returns jsonb language sql as 'select ''3''::jsonb';
create procedure app.bare() language plpgsql as 'begin end';
create function app.number(payload jsonb) returns int language sql as 'select 1';
create function app.many(payload jsonb) returns setof jsonb language sql as 'select payload';
create procedure app.two(payload jsonb, extra text) language plpgsql as 'begin end';
create procedure app.texty(payload text) language plpgsql as 'begin end';
create procedure app.changes(inout payload jsonb) language plpgsql as 'begin end';
create procedure app.pair(payload jsonb, inout result text) language plpgsql as 'begin end';
create function app.fires() returns trigger language plpgsql as 'begin return null; end';
create procedure "Odd.Schema"."A ""handler"".x"(payload jsonb) language plpgsql as
  'begin raise notice ''odd''; end';

-- Handlers: all forms that work, and what is called.
select worker.register_command('good', 'q', 'app.good');
select worker.register_command('leaves', 'q', 'app.leaves');
select worker.register_command('gives', 'q', 'app.gives');
select worker.register_command('answers', 'q', 'app.answers');
select worker.register_command('odd', 'q', '"Odd.Schema"."A ""handler"".x"');
select worker.register_command('folded', 'q', 'APP.Good');
select command, queue, kind, handler_call from worker.command_registry where queue = 'q' order by command;
select worker.enqueue(c) is not null as enqueued from unnest('{good,leaves,gives,answers,odd,folded}'::text[]) c;
call worker.process_tasks(p_queue => 'q');
select command, state, result from worker.tasks order by id;

-- And what does not.
select worker.register_command('bad', 'q', 'app.missing');
select worker.register_command('bad', 'q', 'missing.good');
select worker.register_command('bad', 'q', 'good');
select worker.register_command('bad', 'q', 'db.app.good');
select worker.register_command('bad', 'q', 'app.good; drop table x');
select worker.register_command('bad', 'q', 'app.good(jsonb)');
select worker.register_command('bad', 'q', '');
select worker.register_command('bad', 'q', 'Odd.Schema."A ""handler"".x"');
select worker.register_command('bad', 'q', 'app.bare');
select worker.register_command('bad', 'q', 'app.number');
select worker.register_command('bad', 'q', 'app.many');
select worker.register_command('bad', 'q', 'app.two');
select worker.register_command('bad', 'q', 'app.texty');
select worker.register_command('bad', 'q', 'app.changes');
select worker.register_command('bad', 'q', 'app.pair');
select worker.register_command('bad', 'q', 'pg_catalog.jsonb_pretty');
select worker.register_command('bad', 'q', 'pg_catalog.to_jsonb');
select worker.register_command('bad', 'q', 'information_schema._pg_truetypid');
select worker.register_command('bad', 'q');
select worker.register_command('bad', 'q', p_kind => 'magic');
select worker.register_command('bad name', 'q', 'app.good');
select worker.register_command(null, 'q', 'app.good');
select worker.register_command('bad', null, 'app.good');
select worker.register_command('bad', 'q', 'app.good', p_max_attempts => 0);
select worker.register_command('bad', 'No Such', 'app.good');
select count(*) as bad_ones from worker.command_registry where command ~ 'bad';
select queue from worker.queue_registry order by queue;

-- Hooks.
select worker.register_command('hooked', 'q', 'app.good', p_before_procedure => 'app.bare', p_after_procedure => 'app.good');
select before_call, after_call from worker.command_registry where command = 'hooked';
select worker.register_command('hooked', 'q', 'app.good', p_before_procedure => 'app.missing');
select worker.register_command('hooked', 'q', 'app.good', p_before_procedure => 'pg_catalog.now');
select worker.register_command('hooked', 'q', 'app.good', p_after_procedure => 'app.leaves');
select worker.register_command('hooked', 'q', 'app.good', p_after_procedure => 'app.fires');
select worker.register_command('hooked', 'q', 'app.good', p_after_procedure => 'bare');

-- Rights are those of the role that registers: on the routine and on its schema.
create role worker_registrar;
grant usage on schema worker to worker_registrar;
grant execute on function worker.register_command, worker.call_text to worker_registrar;
grant select, insert, update, delete on worker.queue_registry, worker.command_registry to worker_registrar;
set role worker_registrar;
select worker.register_command('theirs', 'q', 'app.good');
reset role;
grant usage on schema app to worker_registrar;
revoke execute on procedure app.good from public;
set role worker_registrar;
select worker.register_command('theirs', 'q', 'app.good');
reset role;
grant execute on procedure app.good to worker_registrar;
set role worker_registrar;
select worker.register_command('theirs', 'q', 'app.good');
select worker.register_command('theirs', 'q', 'app.good', p_after_procedure => 'app.good');
reset role;

-- The handler is looked at again when it is called.
select worker.register_command('fragile', 'fragile', 'app.bare2') ;
create procedure app.bare2(payload jsonb) language plpgsql as 'begin end';
select worker.register_command('fragile', 'fragile', 'app.bare2');
drop procedure app.bare2(jsonb);
select worker.enqueue('fragile') is not null as enqueued;
call worker.process_tasks(p_queue => 'fragile');
select state, split_part(error, E'\n', 1) as error from worker.tasks where command = 'fragile';

-- Kinds that SQL does not run need no handler here.
select worker.register_command('call_home', 'q', p_kind => 'http', p_url => 'http://127.0.0.1/');
select kind, handler_call from worker.command_registry where command in ('call_home', 'db_function') order by 1;
insert into worker.command_registry (command, queue, kind) values ('no_handler', 'q', 'procedure');

-- Plain statements do the same.
insert into worker.queue_registry (queue) values ('plain');
select top_concurrency, default_concurrency from worker.queue_registry where queue = 'plain';
insert into worker.command_registry (command, queue, handler_procedure) values ('plain', 'plain', 'app.good');
insert into worker.command_registry (command, queue, handler_procedure) values ('plain2', 'plain', 'app.nothing');
insert into worker.command_registry (command, queue, handler_procedure) values ('plain2', 'nowhere', 'app.good');
update worker.command_registry set handler_procedure = 'app.answers', handler_call = 'drop table x' where command = 'plain';
select handler_call from worker.command_registry where command = 'plain';
update worker.command_registry set handler_procedure = 'app.number' where command = 'plain';

-- A command with live tasks stays: pending, scheduled, running ones count.
select worker.enqueue('plain') is not null, worker.enqueue('plain', p_scheduled_at => now() + interval '1 hour') is not null,
       array_length(array(select worker.enqueue_many('plain', array_fill('{}'::jsonb, array[150]))), 1);
delete from worker.command_registry where command = 'plain';
update worker.command_registry set command = 'renamed' where command = 'plain';
delete from worker.queue_registry where queue = 'plain';
call worker.process_tasks(p_queue => 'plain');
delete from worker.command_registry where command = 'plain';
select count(worker.cancel(id)) from worker.tasks where state = 'pending' and command = 'plain';
delete from worker.command_registry where command = 'plain';
delete from worker.queue_registry where queue = 'plain';
select state, queue, count(*) from worker.tasks where command = 'plain' group by 1, 2 order by 1;
select worker.enqueue('plain');

-- A queue may get another name; its commands and tasks go with it.
insert into worker.queue_registry (queue) values ('old');
select worker.register_command('mover', 'old', 'app.answers');
select worker.enqueue('mover') is not null as enqueued;
update worker.queue_registry set queue = 'new' where queue = 'old';
call worker.process_tasks(p_queue => 'old');
call worker.process_tasks(p_queue => 'new');
select command, queue, state from worker.tasks where command = 'mover';

drop owned by worker_registrar;
drop role worker_registrar;
