select worker.report_progress($1::bigint, $2::bigint, $3::double precision, $4::text)
