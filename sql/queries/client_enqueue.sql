select worker.enqueue($1::text, $2::jsonb, $3::bigint, $4::timestamptz, $5::text,
                      coalesce($6::text, 'keep'), $7::text, p_order_key => $8::text,
                      p_context => $9::jsonb, p_headers => $10::jsonb)
