-- $1: -1 nothing, 0 everything.
select set_config('auto_explain.log_min_duration', $1::text, false)
