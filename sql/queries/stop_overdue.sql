-- Interrupts SQL handlers whose time is over. Returns how many.
select worker.stop_overdue()
