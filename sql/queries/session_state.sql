-- What this session has of its own, before handlers run in it.
select worker.session_state(true)
