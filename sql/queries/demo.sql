-- Something to look at: a small shop whose orders come in every few seconds, each
-- with children, some of which fail and are tried again. Run once or many times.
create schema if not exists demo;

create table if not exists demo.customer_order (
  order_id bigint generated always as identity primary key,
  total numeric(10, 2) not null,
  placed_at timestamptz not null default now()
);

create table if not exists demo.invoice (
  order_id bigint primary key references demo.customer_order,
  issued_at timestamptz not null default now()
);

-- The parent: it is waiting until its children have ended.
create or replace procedure demo.place_order(payload jsonb)
language plpgsql
as $$
declare
  v_order jsonb;
begin
  insert into demo.customer_order (total) values (round((5 + random() * 200)::numeric, 2))
    returning jsonb_build_object('order', order_id) into v_order;
  call worker.spawn('demo_invoice', v_order);
  call worker.spawn('demo_stock', v_order);
end
$$;

create or replace procedure demo.write_invoice(payload jsonb)
language plpgsql
as $$
begin
  insert into demo.invoice (order_id) values ((payload ->> 'order')::bigint);
  perform worker.progress(0.5, 'printing');
  perform pg_sleep(0.2 + random());
end
$$;

create or replace procedure demo.reserve_stock(payload jsonb)
language plpgsql
as $$
begin
  perform pg_sleep(random() / 2);
  if random() < 0.3 then
    raise exception 'the warehouse does not answer';
  end if;
end
$$;

insert into worker.queue_registry (queue, description, top_concurrency)
  values ('demo', 'orders of the demonstration', 2) on conflict do nothing;

select worker.register_command('demo_order', 'demo', 'demo.place_order'),
       worker.register_command('demo_invoice', 'demo', 'demo.write_invoice'),
       worker.register_command('demo_stock', 'demo', 'demo.reserve_stock',
                               p_max_attempts => 4, p_backoff_initial => '500 ms'),
       worker.register_command('demo_nothing', 'demo', p_kind => 'native', p_handler => 'noop');

select worker.schedule('demo orders', interval '3 seconds', 'demo_order'),
       worker.schedule('demo nothing', interval '1 second', 'demo_nothing');

select worker.enqueue('demo_order') from generate_series(1, 5);
