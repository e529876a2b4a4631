-- Pause and resume, of a queue and of a command.
\set VERBOSITY terse
\pset null '-'
set client_min_messages = warning;
create schema app;
create procedure app.handle(payload jsonb) language sql as '';
select worker.register_command('run', 'q', 'app.handle'), worker.register_command('far', 'f', p_kind => 'http', p_url => 'http://127.0.0.1/');
create view app.paused as select queue, paused, paused_until from worker.queue_registry where queue = 'q';
set worker.fake_now = '2030-01-01 12:00:00+00';
select worker.pause('nowhere');
select worker.resume('nowhere');
select worker.pause(null);
select worker.pause('q', '0');
select worker.pause('q', '-1 hour');
select * from app.paused;
select worker.resume('q') as was_paused;

-- Nothing begins, by whatever way; what runs goes on.
select worker.enqueue('run') as run, worker.enqueue('far') as far, worker.enqueue('far') is not null as another \gset
select lease_id as l from queues.exchange('f', 1) \gset
select worker.pause('q'), worker.pause('f');
select * from app.paused;
select worker.drain();
select * from queues.exchange('f', 1);
select event from queues.exchange('f', 0, p_done => array[:l]);
select id = :far as first, state from worker.tasks where command = 'far' order by id;
select worker.explain_task(:run);
set worker.fake_now = '2031-01-01 12:00:00+00';
select worker.drain();
select worker.resume('q') as was_paused, worker.resume('q') as again, worker.resume('f');
select worker.drain();
select count(*) from queues.exchange('f', 1);

-- For a time: then it goes on by itself, and maintenance tells those who sleep.
select worker.enqueue('run') as run \gset
select worker.pause('q', '10 minutes');
select * from app.paused;
set worker.fake_now = '2031-01-01 12:09:59+00';
select queues.maintain() is not null as maintained, worker.drain();
set worker.fake_now = '2031-01-01 12:10:00+00';
select worker.drain();
select worker.resume('q') as was_paused;
select * from app.paused;
select worker.pause('q', '10 minutes');
set worker.fake_now = '2031-01-01 12:20:00+00';
select queues.maintain() is not null as maintained;
select * from app.paused;
-- a second pause takes the place of the first
select worker.pause('q', '1 minute'), worker.pause('q');
select * from app.paused;
select worker.pause('q', '1 minute');
select * from app.paused;
select worker.resume('q');

-- Commands: the same.
select worker.pause_command('nowhat');
select worker.resume_command('nowhat');
select worker.pause_command('run', '-1 s');
select worker.pause_command('run', '1 hour'), worker.pause_command('far');
select command, paused, paused_until from worker.command_registry where paused order by 1;
select worker.resume_command('far'), worker.resume_command('far') as again;
set worker.fake_now = '2031-01-01 13:20:00+00';
select queues.maintain() is not null as maintained;
select count(*) as paused from worker.command_registry where paused;
select worker.resume_command('run') as was_paused;

-- also one whose handler is gone
drop procedure app.handle(jsonb);
select worker.pause_command('run', '1 hour');
set worker.fake_now = '2031-01-01 14:20:00+00';
select queues.maintain() is not null as maintained;
select count(*) as paused from worker.command_registry where paused;
update worker.command_registry set description = 'broken' where command = 'run';

-- Who may: those who decide.
set role worker_service_user;
select worker.pause('q');
select worker.retry(1);
set role worker_monitor;
select worker.status(:run);
select worker.cancel_all();
select count(*) from worker.dead_letters;
set role worker_admin;
select worker.pause('q'), worker.resume('q'), worker.pause_command('run'), worker.resume_command('run'), worker.retry(:run), worker.cancel_all(),
       worker.retry_failed(), worker.discard_failed(), worker.discard(:run);
call worker.cancel_all_in_pages();
reset role;
