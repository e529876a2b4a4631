-- For a few rows out of many, also where there are no statistics. Until the end
-- of the transaction: a pooler may hand the session to somebody else.
select set_config(name, 'off', true)
  from unnest('{enable_seqscan,enable_bitmapscan,enable_hashjoin,enable_mergejoin,jit}'::text[]) name
