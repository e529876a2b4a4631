-- Opens the transaction of a migration and pins whatever of the session could
-- change its outcome. Warnings pass, notices do not.

begin isolation level read committed read write;
set local client_encoding = 'UTF8';
set local client_min_messages = warning;
set local search_path = pg_catalog, pg_temp;
set local check_function_bodies = on;
set local standard_conforming_strings = on;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
