// SPDX-License-Identifier: Apache-2.0
// See the script `graphile` beside this file.
import pg from "pg";
import { Logger, run, runMigrations } from "graphile-worker";

const connectionString = process.env.GRAPHILE_URL;
const jobs = Number(process.argv[2]);

await runMigrations({ connectionString });
const pool = new pg.Pool({ connectionString });
await pool.query("truncate graphile_worker._private_jobs");
await pool.query(
  `select count(*) from graphile_worker.add_jobs(array(
     select json_populate_record(null::graphile_worker.job_spec, '{"identifier": "noop", "payload": {}}')
       from generate_series(1, ${jobs})))`,
);
await pool.query("vacuum analyze graphile_worker._private_jobs");

let done = 0;
const begun = process.hrtime.bigint();
const runner = await run({
  preset: {
    worker: {
      connectionString,
      concurrentJobs: 24,
      maxPoolSize: 8,
      localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
  logger: new Logger(() => () => {}),
  taskList: { noop: () => void done++ },
  noHandleSignals: true,
});
while (done < jobs) await new Promise((resolve) => setTimeout(resolve, 5));
const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
console.log(`Graphile Worker, in bulk: ${Math.round(jobs / seconds)} jobs/s`);
await runner.stop();
await pool.end();
process.exit(0);
