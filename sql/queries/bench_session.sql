select set_config('synchronous_commit', $1::text, false)
