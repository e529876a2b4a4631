-- Takes away what a handler left in the session; $1 is what session_state said.
select worker.reset_session($1::jsonb, true)
