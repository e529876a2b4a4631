-- An idle transaction that has written, to a table of its own.
set idle_in_transaction_session_timeout = 0;
begin;
insert into pgkin_bench.held (at) values (now());
