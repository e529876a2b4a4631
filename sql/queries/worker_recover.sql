-- Takes over the tasks of workers that are gone. Returns how many.
select worker.recover_dead_workers()
